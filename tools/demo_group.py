"""A node group at work: all members accept writes; one joins, is cut off, catches up, and parts.

Started by "make demo-group" through setup.sh, or from the package weft-cli.  KEEP=1 leaves the
servers running.
"""

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from demo_common import (
    DemoError,
    Server,
    compare,
    console,
    heading,
    main,
    offer_plugin,
    row_of,
    run,
    step,
    wait_until,
)
from demo_place import DOCS, command, commands
from rich.live import Live
from rich.table import Table
from rich.text import Text

GROUP = "demo"
SCALE = 2
CLIENTS = 2
SECONDS = 10
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
    wal_retrieve_retry_interval = 500ms  # until members try to connect again
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


TO_TRY = """\
To try on any of them:
  TABLE weft.node;
  TABLE weft.node_replication;
  TABLE weft.stat_conflict;
  SELECT * FROM weft.conflict_history WHERE relation = 'public.notes';
  UPDATE notes SET note = 'mine';   -- and look at the other members"""


def to_try(_directory: Path) -> str:
    return TO_TRY


def to_type_next() -> str:
    lines = commands(
        (command("demo-group", KEEP="1"), "the same; afterwards the servers are yours to try"),
        (command("demo"), "how fast a subscriber catches up with Weft"),
    )
    return f"{lines}\nFor servers of your own, go on with {DOCS}/multi-master.md."


class Member(Server):
    """A server that the other members reach as a role of its own, so that it can be cut off."""

    def __init__(self, directory: Path, settings: str):
        super().__init__(directory, f"{settings}\ncluster_name = '{directory.name}'\n")
        # Members connect to each other as the role that the connecting one's environment names.
        self.role = f"member_{directory.name}"
        self.environment = {"PGUSER": self.role}
        self.dsn = f"host={directory} port=5432 dbname=postgres"
        self.refused = self.data / "refused.conf"

    def create(self) -> None:
        super().create()
        rules = self.data / "pg_hba.conf"
        rules.write_text(f"include_if_exists {self.refused.name}\n{rules.read_text()}")

    def refuse(self, others: Iterable["Member"]) -> None:
        """Ends the connections of these members, and lets them make no new ones."""
        roles = [other.role for other in others]
        self.refused.write_text("".join(f"local all,replication {role} reject\n" for role in roles))
        self.run("SELECT pg_reload_conf()")
        wait_until(
            f"{self.name} refuses {roles}", lambda: not any(self.accepts(role) for role in roles)
        )
        with self.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE usename = ANY (%s)", [roles],
            )  # fmt: skip

    def accepts(self, role: str) -> bool:
        try:
            psycopg.connect(f"{self.dsn} user={role}").close()
        except psycopg.OperationalError:
            return False
        return True

    def value(self, query: str, *parameters: object) -> Any:
        with self.connect() as connection:
            row = connection.execute(query, parameters or None).fetchone()
            return row[0] if row else None

    def run(self, *queries: str) -> None:
        with self.connect() as connection:
            for query in queries:
                connection.execute(query)


def cut_off(member: Member, others: list[Member]) -> None:
    member.refuse(others)
    for other in others:
        other.refuse([member])


def connect_again(members: list[Member]) -> None:
    for member in members:
        member.refuse([])


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
        "ALTER TABLE pgbench_history ADD member text DEFAULT current_setting('cluster_name')",
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
        connection.execute("SELECT weft.create_node(%s, %s)", [member.name, member.dsn])
        connection.execute("SELECT weft.join_node_group(%s, %s)", [target.dsn, GROUP])
        connection.execute("SELECT weft.wait_for_join_completion('2 min')")
    return time.monotonic() - start


def transactions_here(member: Member) -> dict[str, int]:
    """How many transactions a member has, by the member that has committed them for its client."""
    with member.connect() as connection:
        rows = connection.execute("SELECT member, count(*) FROM pgbench_history GROUP BY member")
        return dict(rows.fetchall())


class Matrix:
    """Who has how many of whose transactions."""

    def __init__(self, members: list[Member]):
        self.members = members
        self.have: dict[str, dict[str, int]] = {}

    def read(self) -> None:
        self.have = {member.name: transactions_here(member) for member in self.members}

    def missing(self, name: str) -> int:
        """How many of the others' transactions a member does not have yet."""
        return sum(
            max(self.have[other.name].get(other.name, 0) - self.have[name].get(other.name, 0), 0)
            for other in self.members
        )

    def picture(self, title: str, separate: Member | None = None) -> Table:
        table = Table(title=title, title_justify="left")
        table.add_column("transactions")
        for member in self.members:
            table.add_column(f"written on {member.name}", justify="right")
        table.add_column("missing", justify="right")
        for member in self.members:
            remark = ", cut off" if member is separate else ""
            missing = self.missing(member.name)
            table.add_row(
                f"{member.name} has{remark}",
                *(f"{self.have[member.name].get(other.name, 0):,}" for other in self.members),
                Text(f"{missing:,}", "bold red" if remark else "green" if not missing else ""),
            )
        return table


def watch(matrix: Matrix, seconds: float, title: str, separate: Member | None = None) -> None:
    end = time.monotonic() + seconds
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while time.monotonic() < end:
            if console.is_terminal:
                matrix.read()
                live.update(matrix.picture(title, separate), refresh=True)
            time.sleep(min(0.3, max(end - time.monotonic(), 0)))


