#!/usr/bin/env python
"""Benchmarks of Weft and other systems; started by bench/run through tools/setup.sh."""

import sys

from weft_bench.arguments import parse_arguments


def main() -> int:
    arguments = parse_arguments(sys.argv[1:])
    # Only now, so that --help works without the packages that this needs.
    from weft_bench.session import run_session

    return run_session(arguments)


if __name__ == "__main__":
    sys.exit(main())
