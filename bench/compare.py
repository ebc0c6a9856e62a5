#!/usr/bin/env python
"""Measures weft.compare_subscription(): its time without load, against a plain sum of hashes on
both sides at the same time; its memory; and how long apply pauses under load.

usage: tools/setup.sh release python bench/compare.py [--rows 10000000] [--jobs 2] ...
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from weft_bench.build import Build, server_build
from weft_bench.load import fill_tables, run_load
from weft_bench.server import Server, at_once

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS_PER_SCALE = 100_000
PLAIN_SUM = "SELECT count(*), sum(hashtext(t::text)) FROM pgbench_accounts t"
TABLES = """
CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler character(84));
CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler character(88));
CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler character(84))
"""
SETTINGS: dict[str, object] = {
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "20GB",
    "shared_buffers": "1GB",
    "shared_preload_libraries": "weft",
    "wal_level": "logical",
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures comparisons.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of pgbench_accounts")
    parser.add_argument("--jobs", type=int, default=2, help="processes that compare")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cuts", type=int, default=20, help="cuts under load")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rate", type=int, help="transactions per second; default: no limit")
    parser.add_argument("--seconds", type=int, default=60, help="duration of the load")
    parser.add_argument("--directory", help="where the servers are created")
    return parser.parse_args()


def make_pair(directory: Path, build: Build, rows: int) -> tuple[Server, Server]:
    publisher = Server("publisher", directory / "publisher", directory / "p", build)
    subscriber = Server("subscriber", directory / "subscriber", directory / "s", build)
    for server in (publisher, subscriber):
        server.create()
        server.start({**SETTINGS, **build.with_plugin("weft")})
    fill_tables(publisher, max(rows // ROWS_PER_SCALE, 1), lambda _: None)
    subscriber.execute("CREATE EXTENSION weft")
    for statement in TABLES.split(";"):
        subscriber.execute(statement)
    publisher.execute(
        "CREATE PUBLICATION p FOR TABLE pgbench_accounts, pgbench_branches, pgbench_tellers"
    )
    subscriber.execute(f"CREATE SUBSCRIPTION s CONNECTION '{publisher.conninfo}' PUBLICATION p")
    subscriber.execute("SELECT weft.wait_for_subscription('s', '1 hour')")
    for server in (publisher, subscriber):
        server.execute("VACUUM ANALYZE")
    return publisher, subscriber


class Memory:
    """The most memory of their own that processes of a comparison have used, in bytes."""

    def __init__(self, server: Server):
        self.server = server
        self.most: dict[str, int] = {}
        self.ended = threading.Event()

    def watch(self) -> None:
        query = (
            "SELECT pid, backend_type FROM pg_stat_activity WHERE query LIKE 'CALL weft.compare%' "
            "AND backend_type IN ('client backend', 'parallel worker')"
        )
        with self.server.connect() as connection:
            while not self.ended.wait(0.1):
                for pid, kind in connection.execute(query).fetchall():
                    self.most[kind] = max(self.most.get(kind, 0), anonymous_memory(pid))


def anonymous_memory(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def in_background(target: object, ended: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=target)  # type: ignore[arg-type]
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def compare(subscriber: Server, jobs: int, tables: str) -> int:
    with subscriber.connect() as connection:
        row = connection.execute(
            f"CALL weft.compare_subscription('s', jobs => {jobs}, tables => '{tables}')"
        ).fetchone()
    assert row is not None
    return int(row[0])


def seconds(function: object) -> float:
    start = time.monotonic()
    function()  # type: ignore[operator]
    return time.monotonic() - start


def measure_time(pair: tuple[Server, Server], arguments: argparse.Namespace) -> dict[str, object]:
    """Alternately, since the machine may become faster or slower."""
    plain: list[float] = []
    weft: list[float] = []
    memory = Memory(pair[1])
    for server in pair:
        server.execute(PLAIN_SUM)
    with in_background(memory.watch, memory.ended):
        for _ in range(arguments.repeats):
            plain.append(
                seconds(lambda: at_once(*(lambda s=s: s.execute(PLAIN_SUM) for s in pair)))
            )
            weft.append(seconds(lambda: compare(pair[1], arguments.jobs, "{pgbench_accounts}")))
    return {
        "rows": pair[0].value("SELECT count(*) FROM pgbench_accounts"),
        "plain_sum_s": plain,
        "comparison_s": weft,
        "ratio": statistics.median(weft) / statistics.median(plain),
        "memory_bytes": memory.most,
        "differences": pair[1].value("SELECT count(*) FROM weft.difference"),
    }


class Lag:
    """How long apply was behind, in milliseconds, as of each look."""

    def __init__(self, server: Server):
        self.server = server
        self.found: list[float] = []
        self.ended = threading.Event()

    def watch(self) -> None:
        query = "SELECT extract(epoch FROM lag_time) * 1000 FROM weft.stat_subscription"
        with self.server.connect() as connection:
            while not self.ended.wait(0.02):
                row = connection.execute(query).fetchone()
                if row is not None and row[0] is not None:
                    self.found.append(float(row[0]))

    def figures(self) -> dict[str, float]:
        values = sorted(self.found) or [0.0]
        return {
            "median_ms": statistics.median(values),
            "p99_ms": values[int(0.99 * (len(values) - 1))],
            "longest_ms": values[-1],
        }


def measure_load(pair: tuple[Server, Server], arguments: argparse.Namespace) -> dict[str, object]:
    """Lag without comparisons, then with many small ones, each with a cut, and with a large one."""
    result: dict[str, object] = {}
    ids: dict[str, list[int]] = {}

    def small() -> None:
        ids["small"] = [compare(pair[1], 1, "{pgbench_branches}") for _ in range(arguments.cuts)]

    def large() -> None:
        ids["large"] = [compare(pair[1], arguments.jobs, "{pgbench_accounts}")]

    phases = {"none": lambda: time.sleep(arguments.seconds / 3), "small": small, "large": large}
    stop = threading.Event()
    clients = arguments.clients
    rate = ("-R", str(arguments.rate)) if arguments.rate else ()

    def load() -> None:
        # in pieces, because nobody knows how long the comparisons take
        seed = 1
        while not stop.is_set():
            run_load(pair[0], clients, ("-T", "5", *rate), seed, lambda _: None)
            seed += 1

    with in_background(load, stop):
        for name, phase in phases.items():
            lag = Lag(pair[1])
            with in_background(lag.watch, lag.ended):
                phase()
            result[f"lag_with_{name}"] = lag.figures()
    for name, numbers in ids.items():
        found = pair[1].execute(
            "SELECT max(longest_cut), percentile_cont(0.5) WITHIN GROUP (ORDER BY longest_cut), "
            "sum(cuts)::int FROM weft.comparison WHERE comparison = ANY (%s)",
            [numbers],
        )[0]
        result[f"{name}_cuts"] = {"longest_ms": found[0], "median_ms": found[1], "cuts": found[2]}
    result["longest_pause"] = str(pair[1].value("SELECT longest_pause FROM weft.stat_cut"))
    result["differences"] = pair[1].value("SELECT count(*) FROM weft.difference")
    return result


def main() -> int:
    arguments = parse_arguments()
    build = server_build()
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="weft-compare-", dir=arguments.directory)
            )
        )
        for name in ("publisher", "subscriber"):
            stack.callback(Server(name, directory / name, directory / name[0], build).abandon)
        pair = make_pair(directory, build, arguments.rows)
        figures = {
            "server": build.version,
            "without_load": measure_time(pair, arguments),
            "under_load": measure_load(pair, arguments),
        }
        json.dump(figures, sys.stdout, indent=2)
        print()
        for server in reversed(pair):
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
