"""The tables of the ledger, and the kinds of transactions that write them.

A transaction has a number of its client, and leaves rows from which can be told whether it
has been committed, and how many times.  Each kind but "all" and "tpcb" writes to one table in
one way, so that a fence that lets one way through is seen: another way cannot fail first.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

HOT_ROWS = 4
# Every client has rows of its own in the table of counters; the probes have some, too.
PROBE = -1

TABLES = ("by_serial", "by_identity", "by_uuid", "by_list", "no_key")

ROW = "client int NOT NULL, n int NOT NULL, wrote_at timestamptz NOT NULL DEFAULT clock_timestamp()"

# The sequence "shared" gives values to two tables and belongs to neither.
CREATE = f"""
CREATE SCHEMA ledger;
CREATE TABLE ledger.by_serial (id serial PRIMARY KEY, {ROW});
CREATE TABLE ledger.by_identity (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {ROW});
CREATE TABLE ledger.by_uuid (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), {ROW});
CREATE SEQUENCE ledger.shared CACHE 10;
CREATE TABLE ledger.by_list (
    id bigint NOT NULL DEFAULT nextval('ledger.shared'), part int NOT NULL, {ROW},
    PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE ledger.by_list_0 PARTITION OF ledger.by_list FOR VALUES IN (0);
CREATE TABLE ledger.by_list_1 PARTITION OF ledger.by_list FOR VALUES IN (1);
CREATE TABLE ledger.by_list_2 PARTITION OF ledger.by_list DEFAULT;
CREATE TABLE ledger.no_key (value bigint NOT NULL DEFAULT nextval('ledger.shared'), {ROW});
ALTER TABLE ledger.no_key REPLICA IDENTITY FULL;
CREATE TABLE ledger.counter (client int PRIMARY KEY, value bigint NOT NULL);
CREATE TABLE ledger.hot (id int PRIMARY KEY, value bigint NOT NULL);
CREATE TABLE ledger."Queue ü" (client int, n int, PRIMARY KEY (client, n));
CREATE TABLE ledger.truncated (client int, n int, PRIMARY KEY (client, n));
CREATE TABLE ledger.marker (id uuid PRIMARY KEY);
"""

FILL = f"""
INSERT INTO ledger.counter SELECT g, 0 FROM generate_series({PROBE}, 199) g;
INSERT INTO ledger.hot SELECT g, 0 FROM generate_series(0, {HOT_ROWS - 1}) g;
INSERT INTO ledger."Queue ü" VALUES ({PROBE}, 0);
"""

SEQUENCES = ("by_serial_id_seq", "by_identity_id_seq", "shared")


@dataclass
class Attempt:
    """One transaction of a client, as the client knows it."""

    client: int
    n: int
    kind: str
    side: int
    start: float
    end: float = 0.0
    # "acknowledged" by the server, "refused" (certainly not committed), or "unknown"
    outcome: str = "refused"
    returned: int | None = None
    target: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of transaction: what it runs, and which rows it leaves in TABLES."""

    name: str
    run: Callable[[Any, Attempt], None]
    weight: int = 4
    rows: dict[str, int] = field(default_factory=dict)
    # without a block, the statement's end is the commit
    block: bool = True


def inserts(table: str, columns: str = "", values: str = "") -> Callable[[Any, Attempt], None]:
    sql = f"INSERT INTO ledger.{table} (client, n{columns}) VALUES (%s, %s{values})"

    def run(connection: Any, attempt: Attempt) -> None:
        connection.execute(sql, [attempt.client, attempt.n])

    return run


def insert_by_list(connection: Any, attempt: Attempt) -> None:
    connection.execute(
        "INSERT INTO ledger.by_list (client, n, part) VALUES (%s, %s, %s)",
        [attempt.client, attempt.n, attempt.n % 4],
    )


def copy(connection: Any, attempt: Attempt) -> None:
    with (
        connection.cursor() as cursor,
        cursor.copy("COPY ledger.by_uuid (client, n) FROM STDIN") as rows,
    ):
        for _ in range(3):
            rows.write_row((attempt.client, attempt.n))


def count(connection: Any, attempt: Attempt) -> None:
    attempt.returned = connection.execute(
        "UPDATE ledger.counter SET value = value + 1 WHERE client = %s RETURNING value",
        [attempt.client],
    ).fetchone()[0]


def count_hot(connection: Any, attempt: Attempt) -> None:
    attempt.target = attempt.n % HOT_ROWS
    attempt.returned = connection.execute(
        "INSERT INTO ledger.hot AS h VALUES (%s, 1)"
        " ON CONFLICT (id) DO UPDATE SET value = h.value + 1 RETURNING value",
        [attempt.target],
    ).fetchone()[0]


def enqueue(connection: Any, attempt: Attempt) -> None:
    connection.execute('INSERT INTO ledger."Queue ü" VALUES (%s, %s)', [attempt.client, attempt.n])


def dequeue(connection: Any, attempt: Attempt) -> None:
    """Deletes the client's oldest row; the target is its number, if there was one."""
    row = connection.execute(
        'DELETE FROM ledger."Queue ü" WHERE client = %s AND n ='
        ' (SELECT min(n) FROM ledger."Queue ü" WHERE client = %s) RETURNING n',
        [attempt.client, attempt.client],
    ).fetchone()
    attempt.target = row and row[0]


def truncate(connection: Any, attempt: Attempt) -> None:
    connection.execute("TRUNCATE ledger.truncated")


def refill(connection: Any, attempt: Attempt) -> None:
    connection.execute("INSERT INTO ledger.truncated VALUES (%s, %s)", [attempt.client, attempt.n])


def everything(connection: Any, attempt: Attempt) -> None:
    for table in ("by_serial", "by_identity", "by_uuid", "no_key"):
        inserts(table)(connection, attempt)
    insert_by_list(connection, attempt)
    count(connection, attempt)


def slow(connection: Any, attempt: Attempt) -> None:
    """Is open for a while, as a transaction of a user may be when a fence is set up."""
    inserts("no_key")(connection, attempt)
    time.sleep(0.15)
    inserts("by_uuid")(connection, attempt)


def tpcb(scale: int) -> Callable[[Any, Attempt], None]:
    def run(connection: Any, attempt: Attempt) -> None:
        mixed = (attempt.client * 7919 + attempt.n) * 2654435761 % (1 << 31)
        account, teller = mixed % (100_000 * scale) + 1, mixed % (10 * scale) + 1
        branch, delta = mixed % scale + 1, mixed % 10_000 - 5_000
        for sql, parameters in (
            ("UPDATE pgbench_accounts SET abalance = abalance + %s WHERE aid = %s",
             [delta, account]),
            ("UPDATE pgbench_tellers SET tbalance = tbalance + %s WHERE tid = %s",
             [delta, teller]),
            ("UPDATE pgbench_branches SET bbalance = bbalance + %s WHERE bid = %s",
             [delta, branch]),
            ("INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)"
             " VALUES (%s, %s, %s, %s, now())", [teller, branch, account, delta]),
        ):  # fmt: skip
            connection.execute(sql, parameters)
        inserts("by_uuid")(connection, attempt)

    return run


def kinds_of(scale: int = 0) -> list[Kind]:
    kinds = [
        Kind("serial", inserts("by_serial"), rows={"by_serial": 1}, block=False),
        Kind("identity", inserts("by_identity"), rows={"by_identity": 1}),
        Kind("uuid", inserts("by_uuid"), rows={"by_uuid": 1}),
        Kind("list", insert_by_list, rows={"by_list": 1}),
        Kind("no key", inserts("no_key"), rows={"no_key": 1}, block=False),
        Kind("copy", copy, rows={"by_uuid": 3}),
        Kind("counter", count),
        Kind("hot", count_hot, block=False),
        Kind("enqueue", enqueue, block=False),
        Kind("dequeue", dequeue, weight=3),
        Kind("truncate", truncate, weight=1, block=False),
        Kind("refill", refill, weight=3, block=False),
        Kind("all", everything, rows=dict.fromkeys(TABLES, 1)),
        Kind("slow", slow, weight=1, rows={"no_key": 1, "by_uuid": 1}),
    ]
    if scale:
        kinds.append(Kind("tpcb", tpcb(scale), weight=100, rows={"by_uuid": 1}))
    return kinds


def compared_tables(scale: int = 0) -> list[str]:
    tables = [*TABLES, "counter", "hot", '"Queue ü"', "truncated", "marker"]
    pgbench = ("accounts", "branches", "tellers", "history") if scale else ()
    return [f"ledger.{table}" for table in tables] + [f"public.pgbench_{name}" for name in pgbench]
