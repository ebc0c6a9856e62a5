#!/usr/bin/env python
"""Checks the rules for the source text that no compiler knows.

Includes: a folder of src/ includes its own headers, those that lie in src/ itself, and those of
the folders named here.  Size: files and functions that have grown too long.
"""

import re
import sys
from pathlib import Path

SOURCE = Path("src")
MAX_FILE = 1000
MAX_FUNCTION = 120

# In the order of src/README.md: receive/ and apply/ meet in ring/, and never each other.
MAY_INCLUDE = {
    "publish": set(),
    "ring": set(),
    "seam": set(),
    "receive": {"publish", "ring", "seam"},
    "conflict": {"ring"},
    "fast": {"apply", "ring", "conflict"},
    "apply": {"publish", "ring", "fast", "conflict"},
    "copy": {"ring", "seam"},
    "group": {"copy"},
    "api": {"publish", "receive", "ring", "seam", "fast", "apply", "conflict", "copy", "group"},
}

# ring/ knows nothing of tuples.
NOT_IN_RING = re.compile(r"access/(htup|heap|tup)|executor/|catalog/|replication/logicalproto\.h")

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
VERSION_TEST = re.compile(r"^\s*#\s*(if|elif)\b.*\bPG_VERSION_NUM\b")


def folder_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def included_folder(file: Path, header: str) -> str:
    """The folder of ours that a header lies in, or "" if it is shared or the server's."""
    if header.split("/")[0] in MAY_INCLUDE:
        return header.split("/")[0]
    return folder_of(file) if (file.parent / header).exists() else ""


def check_line(file: Path, line: str):
    folder = folder_of(file)
    if VERSION_TEST.match(line) and file != SOURCE / "compat.h":
        yield "only compat.h may test PG_VERSION_NUM"
    if not (include := INCLUDE.match(line)):
        return
    header = include[1]
    target = included_folder(file, header)
    if folder == "ring" and NOT_IN_RING.match(header):
        yield f"ring/ must not know tuples: {header}"
    if not target or target == folder:
        return
    if folder:
        if target not in MAY_INCLUDE[folder]:
            yield f"{folder}/ must not include {target}/: {header}"
    elif file.suffix == ".h":
        yield f"a shared header must not include {target}/: {header}"


def check_sizes(lines: list[str]):
    """Functions are found by their braces, which pgindent puts into the first column."""
    if len(lines) > MAX_FILE:
        yield len(lines), f"more than {MAX_FILE} lines"
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{" and number > 1 and lines[number - 2].endswith(")"):
            start = number
        elif line.startswith("}") and start is not None:
            if number - start > MAX_FUNCTION:
                yield start, f"function of {number - start} lines, more than {MAX_FUNCTION}"
            start = None


def main() -> int:
    errors = 0
    for file in sorted(SOURCE.glob("**/*.[ch]")):
        lines = file.read_text().splitlines()
        found = list(check_sizes(lines))
        if folder_of(file) not in {"", *MAY_INCLUDE}:
            found.append((1, "unknown folder"))
        else:
            for number, line in enumerate(lines, 1):
                found += [(number, problem) for problem in check_line(file, line)]
        for number, problem in sorted(found):
            print(f"{file}:{number}: {problem}")
        errors += len(found)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
