"""The scenario lag: for how long a commit is not visible on the subscriber, at steady rates."""

from __future__ import annotations

import re
import threading
import time
from contextlib import ExitStack
from typing import Any

import psycopg

from ..accounts import Accounts
from ..arguments import Options
from ..contents import MARKS, Contents
from ..errors import BenchError
from ..figures import Figure
from ..load import run_load
from ..pair import ABSOLUTE_TIMEOUT
from ..ratios import percentile
from ..server import Server
from .base import PUBLISHER, SUBSCRIBER, Scenario
from .sustained import Sustained

# Between two commits that are observed, in seconds.
INTERVAL = 0.02
# The subscriber is asked this often whether it has the next one, in seconds.
RESOLUTION = 0.001
# Part of the time that is not evaluated, since connections are opened and caches filled; and the
# longest such time, in seconds.
WARM_UP, LONGEST_WARM_UP = 0.1, 10.0
# As servers are run: several checkpoints and rounds of autovacuum during a measurement.
AS_USUAL = {
    "autovacuum": "on",
    "autovacuum_naptime": "15s",
    "checkpoint_timeout": "60s",
}
PERCENTILES = {"p50": 50.0, "p95": 95.0, "p99": 99.0}

# Both run within the servers, which costs less than asking them again and again.
WRITE = f"""
DO $$
DECLARE
    due timestamptz := clock_timestamp();
BEGIN
    FOR number IN %d..%d LOOP
        INSERT INTO {MARKS} VALUES (number, clock_timestamp());
        COMMIT;
        due := due + make_interval(secs => {INTERVAL});
        PERFORM pg_sleep(greatest(extract(epoch FROM due - clock_timestamp()), 0));
    END LOOP;
END $$
"""
OBSERVE = f"""
DO $$
DECLARE
    last integer := %d;
    mark record;
BEGIN
    WHILE last < %d LOOP
        FOR mark IN
            SELECT id, clock_timestamp() - at AS lag FROM {MARKS} WHERE id > last ORDER BY id
        LOOP
            last := mark.id;
            RAISE NOTICE '%% %%', mark.id, extract(epoch FROM mark.lag);
        END LOOP;
        COMMIT;
        PERFORM pg_sleep({RESOLUTION});
    END LOOP;
END $$
"""


class Session(threading.Thread):
    """A statement in a session of its own; collects what it says."""

    def __init__(self, server: Server, statement: str):
        super().__init__(daemon=True)
        self.connection = server.connect()
        # The table is small, and grows.
        self.connection.execute("SET enable_seqscan = off")
        self.statement = statement
        self.said: list[str] = []
        self.error: Exception | None = None
        self.connection.add_notice_handler(self.notice)

    def notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self.said.append(diagnostic.message_primary or "")

    def run(self) -> None:
        try:
            self.connection.execute(self.statement)
        except Exception as error:
            self.error = error

    def finish(self) -> None:
        self.join(ABSOLUTE_TIMEOUT)
        if self.is_alive():
            raise BenchError(f"gave up after {ABSOLUTE_TIMEOUT} s: marks do not arrive")
        if self.error:
            raise self.error

    def end(self) -> None:
        """In any case."""
        if self.is_alive():
            self.connection.cancel()
            self.join(10)
        self.connection.close()


def parse_samples(said: list[str], first: int, last: int) -> dict[int, float]:
    """Seconds by mark; other lines and marks are ignored."""
    samples = {}
    for line in said:
        found = re.fullmatch(r"(\d+) (-?[\d.]+)", line)
        if found and first <= int(found[1]) <= last:
            samples[int(found[1])] = float(found[2])
    return samples


