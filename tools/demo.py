"""Weft at work: a live load, and then the same work done by PostgreSQL alone and with Weft.

Started by "make demo" through setup.sh, or from the package weft-cli.  KEEP=1 leaves the servers
running.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
from demo_common import Server, compare, console, heading, main, offer_plugin, paragraph, run, step
from demo_contest import (
    COPIED_ROWS,
    LARGE_ROWS,
    LOAD_PROCEDURE,
    MORE_TABLES,
    PUBLISHED,
    Contest,
    make_contenders,
)
from demo_live import SUBSCRIPTION, SnapshotChecker, pgbench, watch
from demo_place import DOCS, FROM_SOURCE, command, commands, other_major
from rich.table import Table

SCALE = 10
CLIENTS = 4
LIVE_SECONDS = 10
# Seconds after which no further comparison begins, so that a slow machine ends in time, too.
LAST_START = 66
# The share of the processors' time that must be unused before each measurement.
IDLE = 0.8

PUBLISHER_SETTINGS = """
    wal_level = logical
    shared_preload_libraries = 'weft'
    """
SUBSCRIBER_SETTINGS = """
    max_worker_processes = 32
    max_logical_replication_workers = 8
    """
WEFT = "shared_preload_libraries = 'weft'"

OTHERS = """\
Other programs were using this machine: before one of the measurements, it was only {idle} idle. \
Do not trust the factors."""

MEASURED = """\
Measured once, on {processors} processors: the time from ALTER SUBSCRIPTION … ENABLE, or CREATE \
SUBSCRIPTION, until the last row was visible. All three subscribers began as copies of one data \
directory, with the same settings: fsync = on, autovacuum = off, and in the subscription \
binary = true, streaming = parallel. They ran one after the other. "Both servers": the \
publisher, too, has loaded Weft, and sends batches. Weft commits neighbouring transactions \
together, and leaves out an update if a later one of the same row shares its commit. \
{docs}/benchmarks.md has longer measurements, and what they depend on."""

TO_TRY = """\
To try on weft_both:
  TABLE weft.stat_subscription;
  DELETE FROM pgbench_tellers WHERE tid = 7;   -- which the publisher still has
  CALL weft.compare_subscription('weft_demo');
  TABLE weft.difference;
{where}:
  weft doctor -h {directory}/weft_both -p 5432 -U postgres
