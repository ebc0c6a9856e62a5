"""The scenario copy: the initial copy of one large table."""

from __future__ import annotations

import time

from ..accounts import Accounts
from ..arguments import Options
from ..contents import Contents
from .base import Scenario

# Often, since what copies may end soon, and then takes along what it has used.
LOOK_INTERVAL = 0.2


class Copy(Scenario):
    headline = "copy_s"

    @staticmethod
    def disk_needed(options: Options, contents: Contents) -> int:
        return Scenario.disk_needed(options, contents) + 2 * contents.disk()

    def run(self) -> None:
        with self.steps.step("replication is prepared"):
            self.system.prepare(self.pair)
        with self.steps.step("vacuum and checkpoint"):
            self.pair.vacuum_and_checkpoint()
        self.observe()
        accounts = Accounts(self.pair, self.pair.subscriber.running)
        with (
            self.steps.step(f"copy of {self.options.rows:,} rows", total=100) as step,
            self.watch() as watch,
        ):
            start = last = time.monotonic()

            def look() -> None:
                nonlocal last
                if time.monotonic() - last > LOOK_INTERVAL:
                    watch.look()
                    last = time.monotonic()

            self.system.copy(self.pair, step.at, look)
            seconds = time.monotonic() - start
            used = [*self.observed(), *self.used(watch, self.options.rows, "us/row")]
        used += self.costs(accounts.close(self.options.rows))
        self.verify()
        self.record([self.figure("copy_s", "s", seconds), *used])
        self.steps.passes_done()
