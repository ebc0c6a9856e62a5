#!/usr/bin/env python
"""Weft at work: two throwaway servers, a pgbench load, and a proof that nothing was lost.

Started by "make demo" through setup.sh.  KEEP=1 leaves the servers running.
"""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from demo_common import DemoError, Server, console, fingerprint, main, row_of, run, step
from rich.live import Live
from rich.table import Table
from rich.text import Text

SCALE = 10
CLIENTS = 4
SECONDS = 20
WRITERS = 4
SUBSCRIPTION = "weft_demo"
TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")

# The four sums are equal in every consistent state of a TPC-B database.
BALANCES = """
    SELECT (SELECT coalesce(sum(abalance), 0) FROM pgbench_accounts) AS accounts,
           (SELECT coalesce(sum(bbalance), 0) FROM pgbench_branches) AS branches,
           (SELECT coalesce(sum(tbalance), 0) FROM pgbench_tellers) AS tellers,
           (SELECT coalesce(sum(delta), 0) FROM pgbench_history) AS history"""

PUBLISHER_SETTINGS = """
    wal_level = logical
    """
SUBSCRIBER_SETTINGS = f"""
    shared_preload_libraries = 'weft'
    weft.writers_per_subscription = {WRITERS}
    max_worker_processes = 32
    max_logical_replication_workers = 8
    """


class SnapshotChecker(threading.Thread):
    """Reads the subscriber repeatedly, as a user would, while changes are applied."""

    def __init__(self, subscriber: Server):
        super().__init__(daemon=True)
        self.connection = subscriber.connect()
        self.connection.execute("SET max_parallel_workers_per_gather = 0")
        self.checked = 0
        self.distinct: set[tuple] = set()
        self.wrong: list[tuple] = []
        self.error: Exception | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                start = time.monotonic()
                self.check()
                # Use at most a quarter of one processor, so as not to add to the load.
                self.ended.wait(max(0.1, 3 * (time.monotonic() - start)))
        except Exception as error:
            self.error = error

    def check(self) -> None:
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            sums = tuple(row_of(self.connection, BALANCES))
        self.checked += 1
        self.distinct.add(sums)
        if len(set(sums)) > 1:
            self.wrong.append(sums)

    def finish(self) -> None:
        self.ended.set()
        self.join()
        self.connection.close()
        self.verify()

    def verify(self) -> None:
        if self.error:
            raise DemoError(f"a reader on the subscriber failed: {self.error}")
        if self.wrong:
            raise DemoError(
                f"{len(self.wrong)} of {self.checked} snapshots on the subscriber are "
                f"inconsistent; the first has these sums of balances: {self.wrong[0]}"
            )


@dataclass
class Load:
    """A running pgbench, and what it reports."""

    process: subprocess.Popen
    rate: float = 0
    output: list[str] = field(default_factory=list)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            if progress := re.match(r"progress: .* s, ([\d.]+) tps", line):
                self.rate = float(progress[1])

    def transactions(self) -> int:
        done = re.search(r"transactions actually processed: (\d+)", "".join(self.output))
        if self.process.wait() != 0 or not done:
            raise DemoError("pgbench failed:\n" + "".join(self.output[-10:]))
        return int(done[1])


