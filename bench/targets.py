#!/usr/bin/env python3
"""Measures what Weft is to reach, run after run, and says what it has reached.

Started by bench/targets.  Each run writes a file of its own.  A run whose file is complete and of
the same program is not repeated, so a call that was interrupted continues where it was.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from weft_bench.commit import parse_commit
from weft_bench.figures import Figure, figures_from_json, format_value
from weft_bench.targets import MORE_RUNS, RUNS, Run

BENCH = Path(__file__).parent.resolve()

# What may differ between two commits that are measured as one: it is not part of what runs.
NOT_MEASURED = ("docs", "test", "debian", "*.md", "bench/results", "bench/tests", ".ci")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/targets", description=__doc__)
    add = parser.add_argument
    add("--list", action="store_true", help="only list the runs, with their times in minutes")
    add("--show", action="store_true", help="measure nothing, show what the files say")
    add("--only", metavar="A,B", help="only these runs")
    add("--more", action="store_true", help="also the runs that only documents need")
    add("--minutes", type=int, metavar="M", help="begin no run that would take longer than this")
    add("--to", metavar="DIR", default=str(BENCH / "results" / "targets"),
        help="where the files are (default: bench/results/targets)")  # fmt: skip
    add("--commit", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen_runs(arguments: argparse.Namespace) -> list[Run]:
    runs = [*RUNS, *MORE_RUNS]
    if not arguments.only:
        return runs if arguments.more else list(RUNS)
    names = arguments.only.split(",")
    unknown = set(names) - {run.name for run in runs}
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; see --list")
    return [run for run in runs if run.name in names]


def read(file: Path) -> tuple[dict, list[Figure]]:
    try:
        return figures_from_json(file.read_text())
    except (OSError, ValueError, TypeError):
        return {}, []


def same_files(commit: str, other: str, tree: Path) -> bool:
    """Whether two commits differ in nothing that runs; not if one of them is unknown."""
    git = ("git", "-c", "safe.directory=*", "-C", str(tree))
    but = [f":(top,exclude){path}" for path in NOT_MEASURED]
    command = (*git, "diff", "--quiet", commit, other, "--", ":(top)", *but)
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def is_of(about: dict, commit: str, tree: Path = BENCH) -> bool:
    """Whether it was measured at a commit, or at one that differs in documents and tests only.
    Changes that are not committed cannot be told apart from each other, but from none."""
    found = about.get("provenance", {})
    measured = {name: found.get(name) for name in ("commit", "dirty")}
    now = parse_commit(commit)
    if measured == now:
        return True
    if None in (measured["commit"], now["commit"]) or measured["dirty"] or now["dirty"]:
        return False
    return same_files(str(measured["commit"]), str(now["commit"]), tree)


def measure(run: Run, directory: Path) -> bool:
    """Returns false if the run has failed; its figures so far are in the file "part"."""
    part = directory / f"{run.name}.part.json"
    command = (str(BENCH / "run"), *run.arguments, "--json", str(part))
    status = subprocess.run(command).returncode
    if status == 130:
        sys.exit(130)
    if status == 0:
        part.rename(directory / f"{run.name}.json")
    return status == 0


def show(runs: list[Run], directory: Path, commit: str) -> bool:
    """Returns whether all targets are met."""
    missed = 0
    for run in runs:
        about, figures = read(directory / f"{run.name}.json")
        old = "" if not figures or is_of(about, commit) else "  (of another commit)"
        for reason in about.get("skipped", []):
            print(f"{'skipped':<10} {run.name}: {reason['reason']}")
        for target in run.targets:
            found, met = target.check(figures)
            missed += not met
            bound = f"{'at most' if target.at_most else 'at least'} {target.bound:,g}"
            if found is None:
                print(f"{'missing':<10} {target.text}: {bound}; run {run.name}")
                continue
            median, low, high = (format_value(value) for value in found)
            print(
                f"{'met' if met else 'NOT MET':<10} {target.text}: {median} ({low} to {high}), "
                f"{bound}{old}"
            )
    return not missed


def main() -> int:
    arguments = parse_arguments()
    runs = chosen_runs(arguments)
    if arguments.list:
        for run in runs:
            print(f"{run.name:<22} {run.minutes:>4}  bench/run {' '.join(run.arguments)}")
        print(f"{'all':<22} {sum(run.minutes for run in runs):>4}")
        return 0
    directory = Path(arguments.to)
    directory.mkdir(parents=True, exist_ok=True)
    failed = False
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
    for run in [] if arguments.show else runs:
        about, _ = read(directory / f"{run.name}.json")
        if about and is_of(about, arguments.commit):
            print(f"{run.name}: measured already")
        elif end and time.monotonic() + 60 * run.minutes > end:
            print(f"{run.name}: not begun, it takes about {run.minutes} minutes")
        else:
            print(f"{run.name}: about {run.minutes} minutes", flush=True)
            failed = not measure(run, directory) or failed
    met = show(runs, directory, arguments.commit)
    return 0 if met and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