def evaluate(samples: dict[int, float], first: int, skipped: int) -> dict[str, float]:
    """Milliseconds by name; "end" is the median of the last tenth, which shows a subscriber that
    falls behind."""
    lags = [lag * 1000 for mark, lag in sorted(samples.items()) if mark >= first + skipped]
    if not lags:
        raise BenchError("no commit was observed")
    return {
        **{name: percentile(lags, percent) for name, percent in PERCENTILES.items()},
        "max": max(lags),
        "end": percentile(lags[-max(len(lags) // 10, 1) :], 50),
    }


class Lag(Scenario):
    headline = "lag_p99_ms"
    publisher = {**PUBLISHER, **AS_USUAL}  # noqa: RUF012
    subscriber = {**SUBSCRIBER, **AS_USUAL}  # noqa: RUF012

    @staticmethod
    def passes(options: Options) -> int:
        return len(options.steps)

    @staticmethod
    def disk_needed(options: Options, contents: Contents) -> int:
        return Sustained.disk_needed(options, contents)

    def run(self) -> None:
        self.connect()
        label = self.steps.label
        for step in self.options.steps:
            self.steps.now(f"{label}, {int(step):,} transactions/s")
            self.run_step(int(step))
            self.steps.passes_done()

    def run_step(self, rate: int) -> None:
        pair, seconds = self.pair, self.options.seconds
        clients = self.options.clients[0]
        where: dict[str, Any] = {"clients": clients, "rate": rate}
        self.settle()
        self.observe()
        accounts = Accounts(pair, self.system.has_subscriber)
        first = pair.marks + 1
        pair.marks += max(int(seconds / INTERVAL), 1)
        last = pair.marks
        with ExitStack() as sessions, self.watch() as watch:
            observer = Session(pair.subscriber, OBSERVE % (first - 1, last))
            sessions.callback(observer.end)
            writer = Session(pair.publisher, WRITE % (first, last))
            sessions.callback(writer.end)
            observer.start()
            writer.start()
            with self.steps.step("pgbench", total=seconds) as step:
                start = time.monotonic()

                def at(_done: float) -> None:
                    step.at(time.monotonic() - start)
                    watch.look()

                transactions = run_load(
                    pair.publisher, clients, ("-T", str(seconds), "-R", str(rate)),
                    100 + self.repeat, at, script=self.script(),
                )  # fmt: skip
                end = time.monotonic()
            with self.steps.step("catching up", total=100) as step:
                caught_up = pair.catch_up(step.at, watch.look)
            writer.finish()
            observer.finish()
            used = [*self.observed(**where), *self.used(watch, transactions, **where)]
        cost = accounts.close(transactions)
        self.verify()
        warm_up = min(WARM_UP * seconds, LONGEST_WARM_UP)
        lags = evaluate(parse_samples(observer.said, first, last), first, int(warm_up / INTERVAL))
        self.record(
            [
                *(self.figure(f"lag_{name}_ms", "ms", lag, **where) for name, lag in lags.items()),
                self.figure("publisher_tps", "transactions/s", transactions / seconds, **where),
                self.figure("catch_up_s", "s", caught_up - end, **where),
                *used,
                *self.costs(cost, **where),
            ]
        )


class NativeLimit(Lag):
    """The rate that a native subscription follows under the same conditions, with as many
    transactions as the publisher can do."""

    headline = "native_limit_tps"

    @staticmethod
    def passes(options: Options) -> int:
        return 1

    def run(self) -> None:
        self.connect()
        self.settle()
        seconds = min(self.options.seconds, 60)
        clients = self.options.clients[0]
        with self.steps.step("what native follows", total=seconds) as step:
            transactions = run_load(
                self.pair.publisher, clients, ("-T", str(seconds)), 99, lambda _: None,
                script=self.script(),
            )  # fmt: skip
            step.at(seconds)
            end = time.monotonic()
            behind = self.pair.catch_up() - end
        figure: Figure = self.figure(
            "native_limit_tps", "transactions/s", transactions / (seconds + behind),
            clients=clients,
        )  # fmt: skip
        self.record([figure])
        self.steps.passes_done()


def absolute(steps: tuple[str, ...], limit: float | None) -> tuple[str, ...]:
    """Rates as numbers; percentages are of the limit."""
    found = []
    for step in steps:
        if step.endswith("%"):
            assert limit is not None
            step = str(max(round(limit * float(step[:-1]) / 100), 1))
        found.append(step.replace("_", ""))
    return tuple(dict.fromkeys(found))
