"""The scenario sustained: what rate of transactions a subscriber can follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from ..accounts import Accounts
from ..arguments import Options
from ..contents import Contents, PgbenchContents
from ..figures import Figure
from ..load import run_load
from ..pair import wait_until
from ..server import at_once
from ..systems.base import nothing
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
        self.observe()
        accounts = Accounts(pair, self.system.has_subscriber)
        with self.watch() as watch, self.waiting_publisher():
            with self.steps.step("pgbench", total=seconds) as step:
                start = time.monotonic()

                def at(_done: float) -> None:
                    step.at(time.monotonic() - start)
                    watch.look()

                transactions = self.load(clients, clients * 100 + self.repeat, at)
                end = time.monotonic()
            caught_up = end
            if self.system.has_subscriber:
                with self.steps.step("catching up", total=100) as step:
                    caught_up = pair.catch_up(step.at, watch.look)
            used = [
                *self.observed(clients=clients), *self.used(watch, transactions, clients=clients)
            ]  # fmt: skip
        cost = accounts.close(transactions)
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
                *self.costs(cost, clients=clients),
            ]
        )

    def load(self, clients: int, seed: int, at: Callable[[float], None]) -> int:
        """Runs on each server that is written to; returns the number of transactions."""
        written = self.pair.written
        length = ("-T", str(self.options.seconds))
        if len(written) == 1:
            return run_load(written[0], clients, length, seed, at, script=self.script())
        contents = self.pair.contents
        assert isinstance(contents, PgbenchContents)
        calls = []
        for number, server in enumerate(written):
            script = self.script_file(
                f"load-{number}", contents.member_script(number, len(written))
            )
            # One of them looks at the processes of all.
            report = at if number == 0 else nothing
            calls.append(partial(run_load, server, clients, length, seed + number, report,
                                 script=script))  # fmt: skip
        return sum(at_once(*calls))

    @contextmanager
    def waiting_publisher(self) -> Iterator[None]:
        """If that is asked for, the publisher's sessions wait until the subscriber has flushed."""
        publisher, name = self.pair.publisher, self.system.synchronous_name
        waits = "publisher" in self.options.synchronous and name is not None
        if waits:
            publisher.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
            publisher.execute("SELECT pg_reload_conf()")
            wait_until(
                lambda: bool(publisher.value(
                    "SELECT coalesce(bool_or(sync_state = 'sync'), false) FROM pg_stat_replication"
                )),
                "the publisher does not take its subscriber as synchronous",
            )  # fmt: skip
        yield
        if waits:
            publisher.execute("ALTER SYSTEM RESET synchronous_standby_names")
            publisher.execute("SELECT pg_reload_conf()")
