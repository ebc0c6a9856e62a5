"""The scenarios drain and io-drain: how fast a backlog of transactions is applied."""

from __future__ import annotations

import time
from typing import Any

from ..accounts import Accounts
from ..arguments import PASSES, Options
from ..confirmed import durable_mark, wait_until_confirmed
from ..contents import Contents, Report
from ..figures import Figure
from ..load import run_load
from ..watch import Watch
from .base import SUBSCRIBER, Scenario


class Drain(Scenario):
    headline = "drain_tps"

    @staticmethod
    def passes(options: Options) -> int:
        return len(passes_to_run(options))

    @staticmethod
    def disk_needed(options: Options, contents: Contents) -> int:
        load = min(2 * options.transactions * contents.wal, 8_000_000_000)
        return Scenario.disk_needed(options, contents) + 2 * load

    def run(self) -> None:
        self.connect()
        label = self.steps.label
        for pass_ in passes_to_run(self.options):
            self.steps.now(f"{label}, {pass_} pass")
            self.run_pass(pass_)
            self.steps.passes_done()

    def run_pass(self, pass_: str) -> None:
        pair, system, options = self.pair, self.system, self.options
        self.settle()
        if system.has_subscriber:
            with self.steps.step("subscriber held back"):
                system.pause(pair)
        accounts = Accounts(pair, system.has_subscriber)
        clients = options.clients[0]
        with self.steps.step("backlog by pgbench", total=options.transactions) as step:
            start = time.monotonic()
            transactions = run_load(
                pair.publisher, clients, ("-t", str(options.transactions_per_client)),
                2 * self.repeat + (pass_ == "later"), step.at,
                durable=False, script=self.script(),
            )  # fmt: skip
            published = time.monotonic() - start
        mark, position = durable_mark(pair)
        published_wal = pair.publisher.wal_position()
        where: dict[str, Any] = {"clients": clients, "pass_": pass_}
        figures = [
            self.figure("publisher_tps", "transactions/s", transactions / published, **where)
        ]
        if system.has_subscriber:
            system.vacuum_queues(pair)
            self.observe()
            accounts.subscriber_starts()
            with self.steps.step("drain", total=100) as step, self.watch() as watch:
                start, end = self.drain(mark, step.at, watch)
                figures += [*self.observed(**where), *self.used(watch, transactions, **where)]
                figures += self.confirmed(start, position, watch, **where)
            self.verify()
            seconds = end - start
            figures = [
                self.figure("drain_tps", "transactions/s", transactions / seconds, **where),
                self.figure("drain_s", "s", seconds, **where),
                *figures,
            ]
        figures += self.costs(accounts.close(transactions, published_wal), **where)
        if pass_ in options.passes:
            self.record(figures)

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
