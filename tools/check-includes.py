#!/usr/bin/env python3
"""Enforces the rules for the source text that a compiler does not.

What may include what, which modules there are, and which external variables, is read from
src/README.md.  The rest is in check_source/rules.py.
"""

import argparse
import sys
from pathlib import Path

from check_source.rules import Checker
from check_source.tree import Tree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument(
        "folder", nargs="*", help='show only findings about these: "ring", "root", "sql"'
    )
    arguments = parser.parse_args()
    wanted = {folder.rstrip("/").rpartition("/")[2] for folder in arguments.folder}

    findings = Checker(Tree(arguments.tree)).findings()
    if wanted:
        findings = [finding for finding in findings if wanted & set(finding.folders)]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
