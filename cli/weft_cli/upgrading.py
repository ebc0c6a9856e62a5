"""The steps of an upgrade: which are done is found out from both servers, and nothing is stored.

Therefore an upgrade can be interrupted at any moment, and continued from anywhere.  Each step
looks at what it needs, and does what is missing.  Once the switch-over has passed its point of no
return, no step is looked at any more: the subscription is disabled then.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from weft_cli.compare import compare
from weft_cli.comparisons import load_comparison
from weft_cli.context import Context
from weft_cli.copying import wait_for_copies
from weft_cli.errors import Refused
from weft_cli.output import printable
from weft_cli.server import Server
from weft_cli.switching import UNFINISHED, phase

FIRST_OLD_VERSION = 150000

# Parameters with which a statement leaves no traces.
UNSEEN = {
    "log_min_duration_sample": "-1",
    "log_min_duration_statement": "-1",
    "log_min_error_statement": "panic",
    "log_statement": "none",
    "log_transaction_sample_rate": "0",
    "pg_stat_statements.track_utility": "off",
    "track_activities": "off",
}


@dataclass(frozen=True)
class Target:
    """From where to where, and the names."""

    old: Server
    new: Server
    # how the new server reaches the old one
    connection: str
    subscription: str
    publication: str


@dataclass(frozen=True)
class Step:
    name: str
    text: str
    is_done: Callable[[Target], bool]
    act: Callable[[Context, Target], None]


def steps(target: Target) -> list[Step]:
    """All but the switch-over, which has a plan of its own."""
    return [
        Step("extension", "create the extension on the new server", has_extension, add_extension),
        Step(
            "publication",
            f'create publication "{target.publication}" for all tables on the old server',
            has_publication,
            add_publication,
        ),
        Step("schema", "create the missing tables on the new server", has_tables, add_tables),
        Step(
            "subscription",
            f'create subscription "{target.subscription}" on the new server',
            has_subscription,
            add_subscription,
        ),
        Step("copy", "copy the tables, and catch up", is_copied, wait_until_copied),
        Step("analyze", "gather statistics on the new server", is_analyzed, analyze),
        Step("compare", "compare all rows", is_compared, compare_all),
    ]


def switched(target: Target) -> bool:
    """Has a switch-over passed the point of no return?"""
    if target.new.weft_extension is None:
        return False
    reached, back = phase(target.new, target.subscription)
    return not back and reached in (*UNFINISHED, "done")


def obstacles(target: Target) -> list[tuple[str, str]]:
    """What must be mended by hand before the first step: problem and remedy."""
    old, new = target.old, target.new
    found = []
    if new.weft_library is None:
        found.append(
            (
                f"Weft is not loaded on the new server, {new.name}",
                "There: ALTER SYSTEM SET shared_preload_libraries = 'weft'; then restart.",
            )
        )
    if old.version < FIRST_OLD_VERSION:
        found.append(
            (f"{old.name} runs PostgreSQL {old.version // 10000}", "It must be 15 or later.")
        )
    # What a server of version 19 or later logs for its slots.
    if old.value(
        "SELECT current_setting('wal_level') <> 'logical' AND (current_setting('wal_level') ="
        " 'minimal' OR current_setting('effective_wal_level', true) IS NULL)"
    ):
        found.append(
            (
                f"wal_level is not logical on the old server, {old.name}",
                "There: ALTER SYSTEM SET wal_level = logical; then restart.",
            )
        )
    if not has_publication(target):
        found += [
            (
                f"table {table} of the old server has neither a primary key nor a replica identity:"
                " once it is published, updates and deletes of it would fail",
                f"There: ALTER TABLE {table} REPLICA IDENTITY FULL; or add a primary key.",
            )
            for table in tables_without_identity(old)
        ]
    return found


def tables_without_identity(server: Server) -> list[str]:
    return [
        row["name"]
        for row in server.rows(
            "SELECT c.oid::regclass::text AS name FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384"
            " AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'"
            " AND (c.relreplident = 'n' OR c.relreplident = 'd' AND NOT EXISTS"
            "  (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)) ORDER BY 1"
        )
    ]


def has_extension(target: Target) -> bool:
    return target.new.weft_extension is not None


def add_extension(context: Context, target: Target) -> None:
    target.new.execute("CREATE EXTENSION weft")
    # It is remembered.
    del target.new.weft_extension


def has_publication(target: Target) -> bool:
    return bool(
        target.old.value("SELECT 1 FROM pg_publication WHERE pubname = %s", target.publication)
    )


def add_publication(context: Context, target: Target) -> None:
    name = sql.Identifier(target.publication).as_string(target.old.connection)
    target.old.execute(f"CREATE PUBLICATION {name} FOR ALL TABLES")


def published_tables(target: Target) -> list[str]:
    return [
        row["name"]
        for row in target.old.rows(
            "SELECT format('%%I.%%I', schemaname, tablename) AS name FROM pg_publication_tables"
            " WHERE pubname = %s ORDER BY 1",
            target.publication,
        )
    ]


def missing_tables(target: Target) -> list[str]:
    """Published tables that the new server does not have."""
    return [
        row["name"]
        for row in target.new.rows(
            "SELECT name FROM unnest(%s::text[]) name WHERE to_regclass(name) IS NULL",
            published_tables(target),
        )
    ]


def filled_tables(target: Target) -> list[str]:
    """Published tables in which the new server has rows.  Weft does not copy its own tables."""
    return [
        table
        for table in published_tables(target)
        if not table.startswith("weft.") and target.new.value(f"SELECT 1 FROM {table} LIMIT 1")
    ]


def has_tables(target: Target) -> bool:
    return has_publication(target) and not missing_tables(target)


def add_tables(context: Context, target: Target) -> None:
    if not target.connection:
        raise Refused("tables are missing on the new server", "Name the old server with --from.")
    # As data of COPY, because statements and their parameters may be logged.
    target.new.execute(
        "DROP TABLE IF EXISTS pg_temp.weft_source;"
        " CREATE TEMPORARY TABLE weft_source (connection text, publication text)"
    )
    target.new.copy_row("pg_temp.weft_source", (target.connection, target.publication))
    created = target.new.rows(
        "SELECT c.object_type, c.object, c.note FROM pg_temp.weft_source s,"
        " weft.copy_schema(s.connection, ARRAY[s.publication]) c WHERE c.note IS NOT NULL"
    )
    for row in created:
        text = f"{row['object_type']} {row['object']}: {row['note']}"
        context.errors.print(printable(text), style="yellow", soft_wrap=True)
    missing = missing_tables(target)
    if missing:
        raise Refused(
            f"these tables could not be created on the new server: {', '.join(missing)}",
            "Create them there, for example with pg_dump --schema-only, and run this again.",
        )


def has_subscription(target: Target) -> bool:
    return bool(
        target.new.value(
            "SELECT 1 FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid"
            " WHERE d.datname = current_database() AND s.subname = %s",
            target.subscription,
        )
    )


def add_subscription(context: Context, target: Target) -> None:
    if filled := filled_tables(target):
        shown = ", ".join(filled[:5]) + (", ..." if len(filled) > 5 else "")
        raise Refused(
            f"these tables have rows on the new server already: {shown}",
            "A copy would double them. If the upgrade is complete, nothing is left to do. Otherwise"
            " empty the tables first.",
        )
    statement = sql.SQL("CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION {}").format(
        sql.Identifier(target.subscription),
        sql.Literal(target.connection),
        sql.Identifier(target.publication),
    )
    with unseen(target.new):
        target.new.execute(statement.as_string(target.new.connection))


@contextmanager
def unseen(server: Server) -> Iterator[None]:
    """For statements with a password: no log and no view shows them, as far as the role may say so.

    CREATE SUBSCRIPTION creates a slot, so it cannot be run by a function that reads the string.
    """
    change = (
        "SELECT set_config(p.name, v.setting, false)"
        " FROM jsonb_each_text(%s::jsonb) v (name, setting)"
        " JOIN pg_settings p USING (name)"
        " WHERE has_parameter_privilege(p.name, 'SET')"
    )
    before = server.rows(
        "SELECT name, current_setting(name) AS setting FROM pg_settings WHERE name = ANY (%s)",
        list(UNSEEN),
    )
    server.rows(change, json.dumps(UNSEEN))
    try:
        yield
    finally:
        if not server.connection.closed:
            server.rows(change, json.dumps({row["name"]: row["setting"] for row in before}))


def subscribed_tables(target: Target) -> list[dict[str, Any]]:
    return target.new.rows(
        "SELECT c.oid::regclass::text AS name, r.srsubstate = 'r' AS ready,"
        " c.relkind = 'r' AND c.reltuples < 0 AS unknown FROM pg_subscription_rel r"
        " JOIN pg_class c ON c.oid = r.srrelid AND c.relkind <> 'S'"
        " JOIN pg_subscription s ON s.oid = r.srsubid"
        " JOIN pg_database d ON d.oid = s.subdbid"
        " WHERE d.datname = current_database() AND s.subname = %s ORDER BY 1",
        target.subscription,
    )


def is_copied(target: Target) -> bool:
    return has_subscription(target) and all(row["ready"] for row in subscribed_tables(target))


def wait_until_copied(context: Context, target: Target) -> None:
    wait_for_copies(context, target.new, target.subscription)
    target.new.execute("SELECT weft.wait_for_subscription(%s, '1 hour')", target.subscription)


def is_analyzed(target: Target) -> bool:
    return is_copied(target) and not any(row["unknown"] for row in subscribed_tables(target))


def analyze(context: Context, target: Target) -> None:
    for row in subscribed_tables(target):
        target.new.execute(f"ANALYZE {row['name']}")


def last_comparison(target: Target) -> int | None:
    """The newest one of all tables."""
    number: int | None = target.new.value(
        "SELECT max(c.comparison) FROM weft.comparison c JOIN pg_subscription s ON s.oid = c.subid"
        " JOIN pg_database d ON d.oid = s.subdbid WHERE d.datname = current_database()"
        " AND s.subname = %s AND c.requested_tables IS NULL AND c.status = 'finished'",
        target.subscription,
    )
    return number


def is_compared(target: Target) -> bool:
    if not (has_extension(target) and is_copied(target)):
        return False
    number = last_comparison(target)
    return number is not None and load_comparison(target.new, number, 0).fine


def compare_all(context: Context, target: Target) -> None:
    number = compare(context, target.new, {"subscription": target.subscription})
    if not load_comparison(target.new, number, 0).fine:
        raise Refused(
            f"comparison {number} has found differences, or could not compare everything",
            f"weft compare --show {number}; weft repair {number}; then run this again.",
        )
