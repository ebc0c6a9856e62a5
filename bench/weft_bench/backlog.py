"""Backlogs that several systems drain: identical input, which is built only once per repeat.

Each pass has a data directory of a publisher that was stopped when its backlog was complete.
Every system in turn starts that publisher with its own settings, and reads from a slot of its own,
which has been there since before the backlog.  Nothing else changes the publisher meanwhile.

- "first" is a copy of the template, with a publication, slots, and then the backlog.
- "later" is a copy of "first", vacuumed, with new slots, and then another backlog.
- "standby-first" and "standby-later" are copies from just before it, if there is a standby.

The slots that no system has used yet keep the WAL that they need.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from .arguments import Options
from .confirmed import durable_mark
from .errors import BenchError
from .load import run_load
from .pair import Pair, copy_data
from .progress import Steps
from .server import Fingerprint, Server
from .systems.base import System
from .systems.native import publish

# Bytes of WAL between the creation of a slot and the backlog, which a restart and another system's
# slots take.
NEAR = 1_000_000


@dataclass(frozen=True)
class Backlog:
    """What pgbench has written.  Positions in the WAL are those before the first transaction, and
    after the mark that is committed behind the last; its contents are known if it is shared."""

    transactions: int
    # How long pgbench took.
    seconds: float
    start: int
    end: int
    mark: int
    # A position before the commit record of the mark.
    position: str
    contents: Fingerprint | None = None

    @property
    def rate(self) -> float:
        return self.transactions / self.seconds


def build_backlog(
    pair: Pair, options: Options, script: Path | None, seed: int, steps: Steps
) -> Backlog:
    """On the publisher, which runs."""
    start = pair.publisher.wal_position()
    with steps.step("backlog by pgbench", total=options.transactions) as step:
        began = time.monotonic()
        transactions = run_load(
            pair.publisher, options.clients[0], ("-t", str(options.transactions_per_client)), seed,
            step.at, durable=False, script=script,
        )  # fmt: skip
        seconds = time.monotonic() - began
    mark, position = durable_mark(pair)
    return Backlog(
        transactions, seconds, start, pair.publisher.wal_position(), mark, position
    )  # fmt: skip


def seed_of(repeat: int, pass_: str) -> int:
    return 2 * repeat + (pass_ == "later")


@dataclass
class Shared:
    """The backlogs of one repeat."""

    directory: Path
    # Those that share them.
    systems: list[System]
    options: Options
    repeat: int
    passes: tuple[str, ...]
    prewarm: bool
    # The publisher's, without those of any system.
    settings: dict[str, object]
    steps: Steps

    def __post_init__(self) -> None:
        self.built: dict[str, Backlog] = {}

    def data(self, pass_: str) -> Path:
        return self.directory / pass_

    def standby_data(self, pass_: str) -> Path:
        """Of the publisher before the backlog."""
        return self.directory / f"standby-{pass_}"

    def publisher(self, pair: Pair, pass_: str) -> Server:
        """Its server, at the place of the pair's."""
        known = pair.publisher
        return Server(known.name, self.data(pass_), known.socket, pair.build, known.place)

    def build(self, template: Pair, pair: Pair) -> None:
        """All of them, unless that has been done.  While it runs, the publisher is the pair's, so
        that it is stopped with it; afterwards no publisher runs."""
        if len(self.built) == len(self.passes):
            return
        self.built.clear()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        script = None
        if pair.contents.script is not None:
            script = self.directory / "load.sql"
            script.write_text(pair.contents.script)
        label = self.steps.label
        source = template.publisher.data
        for pass_ in self.passes:
            self.steps.now(f"backlog of the {pass_} pass, repeat {self.repeat}")
            pair.publisher = self.publisher(pair, pass_)
            copy_data(pair.publisher, {self.data(pass_): source}, source.name, self.steps)
            self.built[pass_] = self.build_pass(pair, pass_, script)
            source = self.data(pass_)
        self.steps.now(label)

    def build_pass(self, pair: Pair, pass_: str, script: Path | None) -> Backlog:
        publisher, steps = pair.publisher, self.steps
        with steps.step("publisher and slots"):
            special: dict[str, object] = {}
            for system in self.systems:
                special.update(system.reserve_settings(pair.build))
            publisher.start({**self.settings, **special})
            if pass_ == self.passes[0]:
                publish(publisher)
            publisher.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            )
            publisher.vacuum_and_checkpoint(pair.contents.tables)
            for system in self.systems:
                system.reserve(publisher)
            publisher.stop()
        if any(system.name == "physical" for system in self.systems):
            copy_data(
                publisher, {self.standby_data(pass_): publisher.data}, "the publisher", steps
            )  # fmt: skip
        with steps.step("publisher"):
            publisher.start(self.settings)
            if self.prewarm:
                publisher.prewarm(pair.contents.tables)
        backlog = build_backlog(pair, self.options, script, seed_of(self.repeat, pass_), steps)
        with steps.step("contents read"):
            contents = publisher.fingerprint(pair.contents.all_tables)
        with steps.step("publisher stopped"):
            publisher.stop()
        return Backlog(**{**vars(backlog), "contents": contents})

    def take_standby(self, pass_: str, standby: Server) -> None:
        """Puts it where the standby has its data.  A copy, like the data of other subscribers: what
        has lain for minutes may have left the memory, such as the files for the WAL to come.  It
        cannot be used again."""
        if not self.standby_data(pass_).exists():
            raise BenchError("there is no standby for this publisher")
        shutil.rmtree(standby.data, ignore_errors=True)
        copy_data(standby, {standby.data: self.standby_data(pass_)}, "the standby", self.steps)
        shutil.rmtree(self.standby_data(pass_))

    def check_slot(self, publisher: Server, slot: str | None, pass_: str) -> None:
        """A system must neither find its slot moved on, nor read what was written before."""
        (distance,) = publisher.execute(
            "SELECT %s - (coalesce(confirmed_flush_lsn, restart_lsn) - '0/0'::pg_lsn) "
            "FROM pg_replication_slots WHERE slot_name = %s",
            [self.built[pass_].start, slot],
        )[0]
        if not 0 <= distance <= NEAR:
            raise BenchError(f"slot {slot} is {distance} bytes before the backlog")

    def freshen(self, publisher: Server) -> None:
        """As if no other system had read from it.  Decoding writes the state of transactions to
        files, where no other system has done it yet; each begins where nothing is in progress, so
        none needs those of another."""
        for file in (publisher.data / "pg_logical" / "snapshots").glob("*.snap"):
            file.unlink()
        publisher.read_wal()

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
