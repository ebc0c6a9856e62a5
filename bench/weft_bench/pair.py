"""A publisher and a subscriber, and the templates that every measurement starts from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from .build import Build
from .contents import MARKS, Contents
from .daemon import Daemon
from .errors import BenchError
from .place import Places
from .progress import Steps
from .server import Fingerprint, Server, at_once, value_of

# Without any progress for this long, assume that there will be none.
STALL_TIMEOUT = 60
# Even if there is progress, a system that takes this long has failed.
ABSOLUTE_TIMEOUT = 3600
POLL_INTERVAL = 0.005
LOOK_INTERVAL = 0.5


class Pair:
    """Both servers, and the daemons that replicate between them.  All pairs use the same
    sockets, so only one pair runs at a time."""

    def __init__(
        self, directory: Path, sockets: Path, build: Build, contents: Contents,
        places: Places | None = None,
    ):  # fmt: skip
        places = places or Places()
        self.directory = directory
        self.build = build
        self.contents = contents
        self.publisher, self.subscriber, self.third = (
            Server(name, directory / name, sockets / name, build, place)
            for name, place in (
                ("publisher", places.publisher),
                ("subscriber", places.subscriber),
                # Only a group of three has it.
                ("third", places.subscriber),
            )
        )
        self.daemons: list[Daemon] = []
        self.marks = 0
        # The servers that clients write to.
        self.written: tuple[Server, ...] = (self.publisher,)

    @property
    def servers(self) -> tuple[Server, ...]:
        return (self.publisher, self.subscriber)

    @property
    def all_servers(self) -> tuple[Server, ...]:
        return (*self.servers, self.third)

    def start_daemon(self, kind: str, *command: str) -> Daemon:
        log = self.directory / f"{kind}.log"
        daemon = Daemon(kind, command, self.build.environment, log)
        self.daemons.append(daemon)
        return daemon

    def stop_daemon(self, daemon: Daemon) -> None:
        daemon.stop()
        self.daemons.remove(daemon)

    def check_daemons(self) -> None:
        for daemon in self.daemons:
            daemon.check()

    def running(self) -> list[Server]:
        return [server for server in self.all_servers if server.running]

    def stop(self, mode: str = "fast") -> None:
        for daemon in list(self.daemons):
            self.stop_daemon(daemon)
        # The subscriber first, so that no walsender delays the publisher's shutdown.
        for server in reversed(self.all_servers):
            server.stop(mode)

    def abandon(self) -> None:
        for daemon in self.daemons:
            daemon.stop()
        self.daemons.clear()
        for server in reversed(self.all_servers):
            server.abandon()

    def vacuum_and_checkpoint(self) -> None:
        """A standby follows its publisher: its restartpoint needs a checkpoint that it has
        replayed, and determines how many WAL segments are recycled."""
        tables = self.contents.tables
        if not (self.subscriber.running and self.subscriber.is_standby()):
            at_once(*(lambda s=s: s.vacuum_and_checkpoint(tables) for s in self.running()))
            return
        self.publisher.vacuum_and_checkpoint(tables)
        end = self.publisher.value("SELECT pg_current_wal_flush_lsn()::text")
        wait_until(
            lambda: self.subscriber.value("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [end]),
            "the standby does not replay its publisher's checkpoint",
        )
        self.subscriber.execute("CHECKPOINT")

    def prewarm(self) -> None:
        tables = self.contents.tables
        at_once(*(lambda s=s: s.prewarm(tables) for s in self.running()))

    def mark(self, server: Server | None = None) -> int:
        """Commits one more row, which arrives after everything before it."""
        self.marks += 1
        with (server or self.publisher).connect() as connection:
            # Even if the publisher waits for its subscriber otherwise.
            connection.execute("SET synchronous_commit = local")
            connection.execute(f"INSERT INTO {MARKS} VALUES ({self.marks})")
        return self.marks

    def catch_up(
        self, at: Callable[[float], None] = lambda _: None, look: Callable[[], None] = lambda: None
    ) -> float:
        """Returns the time at which all servers have what was committed on any."""
        marks = [(server, self.mark(server)) for server in self.written]
        return max(
            self.wait_for_mark(mark, at, look, there, here)
            for there, mark in marks for here in self.running() if here is not there
        )  # fmt: skip

    def wait_for_mark(
        self, mark: int, at: Callable[[float], None] = lambda _: None,
        look: Callable[[], None] = lambda: None, written: Server | None = None,
        server: Server | None = None,
    ) -> float:  # fmt: skip
        """Returns the time at which the mark, written on the publisher if on no other server, is
        visible on the subscriber, or that server.  "at" gets the progress in percent, "look" is
        called from time to time."""
        with (
            (written or self.publisher).connect() as there,
            (server or self.subscriber).connect() as here,
        ):
            sign = Sign(self, there, here)
            while True:
                row = here.execute(f"SELECT FROM {MARKS} WHERE id = %s", [mark]).fetchone()
                now = time.monotonic()
                if row is not None:
                    return now
                if now > sign.looked + LOOK_INTERVAL:
                    at(sign.look(now))
                    look()
                time.sleep(POLL_INTERVAL)

    def compare(self, known: Fingerprint | None = None) -> Fingerprint:
        """The speed of a system that loses or doubles a row is meaningless.  What the publisher
        has need not be read if it is known."""
        tables = self.contents.all_tables
        publisher, *servers = self.running()
        there, *others = at_once(
            lambda: known or publisher.fingerprint(tables),
            *(lambda s=s: s.fingerprint(tables) for s in servers),
        )
        for server, here in zip(servers, others):
            for table in tables:
                if there[table] != here[table]:
                    raise BenchError(
                        f"{table} differs: (rows, sum of hashes) is {there[table]} on the "
                        f"publisher, {here[table]} on the {server.name}"
                    )
        return there

    def check_indexes(self) -> None:
        """Of all but the publisher, where ordinary sessions have written them."""
        tables = self.contents.all_tables
        at_once(*(lambda s=s: s.check_indexes(tables) for s in self.running()[1:]))


class Sign:
    """Observes the progress of a subscriber that is catching up."""

    def __init__(self, pair: Pair, there: psycopg.Connection, here: psycopg.Connection):
        self.pair = pair
        self.here = here
        self.there = there
        self.seen: tuple | None = None
        self.first = self.extent(here)
        self.start = self.moved = self.looked = time.monotonic()

    def extent(self, side: psycopg.Connection) -> int:
        return int(value_of(side, self.pair.contents.extent) or 0)

    def look(self, now: float) -> float:
        """Returns the progress in percent; raises an error if there is none."""
        self.looked = now
        self.pair.check_daemons()
        extent = self.extent(self.here)
        # A standby applies WAL but writes none; and the publisher may still be writing.
        position = (
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
            "ELSE pg_current_wal_insert_lsn() END::text"
        )
        seen = (extent, *(value_of(side, position) for side in (self.there, self.here)))
        if seen != self.seen:
            self.seen = seen
            self.moved = now
        elif now - self.moved > STALL_TIMEOUT:
            raise BenchError(f"nothing was applied for {STALL_TIMEOUT} s")
        if now - self.start > ABSOLUTE_TIMEOUT:
            raise BenchError(f"gave up after {ABSOLUTE_TIMEOUT} s")
        return 100 * (extent - self.first) / max(self.extent(self.there) - self.first, 1)


def wait_until(
    condition: Callable[[], bool], what: str, timeout: float = 60, interval: float = 0.02
) -> None:
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise BenchError(f"gave up after {timeout:.0f} s: {what}")
        time.sleep(interval)


def make_template(pair: Pair, publisher: dict, subscriber: dict, steps: Steps) -> None:
    """Freshly filled tables on both sides, and no replication yet."""
    build = pair.build
    with steps.step(f"template on PostgreSQL {build.version}: two servers"):
        pair.directory.mkdir()
        for server in pair.servers:
            server.create()
        pair.publisher.start(publisher)
        pair.subscriber.start(subscriber)
    with steps.step("template: tables of the publisher", total=100) as step:
        pair.contents.create(pair.publisher, step.at, filled=True)
    with steps.step("template: tables of the subscriber", total=100) as step:
        pair.contents.create(pair.subscriber, step.at, filled=pair.contents.alike)
    with steps.step("template: WAL, vacuum, checkpoint, stop"):
        at_once(*(s.fill_wal for s in pair.running()))
        pair.vacuum_and_checkpoint()
        pair.stop()


def copy_template(template: Pair, pair: Pair, sources: dict[str, str], steps: Steps) -> None:
    """Makes each server in "sources" from the one named there in the template."""
    shutil.rmtree(pair.directory, ignore_errors=True)
    pair.directory.mkdir()
    copies = {
        pair.directory / name: template.directory / source for name, source in sources.items()
    }
    copy_data(pair.publisher, copies, "the template", steps)


def copy_data(server: Server, copies: dict[Path, Path], what: str, steps: Steps) -> None:
    """Copies data directories, from the second to the first of each pair, with the programs of
    the server.  Real copies: shared blocks would be copied while they are measured."""
    files = [path for source in copies.values() for path in source.rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    with steps.step(f"copy of {what}", total=total) as step:
        copied = 0

        def copy(source: str, target: str) -> None:
            nonlocal copied
            shutil.copy2(source, target)
            copied += Path(target).stat().st_size
            step.at(copied)

        for target_directory, source_directory in copies.items():
            shutil.copytree(source_directory, target_directory, copy_function=copy)
    # Else the copy would be written out while something is measured.
    with steps.step(f"copy of {what}: to disk"):
        for target_directory in copies:
            server.program("initdb", "--sync-only", f"--pgdata={target_directory}")
