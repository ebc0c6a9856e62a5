"""The scenario sustained: what rate of transactions a subscriber can follow."""

from __future__ import annotations

import time

from ..arguments import Options
from ..contents import Contents
from ..figures import Figure
from ..load import run_load
from .base import Scenario


class Sustained(Scenario):
    headline = "sustained_tps"

    @staticmethod
    def passes(options: Options) -> int:
        return len(options.clients)

    @staticmethod
    def disk_needed(options: Options, contents: Contents) -> int:
        # Before each number of clients there is a checkpoint, so the WAL does not add up.
        load = min(options.seconds * 20_000 * 3_000, 10_000_000_000)
        return Scenario.disk_needed(options, contents) + 2 * load

    def run(self) -> None:
        self.connect()
        label = self.steps.label
        for clients in self.options.clients:
            self.steps.now(f"{label}, {clients} clients")
            self.run_clients(clients)
            self.steps.passes_done()

    def run_clients(self, clients: int) -> None:
        pair, seconds = self.pair, self.options.seconds
        self.settle()
        with self.watch() as watch:
            with self.steps.step("pgbench", total=seconds) as step:
                start = time.monotonic()

                def at(_done: float) -> None:
                    step.at(time.monotonic() - start)
                    watch.look()

                transactions = run_load(
                    pair.publisher, clients, ("-T", str(seconds)), clients * 100 + self.repeat, at
                )
                end = time.monotonic()
            caught_up = end
            if self.system.has_subscriber:
                with self.steps.step("catching up", total=100) as step:
                    caught_up = pair.wait_for_mark(pair.mark(), step.at, watch.look)
            used = self.used(watch, transactions, clients=clients)
        self.verify()
        catch_up = caught_up - end

        def figure(metric: str, unit: str, value: float) -> Figure:
            return self.figure(metric, unit, value, clients=clients)

        self.record(
            [
                figure("sustained_tps", "transactions/s", transactions / (seconds + catch_up)),
                figure("publisher_tps", "transactions/s", transactions / seconds),
                figure("catch_up_s", "s", catch_up),
                *used,
            ]
        )
