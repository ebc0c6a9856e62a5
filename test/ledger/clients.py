"""Clients that write to whichever of two servers accepts it, and keep a ledger.

A client tries the server that has last accepted a write.  After the fence's error, or when the
connection is lost, it tries the other one.  A transaction counts as acknowledged only after
the server has said so; as refused if it cannot have been committed; otherwise as unknown.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psycopg
from schema import PROBE, Attempt, Kind
from servers import Server

# Errors with which a side may refuse a write: the fence's; and those of a server that ends,
# starts, or has run out of connections because of clients that try again.
FENCED = {"25006"}
UNAVAILABLE = {"57P01", "57P02", "57P03", "53300", "57014", "40001", "40P01"}

# Between two attempts of a client that nobody accepts.
SHORTEST_NAP, LONGEST_NAP = 0.002, 0.03


class Client(threading.Thread):
    def __init__(self, number: int, crowd: "Clients"):
        super().__init__(daemon=True, name=f"client {number}")
        self.number = number
        self.crowd = crowd
        self.attempts: list[Attempt] = []
        self.connections: list[psycopg.Connection[Any] | None] = [None, None]
        self.side = crowd.first_side
        self.random = random.Random(number)
        self.idle = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.write_until_told()
        except BaseException as error:
            self.failure = error
        finally:
            self.idle.set()
            for side in (0, 1):
                self.disconnect(side)

    def write_until_told(self) -> None:
        kinds, weights = self.crowd.kinds, [kind.weight for kind in self.crowd.kinds]
        nap = SHORTEST_NAP
        while not self.crowd.ended.is_set():
            if self.crowd.held.is_set():
                self.idle.set()
                self.crowd.released.wait(0.5)
                continue
            self.idle.clear()
            kind = self.random.choices(kinds, weights)[0]
            attempt = Attempt(
                self.number, len(self.attempts), kind.name, self.side, time.monotonic()
            )
            self.attempts.append(attempt)
            self.try_once(kind, attempt)
            attempt.end = time.monotonic()
            if attempt.outcome == "acknowledged":
                nap = SHORTEST_NAP
                if self.crowd.think_time:
                    time.sleep(self.random.uniform(0, 2 * self.crowd.think_time))
            else:
                self.side = 1 - self.side
                time.sleep(self.random.uniform(nap / 2, nap))
                nap = min(LONGEST_NAP, nap * 1.5)

    def try_once(self, kind: Kind, attempt: Attempt) -> None:
        committing = not kind.block
        try:
            connection = self.connection(attempt.side)
        except psycopg.OperationalError:
            attempt.problem = "connect"
            return
        try:
            if kind.block:
                connection.execute("BEGIN")
            kind.run(connection, attempt)
            if kind.block:
                committing = True
                connection.execute("COMMIT")
            attempt.outcome = "acknowledged"
        except psycopg.Error as error:
            attempt.problem = error.sqlstate or "connection lost"
            # An ERROR rolls back.  A FATAL message, or none, may be all that is heard of a
            # COMMIT that has taken effect.
            if connection.closed:
                if committing:
                    attempt.outcome = "unknown"
                self.disconnect(attempt.side)
            else:
                self.judge(attempt, error)
                if kind.block:
                    self.roll_back(attempt.side)

    def judge(self, attempt: Attempt, error: psycopg.Error) -> None:
        allowed = FENCED | UNAVAILABLE
        if error.sqlstate not in allowed:
            self.crowd.unexpected.append(
                f"client {self.number}, {attempt.kind}, on side {attempt.side}:"
                f" {error.sqlstate} {str(error).splitlines()[0]}"
            )

    def roll_back(self, side: int) -> None:
        try:
            self.connection(side).execute("ROLLBACK")
        except psycopg.Error:
            self.disconnect(side)

    def connection(self, side: int) -> psycopg.Connection[Any]:
        connection = self.connections[side]
        if connection is None or connection.closed:
            connection = psycopg.connect(
                self.crowd.servers[side].conninfo + " application_name=ledger connect_timeout=10",
                autocommit=True,
            )
            connection.prepare_threshold = 2
            self.connections[side] = connection
        return connection

    def disconnect(self, side: int) -> None:
        connection, self.connections[side] = self.connections[side], None
        if connection is not None:
            connection.close()


class Clients:
    """A crowd of clients; "servers" are the two sides."""

    def __init__(
        self,
        servers: Sequence[Server],
        kinds: list[Kind],
        number: int = 16,
        think_time: float = 0.0,
        first_side: int = 0,
    ):
        self.servers = servers
        self.kinds = kinds
        self.think_time = think_time
        self.first_side = first_side
        self.ended = threading.Event()
        self.held = threading.Event()
        self.released = threading.Event()
        self.unexpected: list[str] = []
        self.clients = [Client(number, self) for number in range(number)]

    def __enter__(self) -> "Clients":
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.released.set()
        for client in self.clients:
            client.join(30)

    def hold(self) -> None:
        """Returns once every client has finished what it had begun, and none begins anything."""
        self.released.clear()
        for client in self.clients:
            client.idle.clear()
        self.held.set()
        for client in self.clients:
            if not client.idle.wait(60):
                raise TimeoutError(f"{client.name} does not finish its transaction")
            if client.failure:
                raise client.failure

    def release(self) -> None:
        self.held.clear()
        self.released.set()

    def attempts(self) -> list[Attempt]:
        return [attempt for client in self.clients for attempt in list(client.attempts)]

    def acknowledged(self, side: int | None = None, since: float = 0.0) -> int:
        return sum(
            attempt.outcome == "acknowledged"
            and attempt.end >= since
            and side in (None, attempt.side)
            for attempt in self.attempts()
        )

    def outcomes(self) -> Counter[str]:
        return Counter(attempt.outcome for attempt in self.attempts())

    def problems(self) -> Counter[str]:
        return Counter(attempt.problem for attempt in self.attempts() if attempt.problem)


PROBED = (
    f"INSERT INTO ledger.by_serial (client, n) VALUES ({PROBE}, 0)",
    f"INSERT INTO ledger.by_identity (client, n) VALUES ({PROBE}, 0)",
    f"INSERT INTO ledger.by_uuid (client, n) VALUES ({PROBE}, 0)",
    f"INSERT INTO ledger.by_list (client, n, part) VALUES ({PROBE}, 0, 1)",
    f"INSERT INTO ledger.by_list_2 (client, n, part) VALUES ({PROBE}, 0, 2)",
    f"INSERT INTO ledger.no_key (client, n) VALUES ({PROBE}, 0)",
    f"UPDATE ledger.counter SET value = value WHERE client = {PROBE}",
    f'DELETE FROM ledger."Queue ü" WHERE client = {PROBE}',
    f'UPDATE ledger."Queue ü" SET n = n + 1 WHERE client = {PROBE}',
    f"MERGE INTO ledger.counter c USING (SELECT {PROBE} AS client) s ON c.client = s.client"
    " WHEN MATCHED THEN UPDATE SET value = c.value",
    "INSERT INTO ledger.marker VALUES (gen_random_uuid())",
)


class Probe(threading.Thread):
    """Asks one side all the time whether it accepts writes.

    A write is tried, and rolled back: it must not leave anything on a side that should have
    refused it.  "accepted" has when each successful one began and ended.
    """

    def __init__(self, server: Server, interval: float = 0.003):
        super().__init__(daemon=True, name=f"probe of {server.name}")
        self.server = server
        self.interval = interval
        self.accepted: list[tuple[float, float]] = []
        self.refused: list[tuple[float, float]] = []
        self.unexpected: list[tuple[float, str]] = []
        self.ended = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        connection = None
        number = 0
        while not self.ended.wait(self.interval):
            try:
                if connection is None or connection.closed:
                    connection = psycopg.connect(
                        self.server.conninfo + " application_name=probe connect_timeout=10",
                        autocommit=True,
                    )
                number += 1
                start = time.monotonic()
                connection.execute("BEGIN")
                try:
                    connection.execute(PROBED[number % len(PROBED)])
                    self.accepted.append((start, time.monotonic()))
                except psycopg.Error as error:
                    if error.sqlstate in FENCED:
                        self.refused.append((start, time.monotonic()))
                    if error.sqlstate and error.sqlstate not in FENCED | UNAVAILABLE:
                        text = f"{self.name}: {error.sqlstate} {error}"
                        self.unexpected.append((start, text))
                connection.execute("ROLLBACK")
            except psycopg.OperationalError:
                if connection is not None:
                    connection.close()
                connection = None
            except BaseException as error:
                self.failure = error
                return

    def end(self) -> None:
        self.ended.set()
        self.join(30)


def accepts_writes(server: Server, patience: float = 120.0) -> bool:
    """Whether a server accepts each kind of write now; all or none must be accepted.

    Any error but the fence's comes after the fence.  The server may be starting.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            accepted: list[str] = []
            refused: list[str] = []
            with server.connect() as connection:
                for sql in PROBED:
                    connection.execute("BEGIN")
                    try:
                        connection.execute(sql)
                        accepted.append(sql)
                    except psycopg.Error as error:
                        if connection.closed:
                            raise
                        (refused if error.sqlstate in FENCED else accepted).append(sql)
                    connection.execute("ROLLBACK")
        except psycopg.Error:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
            continue
        if accepted and refused:
            raise AssertionError(
                f"{server.name} accepts some kinds of writes ({accepted[0]}) and refuses others"
                f" ({refused[0]})"
            )
        return bool(accepted)
