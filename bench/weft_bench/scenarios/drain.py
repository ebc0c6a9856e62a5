"""The scenarios drain and io-drain: how fast a backlog of transactions is applied."""

from __future__ import annotations

import time
from typing import Any

from ..accounts import Accounts
from ..arguments import PASSES, Options
from ..backlog import Backlog, Shared, build_backlog, seed_of
from ..confirmed import wait_until_confirmed
from ..contents import Contents, Report
from ..figures import Figure
from ..pair import Pair, copy_template
from ..watch import Watch
from .base import SUBSCRIBER, Scenario


class Drain(Scenario):
    headline = "drain_tps"
    shared: Shared | None = None

    @staticmethod
    def passes(options: Options) -> int:
        return len(passes_to_run(options))

    @staticmethod
    def disk_needed(options: Options, contents: Contents) -> int:
        """Beside template and copy, a publisher for the later pass, and perhaps a standby for each
        pass; the WAL of the backlog on each of them and on the subscriber."""
        side = contents.disk() + 1_100_000_000
        standbys = 2 if "physical" in options.systems else 0
        # No page is written as a whole more than once.
        load = min(options.transactions * contents.wal,
                   contents.disk() + options.transactions * contents.wal // 4)  # fmt: skip
        copies = (1 + standbys) * side + (4 + standbys // 2) * load
        return Scenario.disk_needed(options, contents) + copies

    def start(self, template: Pair) -> None:
        if self.shared is None:
            super().start(template)
            return
        pair = self.pair
        self.shared.build(template, pair)
        if self.system.has_subscriber:
            sources = {name: source for name, source in self.system.sources.items()
                       if (name, source) == ("subscriber", "subscriber")}  # fmt: skip
            copy_template(template, pair, sources, self.steps)
            self.start_shared(PASSES[0])
            self.note_settings()

    def start_shared(self, pass_: str) -> None:
        """The servers of a pass, and the subscriber ready to apply."""
        assert self.shared is not None
        pair, system = self.pair, self.system
        pair.publisher = self.shared.publisher(pair, pass_)
        own = self.special()
        publisher = {**self.publisher, **own, **system.publisher_settings(pair.build)}
        if "subscriber" not in system.sources.values():
            self.shared.take_standby(pass_, pair.subscriber)
        with self.steps.step("servers"):
            self.shared.freshen(pair.publisher)
            if pair.subscriber.running:
                pair.publisher.start(publisher)
            else:
                system.start_held(
                    pair, publisher,
                    {**self.subscriber, **own, **system.subscriber_settings(pair.build)},
                )  # fmt: skip
                if self.prewarm:
                    pair.subscriber.prewarm(pair.contents.tables)
            self.shared.check_slot(pair.publisher, system.slot, pass_)
            system.attach(pair)

    def run(self) -> None:
        if self.shared is None:
            self.connect()
        label = self.steps.label
        for pass_ in passes_to_run(self.options):
            self.steps.now(f"{label}, {pass_} pass")
            if self.shared is None:
                self.run_pass(pass_)
            else:
                self.run_shared_pass(pass_, self.shared)
            self.steps.passes_done()
        # The next system needs it as it is; the subscriber's data is not used again.
        self.pair.subscriber.stop("immediate")
        self.pair.publisher.stop("immediate" if self.shared is None else "fast")

    def run_pass(self, pass_: str) -> None:
        """Over a backlog of its own."""
        pair, system, options = self.pair, self.system, self.options
        self.settle()
        if system.has_subscriber:
            with self.steps.step("subscriber held back"):
                system.pause(pair)
        accounts = Accounts(pair, system.has_subscriber)
        backlog = build_backlog(
            pair, options, self.script(), seed_of(self.repeat, pass_), self.steps
        )  # fmt: skip
        figures = [self.publisher_tps(backlog, pass_)]
        if system.has_subscriber:
            system.vacuum_queues(pair)
            figures = [*self.measure(backlog, accounts, pass_), *figures]
        figures += self.costs_of(backlog, accounts, pass_)
        if pass_ in options.passes:
            self.record(figures)

    def run_shared_pass(self, pass_: str, shared: Shared) -> None:
        """The publisher alone has been measured when the backlog was built."""
        pair, system = self.pair, self.system
        backlog = shared.built[pass_]
        if not system.has_subscriber:
            wal = self.figure("publisher_wal_per_txn", "bytes",
                              (backlog.end - backlog.start) / backlog.transactions,
                              **self.where(pass_))  # fmt: skip
            self.record([self.publisher_tps(backlog, pass_), wal])
            return
        if pass_ != PASSES[0]:
            with self.steps.step("publisher replaced"):
                system.detach(pair)
                pair.publisher.stop()
            self.start_shared(pass_)
        if not pair.subscriber.is_standby():
            with self.steps.step("vacuum and checkpoint"):
                pair.subscriber.vacuum_and_checkpoint(pair.contents.tables)
        accounts = Accounts(pair, True, backlog.start)
        figures = self.measure(backlog, accounts, pass_)
        figures += self.costs_of(backlog, accounts, pass_)
        if pass_ in self.options.passes:
            self.record(figures)

    def where(self, pass_: str) -> dict[str, Any]:
        return {"clients": self.options.clients[0], "pass_": pass_}

    def publisher_tps(self, backlog: Backlog, pass_: str) -> Figure:
        return self.figure("publisher_tps", "transactions/s", backlog.rate, **self.where(pass_))

    def costs_of(self, backlog: Backlog, accounts: Accounts, pass_: str) -> list[Figure]:
        return self.costs(accounts.close(backlog.transactions, backlog.end), **self.where(pass_))

    def measure(self, backlog: Backlog, accounts: Accounts, pass_: str) -> list[Figure]:
        where = self.where(pass_)
        transactions = backlog.transactions
        self.observe()
        accounts.subscriber_starts()
        with self.steps.step("drain", total=100) as step, self.watch() as watch:
            start, end = self.drain(backlog.mark, step.at, watch)
            figures = [*self.observed(**where), *self.used(watch, transactions, **where)]
            figures += self.confirmed(start, backlog.position, watch, **where)
        self.verify(backlog.contents)
        seconds = end - start
        return [
            self.figure("drain_tps", "transactions/s", transactions / seconds, **where),
            self.figure("drain_s", "s", seconds, **where),
            *figures,
        ]

    def confirmed(self, start: float, position: str, watch: Watch, **where: Any) -> list[Figure]:
        """When the publisher knew that everything was safe on the subscriber's disk."""
        slot = self.system.slot_of(self.pair)
        if slot is None:
            return []
        with self.steps.step("until the publisher knows it"):
            end = wait_until_confirmed(self.pair, slot, position, watch.look)
        return [self.figure("confirmed_s", "s", end - start, **where)]

    def drain(self, mark: int, at: Report, watch: Watch) -> tuple[float, float]:
        """Lets the system go; starting its processes is part of the time.  Returns start and
        end."""
        with self.pair.subscriber.connect() as here:
            start = time.monotonic()
            self.system.resume(self.pair, here)
            return start, self.pair.wait_for_mark(mark, at, watch.look)


class IoDrain(Drain):
    """The subscriber reads from the disk, and the system keeps nothing for it."""

    subscriber = {  # noqa: RUF012
        **SUBSCRIBER,
        "shared_buffers": "256MB",
        "debug_io_direct": "data",
    }
    prewarm = False


def passes_to_run(options: Options) -> tuple[str, ...]:
    """A later pass needs a first one before it, whether that is asked for or not."""
    return PASSES if "later" in options.passes else PASSES[:1]