To have something to apply:
  pgbench -h {directory}/publisher -p 5432 -U postgres -T 9 postgres"""

WEFT_COMMAND = (
    "In this folder, after pipx install './cli[binary]'" if FROM_SOURCE else "In the shell"
)


def to_try(directory: Path) -> str:
    return TO_TRY.format(directory=directory, where=WEFT_COMMAND)


def to_type_next() -> str:
    lines = [
        (command("demo", KEEP="1"), "the same; afterwards the servers are yours to try"),
        (command("demo-group"), "three servers that all accept writes; one is cut off"),
    ]
    if major := other_major():
        lines.append((command("demo", PG=major), f"the same with PostgreSQL {major}"))
    readme = 'with "Install" and "Use" in README.md' if FROM_SOURCE else f"with {DOCS}/install.md"
    return f"{commands(*lines)}\nFor servers of your own, go on {readme}."


def set_up(publisher: Server, subscriber: Server) -> psycopg.Connection[Any]:
    scale = ("-s", str(SCALE), "postgres")
    with step(f"two servers, {run('pg_config', '--version').strip()}"):
        for server in (publisher, subscriber):
            server.create()
            server.start()
    with step(f"pgbench's tables, {SCALE * 100_000:,} accounts"):
        run("pgbench", *publisher.socket_options, "-i", "-q", *scale)
        run("pgbench", *subscriber.socket_options, "-i", "-q", "-I", "dtp", *scale)

    connection = subscriber.connect()
    with step("CREATE PUBLICATION, CREATE SUBSCRIPTION, initial copy"):
        connection.execute(MORE_TABLES)
        with publisher.connect() as there:
            there.execute(MORE_TABLES)
            there.execute(LOAD_PROCEDURE)
            there.execute(f"CREATE PUBLICATION weft_demo FOR TABLE {', '.join(PUBLISHED)}")
        connection.execute("CREATE EXTENSION weft")
        # With these options, PostgreSQL alone is fastest, too.
        connection.execute(
            f"CREATE SUBSCRIPTION {SUBSCRIPTION} CONNECTION '{publisher.conninfo}' "
            "PUBLICATION weft_demo WITH (binary = true, streaming = parallel)"
        )
        connection.execute("SELECT weft.wait_for_subscription(%s, '60s')", [SUBSCRIPTION])
    return connection


def show_live(publisher: Server, subscriber: Server, connection: psycopg.Connection[Any]) -> None:
    checker = SnapshotChecker(subscriber)
    checker.start()
    with (
        step(f"pgbench with {CLIENTS} clients for {LIVE_SECONDS} s"),
        publisher.connect() as there,
        pgbench(publisher, CLIENTS, LIVE_SECONDS, "-M", "prepared") as load,
    ):
        watch(load, there, connection, SUBSCRIPTION, checker)
    transactions = load.transactions()
    start = time.monotonic()
    connection.execute("SELECT weft.wait_for_subscription(%s, '120s')", [SUBSCRIPTION])
    catch_up = time.monotonic() - start
    checker.finish()
    console.print(
        f"  {transactions:,} transactions; {catch_up:.2f} s after the last one, the subscriber "
        f"had them all.\n  A reader there took {checker.checked} snapshots meanwhile. "
        "All were consistent."
    )


def factors(contest: Contest) -> Table:
    table = Table(title="How many times as fast as PostgreSQL alone", title_justify="left")
    table.add_column()
    for contender in contest.contenders[1:]:
        table.add_column(contender.name, justify="right")
    for race in contest.races:
        table.add_row(race.work.title, *(f"{race.factor(run):.1f}" for run in race.runs[1:]))
    return table


def show_result(publisher: Server, contest: Contest) -> None:
    servers = [publisher, *(contender.server for contender in contest.contenders)]
    with step("every row of every table compared, by its hash, on all four servers"):
        rows = compare(servers, contest.tables)
    for table, count in rows.items():
        if count:
            console.print(f"  {table:<16} equal, {count:>9,} rows")
    console.print()
    console.print(factors(contest))
    if contest.idle < IDLE:
        warning = OTHERS.format(idle=f"{contest.idle:.0%}")
        paragraph(warning, "bold yellow")
    paragraph(MEASURED.format(processors=os.cpu_count(), docs=DOCS), "dim")


def demo(publisher: Server, subscriber: Server, *copies: Server) -> None:
    start = time.monotonic()
    heading("1. Live", "pgbench writes to a publisher, and a subscriber with Weft follows.")
    connection = set_up(publisher, subscriber)
    show_live(publisher, subscriber, connection)
    connection.close()

    heading(
        "2. A backlog",
        "The subscription is disabled, and the subscriber is copied twice. While all three "
        "are held back, the publisher goes on. Then they catch up, one after the other.",
    )
    with step("two copies of the subscriber, one of them without Weft"):
        contenders = make_contenders(publisher, subscriber, copies)
    contest = Contest(publisher, contenders)
    contest.backlog(publisher.directory)
    for title, explanation, part in (
        (
            "3. A large transaction",
            f"{LARGE_ROWS:,} rows are inserted while all are held back.",
            contest.large_transaction,
        ),
        (
            "4. An initial copy",
            f"CREATE SUBSCRIPTION copies a table with {COPIED_ROWS:,} rows and four indexes.",
            contest.initial_copy,
        ),
    ):
        heading(title, explanation)
        if time.monotonic() - start > LAST_START:
            console.print("  left out, because the demo has taken more than a minute already")
        else:
            part()

    heading("5. The result")
    show_result(publisher, contest)
    if os.environ.get("KEEP"):
        contest.release()


def make_servers(directory: Path) -> list[Server]:
    plugin = offer_plugin()
    return [
        Server(directory / "publisher", PUBLISHER_SETTINGS + plugin),
        Server(directory / "weft_both", SUBSCRIBER_SETTINGS + WEFT),
        Server(directory / "postgresql_alone", SUBSCRIBER_SETTINGS),
        Server(directory / "weft_subscriber_only", SUBSCRIBER_SETTINGS + WEFT),
    ]


if __name__ == "__main__":
    sys.exit(main(make_servers, demo, to_try, to_type_next))