def watch_catch_up(matrix: Matrix, title: str) -> float:
    """Returns after how many seconds nobody misses anything."""
    start = time.monotonic()
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while time.monotonic() < start + 60:
            matrix.read()
            live.update(matrix.picture(title), refresh=console.is_terminal)
            if not any(matrix.missing(member.name) for member in matrix.members):
                return time.monotonic() - start
            time.sleep(0.1)
    raise DemoError("the members have not caught up within a minute")


def note(member: Member, text: str) -> None:
    with member.connect() as connection:
        connection.execute("UPDATE notes SET note = %s WHERE id = 1", [text])


def show_notes(members: list[Member], when: str) -> None:
    notes = "   ".join(
        f"{m.name}: {m.value('SELECT note FROM notes WHERE id = 1')}" for m in members
    )
    console.print(f"  the row, {when}   {notes}")


def show_history(members: list[Member]) -> None:
    table = Table(title="weft.conflict_history of that table, on each member", title_justify="left")
    for column in ("on", "conflict", "resolution", "local row", "remote row"):
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


def form_group(a: Member, b: Member, c: Member) -> int:
    """Returns how many transactions were acknowledged meanwhile."""
    with step(f"three servers, {run('pg_config', '--version').strip()}"):
        for member in (a, b, c):
            member.create()
            member.start()
            member.run(*(f"CREATE ROLE {other.role} SUPERUSER LOGIN" for other in (a, b, c)))
            member.run("CREATE EXTENSION weft")
    with step(f"a group of one: {a.name}, with pgbench's tables, scale {SCALE}"):
        with a.connect() as connection:
            connection.execute("SELECT weft.create_node(%s, %s)", [a.name, a.dsn])
            connection.execute("SELECT weft.create_node_group(%s)", [GROUP])
        make_tables(a)
    with step(f"{b.name} joins"):
        join(b, a)
    with (
        step(f"pgbench on {a.name} and {b.name}, {RATE}/s each, for {SECONDS} s"),
        load([a, b], SECONDS) as counts,
    ):
        time.sleep(1)
        console.print(f"  meanwhile, {c.name} has joined, in {join(c, a):.1f} s")
    return sum(counts)


def separate_and_reunite(members: list[Member]) -> int:
    a, b, c = members
    matrix = Matrix(members)
    with (
        step(f"pgbench on all three, {RATE}/s each, for {SECONDS} s"),
        load(members, SECONDS) as counts,
    ):
        watch(matrix, 2, "All are connected")
        cut_off(c, [a, b])
        console.print(f"  after 2 s, {c.name} is cut off; its clients go on writing")
        watch(matrix, SECONDS / 2, f"{c.name} is cut off", c)
        note(a, f"from {a.name}")
        wait_until("b has it", lambda: b.value("SELECT note FROM notes") == f"from {a.name}")
        note(c, f"from {c.name}, later")
        console.print(f"  the same row is changed on {a.name}, and then on {c.name}")
    matrix.read()
    console.print(matrix.picture(f"{c.name} is cut off", c))
    show_notes(members, "now:  ")

    connect_again(members)
    seconds = watch_catch_up(matrix, f"{c.name} is connected again")
    console.print(matrix.picture(f"{seconds:.1f} s after {c.name} was connected again"))
    wait_for_all(members)
    show_notes(members, "after:")
    console.print("  The later change wins on every member, and each records the conflict.")
    show_history(members)
    return sum(counts)


def part(members: list[Member]) -> None:
    a, _, c = members
    with step(f"{c.name} leaves the group: weft.part_node('{c.name}')"):
        a.run(f"SELECT weft.part_node('{c.name}')")
        left = c.value(
            "SELECT (SELECT count(*) FROM pg_replication_slots)"
            " + (SELECT count(*) FROM pg_subscription)"
            " + (SELECT count(*) FROM pg_replication_origin)"
        )
        if left:
            raise DemoError(f"{left} slots, subscriptions and origins are left on {c.name}")


def demo(a: Member, b: Member, c: Member) -> None:
    members = [a, b, c]
    heading("1. Three servers become a group", "Each accepts writes, and gets those of the others.")
    transactions = form_group(*members)

    heading("2. One is cut off", "All go on accepting writes.")
    transactions += separate_and_reunite(members)

    heading("3. The result")
    with step("every row of every table compared, by its hash, on all three servers"):
        rows = compare(members, TABLES)
        check_balances(members, transactions)
    console.print(
        f"  {transactions:,} transactions were acknowledged; none is lost, none is there twice.\n"
        "  Balances that several members have changed are the sums of all changes."
    )
    for table, count in rows.items():
        console.print(f"  {table:<16} equal, {count:>7,} rows")

    heading("4. One leaves")
    part(members)
    with step(f"pgbench on {a.name} and {b.name}, which go on; compared"):
        with load([a, b], 3) as counts:
            pass
        wait_for_all([a, b])
        compare([a, b], TABLES)
        check_balances([a, b], transactions + sum(counts))


def make_members(directory: Path) -> list[Server]:
    return [Member(directory / name, SETTINGS + offer_plugin()) for name in "abc"]


if __name__ == "__main__":
    sys.exit(main(make_members, demo, to_try, to_type_next))
