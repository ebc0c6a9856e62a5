"""One system in one repeat of a scenario, on a fresh pair of servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..accounts import Cost
from ..arguments import Options
from ..contents import Contents
from ..figures import Figure, Results
from ..pair import Pair, copy_template
from ..progress import Steps
from ..provenance import check_settings, settings_in_force
from ..quiet import OBSERVED, Processors, Use, observe, processors_now, use_between
from ..server import Fingerprint, at_once
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
# Slots enough for all systems that share a backlog.
PUBLISHER = {
    **COMMON,
    "wal_level": "logical",
    "max_worker_processes": 96,
    "max_replication_slots": 64,
}
# For a test whether everything works: less to write and to copy.
SMOKE = {"min_wal_size": "80MB"}
SMOKE_OBSERVED = 0.1
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
    # The processors before the measurement, and when it began.
    before: Use
    began: Processors
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
            special = self.special()
            self.system.start(
                self.pair, {**self.publisher, **special}, {**self.subscriber, **special}
            )
            self.note_settings()
        if self.prewarm:
            with self.steps.step("tables read into the buffers"):
                self.pair.prewarm()

    def special(self) -> dict[str, str]:
        return SMOKE if self.options.smoke else {}

    def note_settings(self) -> None:
        """Of each system once: what the servers say, not what they were told."""
        build = self.pair.build
        check_settings(self.pair.publisher, self.system.publisher_settings(build))
        if self.pair.subscriber.running:
            check_settings(self.pair.subscriber, self.system.subscriber_settings(build))
        found = {server.name: settings_in_force(server) for server in self.pair.running()}
        self.results.note_once("in_force", f"{self.options.scenario}, {self.system.label}", found)

    def connect(self) -> None:
        if self.system.has_subscriber:
            with self.steps.step("replication is set up"):
                self.system.prepare(self.pair)
                self.system.connect(self.pair)
                self.pair.catch_up()
                if self.prewarm and self.system.copies_again:
                    self.pair.prewarm()

    def settle(self) -> None:
        """Vacuum and checkpoint, and the subscriber up to date again."""
        with self.steps.step("vacuum and checkpoint"):
            self.system.vacuum_queues(self.pair)
            self.pair.vacuum_and_checkpoint()
            if self.system.has_subscriber:
                self.pair.catch_up()
                self.system.release_wal(self.pair)

    def verify(self, known: Fingerprint | None = None) -> None:
        """The publisher's contents may be known."""
        if not self.system.has_subscriber:
            return
        with self.steps.step("contents compared, indexes checked"):
            remark = self.system.verify(self.pair, self.options.scenario)
            if remark:
                self.steps.say(f"  {self.steps.label}: {remark}")
            at_once(lambda: self.pair.compare(known), self.pair.check_indexes)

    def observe(self) -> None:
        """Just before the clock starts."""
        with self.steps.step("processors observed"):
            self.before = observe(SMOKE_OBSERVED if self.options.smoke else OBSERVED)
        if not self.before.quiet:
            self.steps.say(
                f"[yellow]{self.steps.label}: not quiet before the measurement: "
                f"{self.before.idle:.0f} % idle, {self.before.steal:.0f} % stolen[/]"
            )
        self.began = processors_now()

    def observed(self, **where: Any) -> list[Figure]:
        """Right after the clock has stopped."""
        during = use_between(self.began, processors_now())
        return [
            self.figure(metric, "%", value, **where)
            for metric, value in (
                ("idle_before", self.before.idle), ("steal_before", self.before.steal),
                ("idle_during", during.idle), ("steal_during", during.steal),
            )
        ]  # fmt: skip

    def costs(self, cost: Cost, **where: Any) -> list[Figure]:
        return [
            self.figure(metric, unit, value, **where)
            for metric, (unit, value) in cost.metrics.items()
        ]

    def script(self) -> Path | None:
        """The load, if it is not pgbench's own."""
        return self.script_file("load", self.pair.contents.script)

    def script_file(self, name: str, script: str | None) -> Path | None:
        if script is None:
            return None
        file = self.pair.directory / f"{name}.sql"
        file.write_text(script)
        return file

    def run(self) -> None:
        """Measures, verifies and records."""
        raise NotImplementedError

    def watch(self) -> Watch:
        return Watch(self.pair)

    def figure(
        self, metric: str, unit: str, value: float, process: str | None = None,
        clients: int | None = None, pass_: str | None = None, rate: int | None = None,
    ) -> Figure:  # fmt: skip
        return Figure(
            self.options.scenario, self.system.name, self.pair.build.version, clients,
            self.system.writers, pass_, self.repeat, metric, unit, value, process,
            self.options.variant, rate,
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