@contextmanager
def pgbench(server: Server) -> Iterator[Load]:
    process = subprocess.Popen(
        ["pgbench", *server.socket_options, "-n", "-M", "prepared", "-P", "1",
         "-c", str(CLIENTS), "-j", "2", "-T", str(SECONDS), "postgres"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    load = Load(process)
    reader = threading.Thread(target=load.read, daemon=True)
    reader.start()
    try:
        yield load
        reader.join()
    finally:
        process.terminate()
        process.wait()


def readable(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def statistics(connection: psycopg.Connection[Any]) -> Any:
    row = connection.execute(
        "SELECT *, extract(epoch FROM lag_time)::float AS lag_seconds "
        "FROM weft.stat_subscription WHERE subname = %s",
        [SUBSCRIPTION],
    ).fetchone()
    if row is None or row.leader_pid is None:
        raise DemoError("the subscription's apply worker is not running")
    if row.native_reason:
        raise DemoError(f"Weft has not taken the subscription over: {row.native_reason}")
    return row


def watch(load: Load, connection: psycopg.Connection, checker: SnapshotChecker) -> None:
    """Shows progress until the load ends: in a terminal at once, otherwise every few seconds."""
    start = time.monotonic()
    interval = 0.5 if console.is_terminal else 4
    before = statistics(connection).transactions
    moment = start
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while True:
            try:
                load.process.wait(interval)
                return
            except subprocess.TimeoutExpired:
                checker.verify()
            row, now = statistics(connection), time.monotonic()
            applied = (row.transactions - before) / (now - moment)
            before, moment = row.transactions, now
            line = Text.assemble(
                (f"{now - start:2.0f} s", "bold"),
                f"  publisher {load.rate:,.0f}/s  applied ",
                (f"{applied:,.0f}/s", "bold green"),
                f"  lag {readable(row.lag_bytes or 0)} {row.lag_seconds or 0:.2f} s"
                f"  busy {row.busy_writers} of {row.num_writers}"
                f"  snapshots {checker.checked}",
            )
            if console.is_terminal:
                live.update(line, refresh=True)
            else:
                print(line.plain, flush=True)


def compare(publisher: Server, subscriber: Server) -> dict:
    there, here = fingerprint(publisher, TABLES), fingerprint(subscriber, TABLES)
    for table in TABLES:
        if there[table] != here[table]:
            raise DemoError(
                f"{table} differs: {there[table][0]} rows on the publisher, "
                f"{here[table][0]} on the subscriber"
            )
    return {table: rows for table, (rows, _) in here.items()}


def summary(
    transactions: int, catch_up: float, checker: SnapshotChecker, rows: dict, row: Any
) -> Table:
    table = Table(title="Weft", title_justify="left", show_header=False)
    table.add_row("transactions", f"{transactions:,}")
    table.add_row("rate on the publisher", f"{transactions / SECONDS:,.0f}/s")
    table.add_row("caught up after the load", f"in {catch_up:.2f} s")
    table.add_row("rate on the subscriber", f"{transactions / (SECONDS + catch_up):,.0f}/s")
    table.add_row(
        "snapshots on the subscriber",
        f"{checker.checked}, {len(checker.distinct)} different, all consistent",
    )
    for name, count in rows.items():
        table.add_row(name, f"equal, {count:,} rows")
    table.add_row("writers", str(row.num_writers))
    table.add_row(
        "waited, rolled back",
        f"{row.dependency_waits:,} dependency waits, {row.misspeculations:,} misspeculations",
    )
    return table


def demo(publisher: Server, subscriber: Server) -> None:
    scale = ("-s", str(SCALE), "postgres")
    with step(f"two servers, {run('pg_config', '--version').strip()}"):
        publisher.start()
        subscriber.start()
    with step(f"pgbench tables, scale {SCALE}"):
        run("pgbench", *publisher.socket_options, "-i", "-q", *scale)
        run("pgbench", *subscriber.socket_options, "-i", "-q", "-I", "dtp", *scale)

    connection = subscriber.connect()
    with step("CREATE PUBLICATION, CREATE SUBSCRIPTION, initial copy"):
        with publisher.connect() as there:
            there.execute("CREATE PUBLICATION weft_demo FOR ALL TABLES")
        connection.execute("CREATE EXTENSION weft")
        connection.execute(
            f"CREATE SUBSCRIPTION {SUBSCRIPTION} "
            f"CONNECTION '{publisher.conninfo}' PUBLICATION weft_demo"
        )
        connection.execute("SELECT weft.wait_for_subscription(%s, '60s')", [SUBSCRIPTION])

    checker = SnapshotChecker(subscriber)
    checker.start()
    with step(f"pgbench TPC-B, {CLIENTS} clients, {SECONDS} s, and readers on the subscriber"):
        with pgbench(publisher) as load:
            watch(load, connection, checker)
        transactions = load.transactions()
    with step("caught up"):
        start = time.monotonic()
        connection.execute("SELECT weft.wait_for_subscription(%s, '120s')", [SUBSCRIPTION])
        catch_up = time.monotonic() - start
    checker.finish()
    with step("compared"):
        rows = compare(publisher, subscriber)
    console.print(summary(transactions, catch_up, checker, rows, statistics(connection)))
    connection.close()


def make_servers(directory: Path) -> list[Server]:
    return [
        Server(directory / "publisher", PUBLISHER_SETTINGS),
        Server(directory / "subscriber", SUBSCRIBER_SETTINGS),
    ]


if __name__ == "__main__":
    sys.exit(main(make_servers, demo))
