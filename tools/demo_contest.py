"""The same work, done by PostgreSQL alone and with Weft, from the same starting state."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from demo_common import DemoError, Server, console, readable, value_of, wait_until
from demo_live import SUBSCRIPTION, Load, pgbench, statistics
from demo_race import Bar, Contender, Race, Work, bar_grid
from rich.live import Live

BACKLOG_SECONDS = 9
LARGE_ROWS = 1_000_000
COPIED_ROWS = 600_000
LOADERS = 2

# TPC-B within the server, because clients could not fill a backlog fast enough.
LOAD_PROCEDURE = """
    CREATE PROCEDURE load_tpcb(how_many int) LANGUAGE plpgsql AS $$
    DECLARE
        branches int := (SELECT count(*) FROM pgbench_branches);
        account int; teller int; branch int; amount int;
    BEGIN
        FOR i IN 1 .. how_many LOOP
            account := random(1, branches * 100000);
            teller := random(1, branches * 10);
            branch := random(1, branches);
            amount := random(-5000, 5000);
            UPDATE pgbench_accounts SET abalance = abalance + amount WHERE aid = account;
            UPDATE pgbench_tellers SET tbalance = tbalance + amount WHERE tid = teller;
            UPDATE pgbench_branches SET bbalance = bbalance + amount WHERE bid = branch;
            INSERT INTO pgbench_history VALUES (teller, branch, account, amount, now());
            COMMIT;
        END LOOP;
    END $$"""
# The publisher need not wait for its disk here: what is measured comes later.
LOAD_SCRIPT = """
SET synchronous_commit = off;
CALL load_tpcb(500);
"""

MORE_TABLES = """
    CREATE TABLE measurements (id int PRIMARY KEY, sensor int, at timestamptz, value float8);
    CREATE TABLE milestones (name text PRIMARY KEY);
    ALTER TABLE pgbench_history REPLICA IDENTITY FULL"""  # for whoever tries an UPDATE later
PUBLISHED = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history",
             "measurements", "milestones")  # fmt: skip
LARGE_TRANSACTION = f"""
    INSERT INTO measurements
    SELECT g, g % 1000, '2026-01-01'::timestamptz + g * interval '1 s', random()
    FROM generate_series(1, {LARGE_ROWS}) g"""

COPIED_TABLE_DEFINITION = """
    CREATE TABLE orders (id bigint PRIMARY KEY, customer int, item text, placed timestamptz,
                         price numeric(10,2));
    CREATE INDEX ON orders (customer, placed);
    CREATE INDEX ON orders (item);
    CREATE INDEX ON orders (placed)"""
COPIED_TABLE_ROWS = f"""
    INSERT INTO orders
    SELECT g, random(1, 50000), md5(random(1, 20000)::text),
           '2026-01-01'::timestamptz + random(0, 20000000) * interval '1 s',
           random(1, 99999) / 100.0
    FROM generate_series(1, {COPIED_ROWS}) g"""

IS_COPIED = """
    SELECT EXISTS (SELECT FROM pg_subscription_rel
                   WHERE srrelid = 'orders'::regclass AND srsubstate = 'r')"""

# How far a contender is, as numbers that grow by a known amount.
APPLIED_POSITION = """
    SELECT remote_lsn - '0/0' FROM pg_replication_origin_status
    JOIN pg_subscription s ON external_id = 'pg_' || s.oid WHERE subname = 'weft_demo'"""
DATABASE_SIZE = "SELECT pg_database_size(current_database())"  # takes no lock on tables
WAL_POSITION = "SELECT pg_current_wal_lsn() - '0/0'"


def make_contenders(
    publisher: Server, subscriber: Server, copies: Sequence[Server]
) -> list[Contender]:
    """Makes copies of the subscriber and of its slot, so that all start from the same state.

    All are held back from then on.
    """
    native, half = copies
    weft = Contender("Weft on both servers", subscriber, SUBSCRIPTION, "weft")
    others = [
        Contender("PostgreSQL alone", native, "postgresql_alone", "pgoutput", uses_weft=False),
        Contender("Weft, subscriber only", half, "subscriber_only", "pgoutput"),
    ]
    hold_back(publisher, weft)
    with publisher.connect() as there:
        for other in others:
            there.execute(
                "SELECT pg_copy_logical_replication_slot(%s, %s, false, %s)",
                [weft.slot, other.slot, other.plugin],
            )
    subscriber.shut_down()
    for other in others:
        other.server.create_from(subscriber)
    # Otherwise, the copies would be written to disk while something is measured.
    os.sync()
    for contender in (*others, weft):
        contender.server.start()
        with contender.server.connect() as connection:
            connection.execute(
                f"ALTER SUBSCRIPTION {SUBSCRIPTION} SET (slot_name = '{contender.slot}')"
            )
    return [*others, weft]


def hold_back(publisher: Server, contender: Contender) -> None:
    with contender.server.connect() as connection:
        connection.execute(f"ALTER SUBSCRIPTION {SUBSCRIPTION} DISABLE")
    with publisher.connect() as there:
        is_free = "SELECT NOT active FROM pg_replication_slots WHERE slot_name = %s"
        wait_until("the slot is free", lambda: bool(value_of(there, is_free, contender.slot)))


def show_growth(load: Load, there: psycopg.Connection[Any], begin: Any) -> None:
    start = time.monotonic()
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while load.is_running(0.25):
            size = readable(float(value_of(there, WAL_POSITION) - begin))
            share = min((time.monotonic() - start) / BACKLOG_SECONDS, 1)
            grid = bar_grid()
            grid.add_row("  the backlog grows", Bar(share, "cyan", track=True), size)
            if console.is_terminal:
                live.update(grid, refresh=True)


class Contest:
    """Each method has the contenders do one kind of work; all must end with the same contents."""

    def __init__(self, publisher: Server, contenders: Sequence[Contender]):
        self.publisher = publisher
        self.contenders = contenders
        self.races: list[Race] = []
        self.tables = list(PUBLISHED)
        self.idle = 1.0

    def backlog(self, directory: Path) -> None:
        """Small transactions, which the subscribers get only when all are complete."""
        script = directory / "load.sql"
        script.write_text(LOAD_SCRIPT)
        count = "SELECT count(*) FROM pgbench_history"
        with self.publisher.connect() as there:
            before, begin = value_of(there, count), value_of(there, WAL_POSITION)
            with pgbench(self.publisher, LOADERS, BACKLOG_SECONDS, "-f", str(script)) as load:
                show_growth(load, there, begin)
            load.transactions()
            transactions = value_of(there, count) - before
            growth = float(value_of(there, WAL_POSITION) - begin)
        console.print(
            f"  {transactions:,} transactions, {readable(growth)} of WAL, wait on the publisher"
        )
        self.drain("a backlog", transactions, APPLIED_POSITION, growth)

    def large_transaction(self) -> None:
        with self.publisher.connect() as there:
            before = value_of(there, DATABASE_SIZE)
            there.execute(LARGE_TRANSACTION)
            growth = float(value_of(there, DATABASE_SIZE) - before)
        self.drain("a large transaction", LARGE_ROWS, DATABASE_SIZE, growth)

    def drain(self, title: str, amount: int, progress: str, growth: float) -> None:
        """Everything that the publisher has so far is applied by each contender."""
        with self.publisher.connect() as there:
            # Whoever has this transaction has everything before it.
            there.execute("INSERT INTO milestones VALUES (%s)", [title])
        begin = f"ALTER SUBSCRIPTION {SUBSCRIPTION} ENABLE"
        is_finished = f"SELECT EXISTS (SELECT FROM milestones WHERE name = '{title}')"
        self.race(
            Work(title, amount, begin, is_finished, progress, growth),
            self.check_and_hold_back,
        )

    def initial_copy(self) -> None:
        with self.publisher.connect() as there:
            before = value_of(there, DATABASE_SIZE)
            there.execute(COPIED_TABLE_DEFINITION)
            there.execute(COPIED_TABLE_ROWS)
            growth = float(value_of(there, DATABASE_SIZE) - before)
            there.execute("CREATE PUBLICATION demo_copy FOR TABLE orders")
        self.tables.append("orders")
        for contender in self.contenders:
            with contender.server.connect() as connection:
                connection.execute(COPIED_TABLE_DEFINITION)
        begin = (
            f"CREATE SUBSCRIPTION demo_copy CONNECTION '{self.publisher.conninfo}' "
            "PUBLICATION demo_copy WITH (slot_name = copy_{slot}, binary = true)"
        )
        self.race(Work("an initial copy", COPIED_ROWS, begin, IS_COPIED, DATABASE_SIZE, growth))

    def check_and_hold_back(self, contender: Contender) -> None:
        if contender.uses_weft:
            with contender.server.connect() as connection:
                plugin = statistics(connection, SUBSCRIPTION).output_plugin
            if plugin != contender.plugin:
                raise DemoError(f"{contender.name}: the publisher's plugin is {plugin}")
        hold_back(self.publisher, contender)

    def release(self) -> None:
        """From now on, all follow the publisher."""
        for contender in self.contenders:
            with contender.server.connect() as connection:
                connection.execute(f"ALTER SUBSCRIPTION {SUBSCRIPTION} ENABLE")

    def race(self, work: Work, after_run: Callable[[Contender], None] | None = None) -> None:
        def finish(contender: Contender) -> None:
            if after_run:
                after_run(contender)
            self.settle(contender.server)

        self.settle(self.publisher)
        race = Race(work, self.contenders)
        race.run(finish)
        console.print(race.result())
        self.races.append(race)

    def settle(self, server: Server) -> None:
        """Before the next run, what the server has yet to write goes to disk."""
        with server.connect() as connection:
            connection.execute("CHECKPOINT")
        self.idle = min(self.idle, idle_share(0.25))


def idle_share(seconds: float) -> float:
    """The share of all processors' time that nobody uses."""
    before = processor_times()
    time.sleep(seconds)
    spent = [after - earlier for after, earlier in zip(processor_times(), before, strict=True)]
    return (spent[3] + spent[4]) / (sum(spent) or 1)


def processor_times() -> list[int]:
    """User, nice, system, idle, iowait, irq, softirq, stolen: as in proc(5)."""
    return [int(ticks) for ticks in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
