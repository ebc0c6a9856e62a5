"""The scenarios drain and io-drain: how fast a backlog of transactions is applied."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..arguments import PASSES, Options
from ..contents import Contents, Report
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
        clients = options.clients[0]
        with self.steps.step("backlog by pgbench", total=options.transactions) as step:
            start = time.monotonic()
            transactions = run_load(
                pair.publisher, clients, ("-t", str(options.transactions_per_client)),
                2 * self.repeat + (pass_ == "later"), step.at,
                durable=False, script=self.script(),
            )  # fmt: skip
            published = time.monotonic() - start
            mark = pair.mark()
        where: dict[str, Any] = {"clients": clients, "pass_": pass_}
        figures = [
            self.figure("publisher_tps", "transactions/s", transactions / published, **where)
        ]
        if system.has_subscriber:
            with self.steps.step("drain", total=100) as step, self.watch() as watch:
                seconds = self.drain(mark, step.at, watch)
                figures += self.used(watch, transactions, **where)
            self.verify()
            figures.insert(
                0, self.figure("drain_tps", "transactions/s", transactions / seconds, **where)
            )
        if pass_ in options.passes:
            self.record(figures)

    def script(self) -> Path | None:
        script = self.pair.contents.script
        if script is None:
            return None
        file = self.pair.directory / "load.sql"
        file.write_text(script)
        return file

    def drain(self, mark: int, at: Report, watch: Watch) -> float:
        """Lets the system go; starting its processes is part of the time."""
        with self.pair.subscriber.connect() as here:
            start = time.monotonic()
            self.system.resume(self.pair, here)
            return self.pair.wait_for_mark(mark, at, watch.look) - start


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
