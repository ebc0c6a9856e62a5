#!/usr/bin/env python
"""Puts the figures of bench/results into the document that it reads; started by bench/tables
through tools/setup.sh."""

import sys
from pathlib import Path

from weft_bench.documents import renewed
from weft_bench.errors import BenchError

TREE = Path(__file__).resolve().parent.parent


def main() -> int:
    document = TREE / sys.argv[1]
    try:
        sys.stdout.write(renewed(sys.stdin.read(), document))
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
