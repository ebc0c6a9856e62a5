#!/usr/bin/env python
"""A node group at work: servers that all accept writes, one that joins under load, one that parts.

Started by "make demo-group" through setup.sh.  KEEP=1 leaves the servers running.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demo_common import DemoError, Server, console, fingerprint, main, row_of, run, step
from rich.table import Table

GROUP = "demo"
SCALE = 2
CLIENTS = 2
SECONDS = 15
RATE = 300  # transactions/s on each member: three servers share this machine
WRITERS = 3
TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history", "notes")

SETTINGS = f"""
    wal_level = logical
    track_commit_timestamp = on
    shared_preload_libraries = 'weft'
    weft.writers_per_subscription = {WRITERS}
    max_worker_processes = 48
    max_logical_replication_workers = 12
    max_replication_slots = 12
    max_wal_senders = 12
    """

# The balances are counters: concurrent additions by several members add up.
COUNTERS = {
    "pgbench_accounts": "abalance",
    "pgbench_branches": "bbalance",
    "pgbench_tellers": "tbalance",
}

BALANCES = """
    SELECT (SELECT sum(abalance) FROM pgbench_accounts) AS accounts,
           (SELECT sum(bbalance) FROM pgbench_branches) AS branches,
           (SELECT sum(tbalance) FROM pgbench_tellers) AS tellers,
           (SELECT sum(delta) FROM pgbench_history) AS history,
           (SELECT count(*) FROM pgbench_history) AS transactions"""


class Member(Server):
    def value(self, query: str, *parameters: object) -> Any:
        with self.connect() as connection:
            row = connection.execute(query, parameters or None).fetchone()
            return row[0] if row else None

    def run(self, *queries: str) -> None:
        with self.connect() as connection:
            for query in queries:
                connection.execute(query)


def offer_plugin() -> str:
    """Newer minor releases require a list of the output plugins that may be used."""
    known = "\noutput_plugin_libraries\t" in run("postgres", "--describe-config")
    return "output_plugin_libraries = 'pgoutput, test_decoding, weft'" if known else ""


@contextmanager
def load(members: list[Member], seconds: int) -> Iterator[list[int]]:
    """Runs pgbench on all members at once; yields a list that will contain their counts."""
    counts: list[int] = []
    processes = [
        subprocess.Popen(
            ["pgbench", *member.socket_options, "-n", "-M", "prepared", "-c", str(CLIENTS),
             "-T", str(seconds), "-R", str(RATE), "postgres"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )
        for member in members
    ]  # fmt: skip
    try:
        yield counts
        for member, process in zip(members, processes, strict=True):
            output = process.communicate()[0]
            lines = [line for line in output.splitlines() if "actually processed" in line]
            if process.returncode != 0 or not lines:
                raise DemoError(f"pgbench failed on {member.name}:\n{output}")
            counts.append(int(lines[0].split(":")[1].split("/")[0]))
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def wait_for_all(members: list[Member]) -> None:
    for to in members:
        for other in members:
            if other is not to:
                to.run(
                    f"SELECT weft.wait_for_subscription("
                    f"'weft_{GROUP}_{other.name}_{to.name}', '60s')"
                )


def compare(members: list[Member]) -> dict:
    first, *others = members
    expected = fingerprint(first, TABLES)
    for other in others:
        found = fingerprint(other, TABLES)
        for table in TABLES:
            if found[table] != expected[table]:
                raise DemoError(
                    f"{table} differs: {expected[table][0]} rows on {first.name}, "
                    f"{found[table][0]} on {other.name}"
                )
    return {table: rows for table, (rows, _) in expected.items()}


def check_balances(members: list[Member], transactions: int) -> None:
    for member in members:
        with member.connect() as connection:
            row = row_of(connection, BALANCES)
        if len({row.accounts, row.branches, row.tellers, row.history}) != 1:
            raise DemoError(f"the sums of balances differ on {member.name}: {row}")
        if row.transactions != transactions:
            raise DemoError(
                f"{transactions} transactions were acknowledged, "
                f"{member.name} has {row.transactions}"
            )


def make_tables(member: Member) -> None:
    run("pgbench", *member.socket_options, "-i", "-q", "-s", str(SCALE), "postgres")
    member.run(
        "CREATE SEQUENCE history_id",
        "ALTER TABLE pgbench_history ADD id bigint PRIMARY KEY"
        " DEFAULT weft.snowflake_nextval('history_id')",
        "CREATE TABLE notes (id int PRIMARY KEY, note text)",
        "INSERT INTO notes VALUES (1, 'nobody has changed this')",
    )
    for table, column in COUNTERS.items():
        member.run(
            f"ALTER TABLE {table} ALTER {column} SET NOT NULL, REPLICA IDENTITY FULL",
            f"SELECT weft.set_delta_columns('{table}', ARRAY['{column}']::name[])",
        )


def join(member: Member, target: Member) -> float:
    start = time.monotonic()
    with member.connect() as connection:
        connection.execute("SELECT weft.create_node(%s, %s)", [member.name, member.conninfo])
        connection.execute("SELECT weft.join_node_group(%s, %s)", [target.conninfo, GROUP])
        connection.execute("SELECT weft.wait_for_join_completion('2 min')")
    return time.monotonic() - start


def make_conflict(members: list[Member]) -> None:
    """Changes the same row on two members before either has the other's change."""
    first, second = members[:2]
    with first.connect() as here, second.connect() as there:
        here.execute("BEGIN")
        there.execute("BEGIN")
        here.execute("UPDATE notes SET note = %s WHERE id = 1", [f"from {first.name}"])
        there.execute("UPDATE notes SET note = %s WHERE id = 1", [f"from {second.name}"])
        here.execute("COMMIT")
        there.execute("COMMIT")


