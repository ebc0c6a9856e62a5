"""Checks of subscriptions that detect conflicts, in groups and elsewhere."""

from collections.abc import Iterator

from weft_cli.doctor.case import Case
from weft_cli.doctor.registry import Group, Hit, Needs, check
from weft_cli.doctor.sql_text import alter_system, literal
from weft_cli.doctor.table_facts import table_name, table_of


@check(
    "W120",
    Group.CONFLICTS,
    Needs.SUBSCRIPTION,
    "subscriber",
    "error",
    "track_commit_timestamp of the subscriber",
    "The subscription detects conflicts, which needs the commit times of rows, but "
    "track_commit_timestamp is off. Its apply worker fails.",
    "Set track_commit_timestamp = on, and restart the server.",
)
def commit_timestamps(case: Case) -> Iterator[Hit]:
    if case.detects_conflicts and case.settings.text("track_commit_timestamp") != "on":
        yield Hit(
            "track_commit_timestamp",
            f'it is off, but subscription "{case.name}" detects conflicts',
            (alter_system("track_commit_timestamp", "on"),),
            restart=True,
        )


@check(
    "W121",
    Group.CONFLICTS,
    Needs.BOTH,
    "publisher",
    "warning",
    "tables with large values send whole rows",
    "The subscription detects conflicts, and the table has values that are stored out of line "
    "(TOAST). Without REPLICA IDENTITY FULL, an UPDATE that does not change such a value does not "
    "send it. If the update wins over a deleted or other row, servers end with different values, "
    "or without the row.",
    "Set REPLICA IDENTITY FULL on every server that accepts writes. The check reports tables once "
    "they have such values.",
)
def toast(case: Case) -> Iterator[Hit]:
    if not case.detects_conflicts:
        return
    candidates = {
        published["oid"]: published
        for _, published in case.pairs
        if published["identity"] != "f" and published["kind"] == "r"
    }
    for row in case.there.rows(
        "SELECT c.oid::bigint AS oid FROM pg_catalog.pg_class c"
        " WHERE c.oid = ANY (%s::oid[]) AND c.reltoastrelid <> 0"
        " AND pg_catalog.pg_relation_size(c.reltoastrelid) > 0 ORDER BY c.oid::regclass::text",
        list(candidates),
    ):
        table = candidates[row["oid"]]
        yield Hit(
            f'table "{table_name(table)}"',
            "the table has large values, but not REPLICA IDENTITY FULL",
            (f"ALTER TABLE {table_of(table)} REPLICA IDENTITY FULL;",),
        )


@check(
    "W122",
    Group.CONFLICTS,
    Needs.SUBSCRIPTION,
    "subscriber",
    "warning",
    "deletes are tracked",
    "The subscription detects conflicts, but nothing remembers which rows sessions of this server "
    "delete from the table. An older change that arrives after such a DELETE brings the row back.",
    "Call weft.track_deletes for the table, on every server that accepts writes.",
)
def deletes(case: Case) -> Iterator[Hit]:
    if not case.detects_conflicts:
        return
    tracked = {
        row["oid"]
        for row in case.subscriber.rows(
            "SELECT t.tgrelid::bigint AS oid FROM pg_catalog.pg_trigger t"
            " JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid"
            " JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace"
            " WHERE t.tgrelid = ANY (%s::oid[]) AND t.tgenabled <> 'D'"
            " AND n.nspname = 'weft' AND p.proname = 'record_delete'",
            [table["oid"] for table in case.subscribed],
        )
    }
    keyed = keyed_tables(case)
    for table in case.subscribed:
        if table["kind"] == "r" and table["oid"] in keyed and table["oid"] not in tracked:
            argument = literal(table_of(table))
            yield Hit(
                f'table "{table_name(table)}"',
                "deletes by sessions of this server are not tracked",
                (f"SELECT weft.track_deletes({argument});",),
            )


def keyed_tables(case: Case) -> set[int]:
    """Tables that have a primary key or a replica identity index, which detection needs."""
    return {
        row["oid"]
        for row in case.subscriber.rows(
            "SELECT i.indrelid::bigint AS oid FROM pg_catalog.pg_index i"
            " WHERE i.indrelid = ANY (%s::oid[]) AND i.indisvalid"
            " AND (i.indisprimary OR i.indisreplident)",
            [table["oid"] for table in case.subscribed],
        )
    }


@check(
    "W123",
    Group.CONFLICTS,
    Needs.BOTH,
    "subscriber",
    "warning",
    "conflicts of every table can be detected",
    "The subscription detects conflicts, but not those of this table: it has neither a primary "
    "key nor a replica identity index here, or it is partitioned and published as a whole. Its "
    "changes are applied as if detect_conflicts were off.",
    "Give the table a primary key on all servers. Publish partitioned tables partition by "
    "partition (publish_via_partition_root = false).",
)
def detectable(case: Case) -> Iterator[Hit]:
    if not case.detects_conflicts:
        return
    keyed = keyed_tables(case)
    for table in case.subscribed:
        if table["kind"] == "p":
            yield Hit(
                f'table "{table_name(table)}"', "the table is partitioned, and published as a whole"
            )
        elif table["oid"] not in keyed:
            yield Hit(f'table "{table_name(table)}"', "the table has no key here")
