#!/usr/bin/env python
"""Draws the figures in the JSON that it reads; started by bench/draw through tools/setup.sh."""

import argparse
import sys

from weft_bench.charts import Charts, write_charts
from weft_bench.figures import figures_from_json


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--charts-fd", type=int, required=True)
    about, figures = figures_from_json(sys.stdin.read())
    files = Charts(figures, about).draw()
    write_charts(files, parser.parse_args().charts_fd)
    print(f"charts: {', '.join(files)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