def show_history(members: list[Member]) -> None:
    table = Table(title="conflicts on notes", title_justify="left")
    for column in ("member", "type", "resolution", "local", "remote"):
        table.add_column(column)
    for member in members:
        with member.connect() as connection:
            for row in connection.execute(
                "SELECT conflict_type, resolution, local_row ->> 'note' AS local,"
                " remote_row ->> 'note' AS remote"
                " FROM weft.conflict_history WHERE relation = 'public.notes'"
            ):
                table.add_row(member.name, *(str(value) for value in row))
    console.print(table)
    if not table.row_count:
        raise DemoError("the conflict is not in the history of any member")


def demo(a: Member, b: Member, c: Member) -> None:
    members = [a, b, c]
    with step(f"three servers, {run('pg_config', '--version').strip()}"):
        for member in members:
            member.start()
            member.run("CREATE EXTENSION weft")
    with step(f"a group of one: {a.name}, with pgbench's tables, scale {SCALE}"):
        with a.connect() as connection:
            connection.execute("SELECT weft.create_node(%s, %s)", [a.name, a.conninfo])
            connection.execute("SELECT weft.create_node_group(%s)", [GROUP])
        make_tables(a)
    with step(f"{b.name} joins"):
        join(b, a)

    with step(f"pgbench on {a.name} and {b.name}, {RATE}/s, {SECONDS} s; {c.name} joins amid it"):
        with load([a, b], SECONDS) as counts:
            time.sleep(2)
            console.print(f"  {c.name} has joined after {join(c, a):.1f} s")
        transactions = sum(counts)
    with step(f"pgbench on all three, {RATE}/s, {SECONDS} s"):
        with load(members, SECONDS) as counts:
            pass
        transactions += sum(counts)
    with step("the same row is changed on two members at once"):
        make_conflict(members)
    with step("caught up, compared"):
        wait_for_all(members)
        rows = compare(members)
        check_balances(members, transactions)
    show_history(members)

    with step(f"{c.name} parts"):
        a.run(f"SELECT weft.part_node('{c.name}')")
        left = c.value(
            "SELECT (SELECT count(*) FROM pg_replication_slots)"
            " + (SELECT count(*) FROM pg_subscription)"
            " + (SELECT count(*) FROM pg_replication_origin)"
        )
        if left:
            raise DemoError(f"{left} slots, subscriptions and origins are left on {c.name}")
    with step(f"pgbench on {a.name} and {b.name}, which go on; compared"):
        with load([a, b], 3) as counts:
            pass
        wait_for_all([a, b])
        compare([a, b])
        check_balances([a, b], transactions + sum(counts))

    table = Table(title="Weft", title_justify="left", show_header=False)
    table.add_row("transactions acknowledged", f"{transactions:,}, none lost, none doubled")
    for name, count in rows.items():
        table.add_row(name, f"equal on all three, {count:,} rows")
    console.print(table)


def make_members(directory: Path) -> list[Server]:
    return [Member(directory / name, SETTINGS + offer_plugin()) for name in "abc"]


if __name__ == "__main__":
    sys.exit(main(make_members, demo))
