"""One system in one repeat of a scenario, on a fresh pair of servers."""

from __future__ import annotations

from typing import Any

from ..arguments import Options
from ..contents import Contents
from ..figures import Figure, Results
from ..pair import Pair, copy_template
from ..progress import Steps
from ..systems.base import System
from ..watch import Watch

COMMON = {
    "autovacuum": "off",
    "checkpoint_timeout": "30min",
    "jit": "off",
    "max_wal_size": "8GB",
    # Segments to be used again: else the first pass alone would pay for making them.
    "min_wal_size": "1GB",
    "shared_buffers": "1GB",
}
PUBLISHER = {**COMMON, "wal_level": "logical", "max_worker_processes": 96}
# Processes enough for any number of writers.
SUBSCRIBER = {
    **COMMON,
    "wal_level": "logical",
    "max_worker_processes": 96,
    "max_logical_replication_workers": 16,
}


class Scenario:
    publisher = PUBLISHER
    subscriber = SUBSCRIBER
    prewarm = True
    # What the figures that it is about are called, and what one of them means.
    headline = ""
    unit = ""

    def __init__(
        self, options: Options, system: System, repeat: int, pair: Pair, results: Results,
        steps: Steps,
    ):  # fmt: skip
        self.options = options
        self.system = system
        self.repeat = repeat
        self.pair = pair
        self.results = results
        self.steps = steps

    @staticmethod
    def passes(options: Options) -> int:
        """How many times something is measured on one pair."""
        return 1

    @staticmethod
    def disk_needed(options: Options, contents: Contents) -> int:
        """A rough upper bound: template and copy, both sides, and the WAL."""
        wal = 1_100_000_000
        return 2 * (2 * (contents.disk() + wal)) + 2_000_000_000

    def start(self, template: Pair) -> None:
        copy_template(template, self.pair, self.system.sources, self.steps)
        with self.steps.step("servers"):
            self.system.start(self.pair, self.publisher, self.subscriber)
        if self.prewarm:
            with self.steps.step("tables read into the buffers"):
                self.pair.prewarm()

    def connect(self) -> None:
        if self.system.has_subscriber:
            with self.steps.step("replication is set up"):
                self.system.prepare(self.pair)
                self.system.connect(self.pair)
                self.pair.wait_for_mark(self.pair.mark())

    def settle(self) -> None:
        """Vacuum and checkpoint, and the subscriber up to date again."""
        with self.steps.step("vacuum and checkpoint"):
            self.pair.vacuum_and_checkpoint()
            if self.system.has_subscriber:
                self.pair.wait_for_mark(self.pair.mark())

    def verify(self) -> None:
        if not self.system.has_subscriber:
            return
        with self.steps.step("contents compared"):
            remark = self.system.verify(self.pair, self.options.scenario)
            if remark:
                self.steps.say(f"  {self.steps.label}: {remark}")
            self.pair.compare()

    def run(self) -> None:
        """Measures, verifies and records."""
        raise NotImplementedError

    def watch(self) -> Watch:
        return Watch(self.pair)

    def figure(
        self, metric: str, unit: str, value: float, process: str | None = None,
        clients: int | None = None, pass_: str | None = None,
    ) -> Figure:  # fmt: skip
        return Figure(
            self.options.scenario, self.system.name, self.pair.build.version, clients,
            self.system.writers, pass_, self.repeat, metric, unit, value, process,
            self.options.variant,
        )  # fmt: skip

    def used(self, watch: Watch, transactions: int, unit: str = "us", **where: Any) -> list[Figure]:
        """Processor time and memory."""
        return [
            *(
                self.figure("cpu_us_per_txn", unit, time / transactions, process, **where)
                for process, time in sorted(watch.microseconds().items())
            ),
            self.figure(
                "peak_mb", "MB", watch.peak_mb() + self.system.shared_mb(self.pair), **where
            ),
        ]

    def record(self, figures: list[Figure]) -> None:
        self.results.add(figures)
        shown = next((f for f in figures if f.metric == self.headline), figures[0])
        self.steps.say(
            f"[bold green]{self.options.scenario}[/] {self.steps.label}: "
            f"[bold]{shown.formatted}[/] {shown.unit}"
        )
