"""A publisher and a subscriber, and the template that every measurement starts from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from .load import fill_tables
from .progress import Steps
from .server import TABLES, BenchError, Server, at_once, run

SUBSCRIPTION = "bench"
SYNC_TIMEOUT = 3600


class Pair:
    """Both servers.  Their sockets are the same for every pair, since the subscription's
    connection string travels with the template; so only one pair runs at a time."""

    def __init__(self, directory: Path, sockets: Path):
        self.directory = directory
        self.publisher = Server("publisher", directory / "publisher", sockets / "publisher")
        self.subscriber = Server("subscriber", directory / "subscriber", sockets / "subscriber")
        self.servers = (self.publisher, self.subscriber)

    def start(self, publisher_settings: dict, subscriber_settings: dict) -> None:
        self.publisher.start(publisher_settings)
        self.subscriber.start(subscriber_settings)

    def stop(self, mode: str = "fast") -> None:
        # The subscriber first, so that no walsender holds the publisher up.
        self.subscriber.stop(mode)
        self.publisher.stop(mode)

    def abandon(self) -> None:
        self.subscriber.abandon()
        self.publisher.abandon()

    def vacuum_and_checkpoint(self) -> None:
        at_once(*(server.vacuum_and_checkpoint for server in self.servers))

    def prewarm(self) -> None:
        at_once(*(server.prewarm for server in self.servers))

    def compare(self) -> None:
        """A system that loses or doubles a row has no speed."""
        there, here = at_once(*(server.fingerprint for server in self.servers))
        for table in TABLES:
            if there[table] != here[table]:
                raise BenchError(
                    f"{table} differs after the drain: (rows, sum of hashes) is {there[table]} "
                    f"on the publisher, {here[table]} on the subscriber"
                )


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 60) -> None:
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise BenchError(f"gave up after {timeout:.0f} s: {what}")
        time.sleep(0.02)


def disable_subscription(pair: Pair) -> None:
    """Returns once the worker has ended and the slot is free for the next one."""
    pair.subscriber.execute(f"ALTER SUBSCRIPTION {SUBSCRIPTION} DISABLE")
    with pair.publisher.connect() as there, pair.subscriber.connect() as here:
        wait_until(
            lambda: (
                not there.execute("SELECT bool_or(active) FROM pg_replication_slots").fetchone()[0]
                and not here.execute(
                    "SELECT EXISTS (SELECT FROM pg_stat_subscription WHERE pid IS NOT NULL)"
                ).fetchone()[0]
            ),
            "the disabled subscription's processes do not end",
        )


def synchronize(pair: Pair, scale: int, at: Callable[[float], None]) -> None:
    """Makes the subscription and waits for the initial copy of all tables."""
    pair.publisher.execute("CREATE PUBLICATION bench FOR ALL TABLES")
    pair.subscriber.execute(
        f"CREATE SUBSCRIPTION {SUBSCRIPTION} CONNECTION '{pair.publisher.conninfo}' "
        "PUBLICATION bench WITH (binary = true, streaming = off)"
    )
    with pair.subscriber.connect() as here:

        def ready() -> bool:
            copied = here.execute(
                "SELECT coalesce(max(tuples_processed), 0) FROM pg_stat_progress_copy"
            ).fetchone()[0]
            at(100 * copied / (scale * 100_000))
            return here.execute(
                "SELECT count(*) = %s AND bool_and(srsubstate = 'r') FROM pg_subscription_rel",
                [len(TABLES)],
            ).fetchone()[0]

        wait_until(ready, "the initial copy does not end", SYNC_TIMEOUT)


def make_template(
    pair: Pair, scale: int, publisher_settings: dict, subscriber_settings: dict, steps: Steps
) -> None:
    """Freshly filled tables on both sides, a subscription that is in step, and disabled."""
    with steps.step("template: two servers"):
        pair.directory.mkdir()
        for server in pair.servers:
            server.create()
        pair.start(publisher_settings, subscriber_settings)
    with steps.step(f"template: pgbench tables, scale {scale}", total=100) as step:
        fill_tables(pair.publisher, scale, step.at)
        run("pgbench", *pair.subscriber.socket_options, "-i", "-q", "-I", "dtp", "postgres")
    with steps.step("template: initial copy", total=100) as step:
        synchronize(pair, scale, step.at)
    with steps.step("template: vacuum, checkpoint, stop"):
        disable_subscription(pair)
        for server in pair.servers:
            server.execute("CREATE EXTENSION pg_prewarm")
        pair.vacuum_and_checkpoint()
        pair.stop()


def copy_template(template: Pair, pair: Pair, steps: Steps) -> None:
    """Real copies: blocks shared with the template would be copied while they are measured."""
    files = [path for path in template.directory.rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    with steps.step("copy of the template", total=total) as step:
        copied = 0
        shutil.rmtree(pair.directory, ignore_errors=True)

        def copy(source: str, target: str) -> None:
            nonlocal copied
            shutil.copy2(source, target)
            copied += Path(target).stat().st_size
            step.at(copied)

        shutil.copytree(template.directory, pair.directory, copy_function=copy)
    # Else the copy would be written out while something is measured.
    with steps.step("copy of the template: to disk"):
        for server in pair.servers:
            run("initdb", "--sync-only", f"--pgdata={server.data}")
