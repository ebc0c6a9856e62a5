"""The scenarios drain and io-drain: how fast a backlog of transactions is applied."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import psycopg

from .arguments import PASSES, Options
from .figures import Figure, Results
from .load import run_transactions
from .pair import Pair, copy_template
from .processes import ProcessorTimes
from .progress import Steps
from .server import BenchError, Server
from .systems import Subscription

POLL_INTERVAL = 0.005
# A drain that has not moved for so long never will.
STALL_TIMEOUT = 60

COMMON = {
    "autovacuum": "off",
    "checkpoint_timeout": "30min",
    "max_wal_size": "8GB",
    # Segments to be used again: else the first pass alone would pay for making them.
    "min_wal_size": "1GB",
    "shared_buffers": "1GB",
}
PUBLISHER = {**COMMON, "wal_level": "logical"}
# Processes enough for any number of writers.
SUBSCRIBER = {
    **COMMON,
    "max_worker_processes": 96,
    "max_logical_replication_workers": 16,
}


@dataclass(frozen=True)
class DrainScenario:
    publisher: dict[str, object] = field(default_factory=lambda: PUBLISHER)
    subscriber: dict[str, object] = field(default_factory=lambda: SUBSCRIBER)
    prewarm: bool = True


SCENARIOS = {
    "drain": DrainScenario(),
    "io-drain": DrainScenario(
        subscriber={**SUBSCRIBER, "shared_buffers": "256MB", "debug_io_direct": "data"},
        prewarm=False,
    ),
}


def disk_needed(options: Options) -> int:
    """A rough upper bound: template and copy, both sides, and the WAL."""
    tables = options.scale * 16_000_000
    wal = 1_100_000_000
    # A row that is touched for the first time takes its whole page with it into the WAL.
    load = min(2 * options.transactions * 12_000, 8_000_000_000)
    return 2 * (2 * (tables + wal) + load)


def mark_end(publisher: Server) -> int:
    """Commits one more transaction; gives a position that only it ends behind.

    The end of the WAL itself would not do: it may lie behind records that are never sent.
    """
    with publisher.connect() as connection:
        position = connection.execute(
            "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"
        ).fetchone()[0]
        connection.execute(
            "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (0, 0, 0, 0, now())"
        )
    return position


class Drain:
    """One system on one fresh pair, through the first pass and perhaps a later one."""

    def __init__(self, options: Options, system: Subscription, pair: Pair, steps: Steps):
        self.options = options
        self.scenario = SCENARIOS[options.scenario]
        self.system = system
        self.pair = pair
        self.steps = steps

    def start(self, template: Pair) -> None:
        copy_template(template, self.pair, self.steps)
        with self.steps.step("servers"):
            self.pair.start(
                self.scenario.publisher, {**self.scenario.subscriber, **self.system.settings()}
            )
            self.system.prepare(self.pair)
            if self.scenario.prewarm:
                self.pair.prewarm()

    def run_pass(self, pass_: str, repeat: int) -> list[Figure]:
        with self.steps.step("vacuum and checkpoint"):
            self.system.pause(self.pair)
            self.pair.vacuum_and_checkpoint()
            self.system.skip_maintenance(self.pair)
        with self.steps.step("backlog by pgbench", total=self.options.transactions) as step:
            seed = 2 * repeat + (pass_ == "later")
            transactions = run_transactions(self.pair.publisher, self.options, seed, step.at)
            target = mark_end(self.pair.publisher)
        with self.steps.step("drain", total=100) as step:
            seconds, used = self.drain(target, step.at)
        with self.steps.step("contents compared"):
            self.system.verify(self.pair)
            self.pair.compare()

        def figure(metric: str, unit: str, value: float, process: str | None = None) -> Figure:
            return Figure(
                self.options.scenario, self.system.name, self.version(), self.options.clients,
                self.system.writers, pass_, repeat, metric, unit, value, process,
            )  # fmt: skip

        return [figure("drain_tps", "transactions/s", transactions / seconds)] + [
            figure("cpu_us_per_txn", "us", time_used / transactions, process)
            for process, time_used in sorted(used.items())
        ]

    def version(self) -> str:
        return self.pair.publisher.value(
            "SELECT split_part(current_setting('server_version'), ' ', 1)"
        )

    def drain(self, target: int, at) -> tuple[float, dict[str, float]]:
        """Lets the system go; gives the seconds until it is behind the target, and the
        microseconds of processor time by kind of process."""
        with self.pair.publisher.connect() as there, self.pair.subscriber.connect() as here:
            first = position = self.system.position(here)
            times = ProcessorTimes([there, here])
            start = moved = time.monotonic()
            self.system.resume(here)
            while True:
                before, position = position, self.system.position(here)
                now = time.monotonic()
                if position > target:
                    return now - start, times.microseconds()
                if position != before:
                    moved = now
                    at(100 * (position - first) / (target - first))
                elif now - moved > STALL_TIMEOUT:
                    raise BenchError(f"nothing was applied for {STALL_TIMEOUT} s")
                time.sleep(POLL_INTERVAL)


def run_system(
    options: Options, system: Subscription, repeat: int, template: Pair, pair: Pair,
    results: Results, steps: Steps,
) -> None:  # fmt: skip
    """Takes one system through the passes; only those asked for are recorded."""
    drain = Drain(options, system, pair, steps)
    steps.now(f"{system.label}, repeat {repeat}")
    try:
        drain.start(template)
        for pass_ in passes_to_run(options):
            steps.now(f"{system.label}, repeat {repeat}, {pass_} pass")
            figures = drain.run_pass(pass_, repeat)
            if pass_ in options.passes:
                results.add(figures)
                steps.say(
                    f"[bold green]{options.scenario}[/] {steps.label}: "
                    f"[bold]{figures[0].value:,.0f}[/] transactions/s"
                )
            steps.pass_done()
    except (BenchError, psycopg.Error) as error:
        raise BenchError(f"{options.scenario}, {steps.label}: {error}") from error
    # Nobody wants this data again, so it need not be written.
    pair.stop("immediate")


def passes_to_run(options: Options) -> tuple[str, ...]:
    """A later pass needs a first one before it, whether that is asked for or not."""
    return PASSES if "later" in options.passes else PASSES[:1]


def passes_in_all(options: Options, systems: list[Subscription]) -> int:
    return options.repeats * len(systems) * len(passes_to_run(options))
