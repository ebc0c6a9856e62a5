"""The demo's live part: pgbench writes to the publisher, and readers check the subscriber."""

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from demo_common import DemoError, Server, console, readable, row_of, value_of
from rich.live import Live
from rich.text import Text

SUBSCRIPTION = "weft_demo"

# The four sums are equal in every consistent state of a TPC-B database.
BALANCES = """
    SELECT (SELECT coalesce(sum(abalance), 0) FROM pgbench_accounts) AS accounts,
           (SELECT coalesce(sum(bbalance), 0) FROM pgbench_branches) AS branches,
           (SELECT coalesce(sum(tbalance), 0) FROM pgbench_tellers) AS tellers,
           (SELECT coalesce(sum(delta), 0) FROM pgbench_history) AS history"""


class SnapshotChecker(threading.Thread):
    """Reads the subscriber repeatedly, as a user would, while changes are applied."""

    def __init__(self, subscriber: Server):
        super().__init__(daemon=True)
        self.connection = subscriber.connect()
        self.connection.execute("SET max_parallel_workers_per_gather = 0")
        self.checked = 0
        self.distinct: set[tuple[Any, ...]] = set()
        self.wrong: list[tuple[Any, ...]] = []
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

    process: subprocess.Popen[str]
    rate: float = 0
    output: list[str] = field(default_factory=list)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            if progress := re.match(r"progress: .* s, ([\d.]+) tps", line):
                self.rate = float(progress[1])

    def is_running(self, seconds: float) -> bool:
        """Whether it still runs after that many seconds."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def transactions(self) -> int:
        done = re.search(r"transactions actually processed: (\d+)", "".join(self.output))
        if self.process.wait() != 0 or not done:
            raise DemoError("pgbench failed:\n" + "".join(self.output[-10:]))
        return int(done[1])


@contextmanager
def pgbench(server: Server, clients: int, seconds: int, *options: str) -> Iterator[Load]:
    process = subprocess.Popen(
        ["pgbench", *server.socket_options, "-n", "-P", "1", "-c", str(clients), "-j", "2",
         "-T", str(seconds), *options, "postgres"],
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


def statistics(connection: psycopg.Connection[Any], subscription: str) -> Any:
    row = connection.execute(
        "SELECT *, extract(epoch FROM lag_time)::float AS lag_seconds "
        "FROM weft.stat_subscription WHERE subname = %s",
        [subscription],
    ).fetchone()
    if row is None or row.leader_pid is None:
        raise DemoError("the subscription's apply worker is not running")
    if row.native_reason:
        raise DemoError(f"Weft has not taken the subscription over: {row.native_reason}")
    return row


def watch(
    load: Load,
    publisher: psycopg.Connection[Any],
    subscriber: psycopg.Connection[Any],
    subscription: str,
    checker: SnapshotChecker,
) -> None:
    """Shows progress until the load ends: in a terminal at once, otherwise every few seconds."""
    moment = start = time.monotonic()
    before = statistics(subscriber, subscription).transactions
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while load.is_running(0.5 if console.is_terminal else 4):
            checker.verify()
            # In this order, so that the figure is rather too high than too low.
            row, now = statistics(subscriber, subscription), time.monotonic()
            behind = value_of(
                publisher, "SELECT pg_current_wal_lsn() - %s::pg_lsn", row.applied_lsn or "0/0"
            )
            applied = (row.transactions - before) / (now - moment)
            before, moment = row.transactions, now
            line = Text.assemble(
                (f"  {now - start:2.0f} s", "bold"),
                f"  publisher {load.rate:,.0f}/s  applied ",
                (f"{applied:,.0f}/s", "bold green"),
                f"  behind {readable(float(behind))}, {row.lag_seconds or 0:.2f} s",
            )
            if console.is_terminal:
                live.update(line, refresh=True)
            else:
                print(line.plain, flush=True)
