"""Runs the commands of a document, and compares what they print with what it says.

In a document that is tested,

- a block "sh" is run by one shell, which keeps its variables from block to block, and a block
  "sql" by psql on the new server, in the document's database;
- a block "text" right after it is what it prints;
- a comment that begins with "test:" has commands for the shell that a reader does not need,
  such as those that stand for the reader's own database;
- a block after a comment "not run: REASON" is not run.

The document's host names, old.example and new.example, stand for two servers of the test.
What differs from run to run is normalized on both sides before they are compared: see RULES.

WEFT_DOCUMENTS=DIRECTORY writes there what the documents should say, if that is something else.
"""

import difflib
import os
import re
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

# What replaces what, in this order.  Widths of columns depend on the values, so runs of
# spaces and of dashes are all alike.
RULES = [
    ("what is not there yet", r"(?m)^NOTICE: .*, skipping\n", ""),
    ("names with OIDs", r"\bweft_switch_\d+(_\d+)?\b", "weft_switch_OID"),
    ("LSN", r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b", "LSN"),
    ("time stamp", r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:\d\d)?)?", "TIMESTAMP"),
    ("interval", r"\b\d\d:\d\d:\d\d(\.\d+)?\b", "INTERVAL"),
    ("duration", r"\b\d+(\.\d+)? (ms|s|seconds)\b", "DURATION"),
    ("directory of a socket", r"host=\S+", "host=HOST"),
    ("port", r"\bport=\d+", "port=PORT"),
    ("version", r"\b(PostgreSQL|version) \d+(\.\d+)?\b", r"\1 VERSION"),
    ("lines of psql", r"-{3,}", "---"),
    ("width of columns", r"[ \t]+", " "),
    ("end of lines", r" *\n", "\n"),
]


@dataclass
class Block:
    line: int
    kind: str
    text: str
    expected: str | None = None
    # where "expected" is in the document
    place: tuple[int, int] = (0, 0)


def blocks_of(document: Path) -> list[Block]:
    """What is to be run, in order."""
    found: list[Block] = []
    last: Block | None = None
    skip = False
    pattern = re.compile(
        r"^<!-- (?P<word>test|not run):(?P<hidden>.*?)-->$|^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
        re.DOTALL | re.MULTILINE,
    )
    text = document.read_text()
    for match in pattern.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["word"] == "not run":
            skip, last = True, None
        elif match["word"] == "test":
            found.append(Block(line, "sh", match["hidden"].strip() + "\n"))
            last = None
        elif match["kind"] == "text":
            if last is not None:
                last.expected = match["text"]
                last.place = match.span("text")
            elif not skip:
                raise ValueError(f"{document.name}:{line}: nothing prints this")
            last = None
        elif skip:
            skip = False
        elif match["kind"] in ("sh", "sql"):
            last = Block(line, match["kind"], match["text"])
            found.append(last)
        else:
            raise ValueError(f"{document.name}:{line}: a block that is not sh, sql or text")
    return found


def normalized(text: str) -> list[str]:
    for _, pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return [line.strip() for line in text.strip().splitlines()]


class Shell:
    """A shell that runs one block after the other."""

    def __init__(self, environment: dict[str, str], directory: Path):
        self.process = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            text=True,
        )

    def run(self, commands: str) -> tuple[int, str]:
        assert self.process.stdin is not None and self.process.stdout is not None
        mark = uuid.uuid4().hex
        # the commands are read completely before any runs, and cannot read what follows
        self.process.stdin.write(
            f"eval \"$(cat <<'{mark}'\n{commands}\n{mark}\n)\" </dev/null\n"
            f"weft_status=$?; echo; echo {mark} $weft_status\n"
        )
        self.process.stdin.flush()
        lines: list[str] = []
        for line in self.process.stdout:
            if line.startswith(mark):
                return int(line.split()[1]), "".join(lines).rstrip("\n") + "\n"
            lines.append(line)
        raise RuntimeError("the shell has ended: " + "".join(lines[-20:]))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def failures(
    document: Path, replacements: dict[str, str], environment: dict[str, str], directory: Path
) -> list[str]:
    """Runs a document; returns how the outputs differ from what it says."""
    blocks = blocks_of(document)
    assert any(block.expected is not None for block in blocks), f"{document} expects nothing"
    shell = Shell({**os.environ, **environment}, directory)
    found: list[str] = []
    changes: list[tuple[tuple[int, int], str]] = []
    try:
        for block in blocks:
            commands = block.text
            for name, value in replacements.items():
                commands = commands.replace(name, value)
            if block.kind == "sql":
                commands = f"psql -X -d \"$NEW\" <<'END_OF_SQL'\n{commands}END_OF_SQL\n"
            code, output = shell.run(commands)
            for name, value in replacements.items():
                output = output.replace(value, name)
            where = f"{document.name}:{block.line}"
            print(f"--- {where}\n{block.text}{output}", flush=True)
            if block.expected is None:
                # nothing is said of the output, but errors are not expected
                if code != 0 or "ERROR:" in output or "FATAL:" in output:
                    found.append(f"{where}: exit code {code}\n{output}")
                    break
                continue
            expected, got = normalized(block.expected), normalized(output)
            if expected != got:
                found.append(
                    f"{where}:\n" + "\n".join(difflib.unified_diff(expected, got, lineterm=""))
                )
                changes.append((block.place, output))
    finally:
        shell.close()
    if changes and "WEFT_DOCUMENTS" in os.environ:
        rewrite(document, changes, Path(os.environ["WEFT_DOCUMENTS"]))
    return found


def rewrite(document: Path, changes: list[tuple[tuple[int, int], str]], to: Path) -> None:
    text = document.read_text()
    for (start, end), output in reversed(changes):
        lines = "".join(line.rstrip() + "\n" for line in output.strip("\n").splitlines())
        text = text[:start] + lines + text[end:]
    (to / document.name).write_text(text)
