"""The scenario large: one transaction that changes millions of rows, until it is applied."""

from __future__ import annotations

import threading
import time

import psycopg

from ..accounts import Accounts
from ..contents import MARKS, LargeContents, Report
from ..pair import LOOK_INTERVAL, POLL_INTERVAL
from ..watch import Watch
from .base import Scenario


class Statement(threading.Thread):
    """The transaction, in a session of its own, so that somebody can look at the subscriber."""

    def __init__(self, connection: psycopg.Connection, statement: str, mark: int):
        super().__init__(daemon=True)
        self.connection = connection
        self.statement = statement
        self.mark = mark
        self.error: Exception | None = None
        self.ended = 0.0

    def run(self) -> None:
        try:
            with self.connection.transaction():
                self.connection.execute(self.statement)
                self.connection.execute(f"INSERT INTO {MARKS} VALUES ({self.mark})")
            self.ended = time.monotonic()
        except Exception as error:
            self.error = error


class Large(Scenario):
    headline = "applied_s"

    @property
    def synchronous(self) -> bool:
        return self.system.synchronous_name is not None

    def run(self) -> None:
        pair = self.pair
        self.connect()
        self.settle()
        if self.synchronous:
            # The publisher's session waits until the subscriber has applied and said so.
            name = self.system.synchronous_name
            pair.publisher.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
            pair.publisher.execute("SELECT pg_reload_conf()")
        self.observe()
        accounts = Accounts(pair, self.system.has_subscriber)
        total = 100 if self.system.has_subscriber and self.options.kind == "insert" else None
        with (
            self.steps.step(f"{self.options.kind} of {self.options.rows:,} rows", total) as step,
            self.watch() as watch,
        ):
            seconds = self.apply(step.at, watch)
            figures = [
                self.figure("applied_s", "s", seconds),
                *self.observed(),
                *self.used(watch, self.options.rows, "us/row"),
            ]
        if self.synchronous:
            pair.publisher.execute("ALTER SYSTEM RESET synchronous_standby_names")
            pair.publisher.execute("SELECT pg_reload_conf()")
        self.verify()
        # Per row, as its processor time is.
        self.record([*figures, *self.costs(accounts.close(self.options.rows))])
        self.steps.passes_done()

    def apply(self, at: Report, watch: Watch) -> float:
        """The time from the begin of the statement until the subscriber shows its rows and, if
        it can be waited for, the publisher's session knows that."""
        pair = self.pair
        contents = pair.contents
        assert isinstance(contents, LargeContents)
        pair.marks += 1
        with pair.publisher.connect() as session:
            wanted = "remote_apply" if self.synchronous else "on"
            session.execute(f"SET synchronous_commit = {wanted}")
            statement = Statement(session, contents.statement, pair.marks)
            start = time.monotonic()
            statement.start()
            end = start
            if self.system.has_subscriber:
                end = self.wait_for_rows(statement, at, watch)
            while statement.is_alive():
                statement.join(LOOK_INTERVAL)
                watch.look()
            if statement.error:
                raise statement.error
            return max(end, statement.ended) - start

    def wait_for_rows(self, statement: Statement, at: Report, watch: Watch) -> float:
        """Until the statement is through on the publisher there may be nothing to be seen."""
        if not self.synchronous:
            while statement.is_alive():
                statement.join(POLL_INTERVAL)
            if statement.error:
                raise statement.error
        return self.pair.wait_for_mark(statement.mark, at, watch.look)
