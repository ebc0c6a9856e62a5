"""Checks of what is published against what is subscribed to."""

from collections.abc import Iterator

from weft_cli.doctor.case import SYSTEM_SCHEMAS, Case
from weft_cli.doctor.registry import Group, Hit, Needs, check
from weft_cli.doctor.sql_text import name
from weft_cli.doctor.table_facts import table_name

TABLES = """
    SELECT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
        AND n.nspname <> ALL (%s::text[])
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
            WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid
                AND d.deptype = 'e')
    ORDER BY 2, 3"""


def refresh(case: Case) -> tuple[str, ...]:
    """Nothing if that would copy rows into a table that has some."""
    local = local_tables(case)
    if any(
        is_filled(case, local[table_name(table)])
        for table in unknown(case)
        if table_name(table) in local
    ):
        return ()
    return (f"ALTER SUBSCRIPTION {name(case.name)} REFRESH PUBLICATION;",)


@check(
    "W060",
    Group.PUBLICATION,
    Needs.BOTH,
    "publisher",
    "error",
    "publications exist",
    "The subscription names a publication that does not exist on the publisher. Up to PostgreSQL "
    "17, the walsender fails as soon as it decodes a change; from 18 on, the publication's "
    "changes are left out.",
    "Create the publication on the publisher, or remove it from the subscription: ALTER "
    "SUBSCRIPTION ... DROP PUBLICATION.",
)
def exist(case: Case) -> Iterator[Hit]:
    assert case.subscription is not None
    wanted = list(case.subscription["publications"])
    found = {
        row["name"]
        for row in case.there.rows("SELECT pubname AS name FROM pg_catalog.pg_publication")
    }
    for publication in wanted:
        if publication not in found:
            # A subscription without any publication is not possible.
            can_drop = any(other in found for other in wanted)
            yield Hit(
                f'publication "{publication}"',
                f'the publication of subscription "{case.name}" does not exist',
                (f"ALTER SUBSCRIPTION {name(case.name)} DROP PUBLICATION {name(publication)};",)
                if can_drop
                else (),
                fix_side="subscriber",
            )


@check(
    "W061",
    Group.PUBLICATION,
    Needs.BOTH,
    "subscriber",
    "warning",
    "published tables are subscribed to",
    "A table has been added to a publication since the subscription was created or last "
    "refreshed, and its changes are not applied. It exists on the subscriber.",
    "Refresh the subscription, which also copies the table. Empty it first if it has rows here.",
)
def subscribed(case: Case) -> Iterator[Hit]:
    local = local_tables(case)
    for table in unknown(case):
        known = table_name(table)
        if known in local:
            yield Hit(
                f'table "{known}"',
                f'the table is published, but subscription "{case.name}" does not know it'
                + ("; it has rows here" if is_filled(case, local[known]) else ""),
                refresh(case),
            )


@check(
    "W062",
    Group.PUBLICATION,
    Needs.BOTH,
    "subscriber",
    "error",
    "published tables exist on the subscriber",
    "A published table does not exist on the subscriber. REFRESH PUBLICATION fails; if the "
    "subscription knows the table already, apply stops at its next change.",
    "Create the table with weft.copy_schema or pg_dump --schema-only, and then refresh the "
    "subscription.",
)
def created(case: Case) -> Iterator[Hit]:
    local = local_tables(case)
    for table in unknown(case):
        if table_name(table) not in local:
            yield Hit(
                f'table "{table_name(table)}"',
                "the published table does not exist on the subscriber",
            )


def unknown(case: Case) -> list[dict[str, object]]:
    """Published tables that the subscription does not have."""
    known = {table_name(table) for table in case.subscribed}
    return [table for table in case.published if table_name(table) not in known]


def is_filled(case: Case, table: int) -> bool:
    """The copy of a table would add its rows to those that are here."""
    return bool(
        case.subscriber.value(
            "SELECT sum(pg_catalog.pg_relation_size(t.oid)) > 0 FROM (SELECT %s::oid AS oid"
            " UNION SELECT relid FROM pg_catalog.pg_partition_tree(%s::oid)) t",
            table,
            table,
        )
    )


def local_tables(case: Case) -> dict[str, int]:
    """The subscriber's tables."""
    return {
        table_name(table): table["oid"]
        for table in case.subscriber.rows(TABLES, list(SYSTEM_SCHEMAS))
    }


@check(
    "W063",
    Group.PUBLICATION,
    Needs.BOTH,
    "subscriber",
    "warning",
    "subscribed tables are published",
    "The subscription has a table that the publisher does not publish any more, or that was "
    "dropped or renamed there. Its rows here are out of date, and nothing says so.",
    "Publish the table again, or refresh the subscription, which then forgets it.",
)
def published(case: Case) -> Iterator[Hit]:
    known = {table_name(table) for table in case.published}
    for table in case.subscribed:
        if table_name(table) not in known:
            yield Hit(
                f'table "{table_name(table)}"',
                f'subscription "{case.name}" has the table, but it is not published',
                refresh(case),
            )


PUBLISHED_ANCESTORS = """
    SELECT DISTINCT t.relid::bigint AS oid
    FROM pg_catalog.pg_publication_tables p
        JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
        JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename,
        LATERAL (SELECT a.relid FROM pg_catalog.pg_partition_ancestors(c.oid) a
            UNION SELECT d.relid FROM pg_catalog.pg_partition_tree(c.oid) d
            UNION SELECT c.oid) t
    WHERE p.pubname = ANY (%s)"""


@check(
    "W064",
    Group.PUBLICATION,
    Needs.BOTH,
    "publisher",
    "warning",
    "tables that both sides have are published",
    "The table exists on both servers, but no publication of the subscription contains it. If it "
    "was forgotten, its changes do not reach the subscriber. Tables that only the publisher has, "
    "and unlogged ones, are not reported.",
    "Add the table to the publication, and refresh the subscription (W061). If it is not meant to "
    "be replicated, exclude this check with --ignore W064.",
)
def complete(case: Case) -> Iterator[Hit]:
    assert case.subscription is not None
    local = local_tables(case)
    publications = list(case.subscription["publications"])
    covered = {row["oid"] for row in case.there.rows(PUBLISHED_ANCESTORS, publications)}
    # What another subscription brings is no concern of this one.
    others = {
        f"{row['schema']}.{row['name']}"
        for row in case.subscriber.rows(
            "SELECT n.nspname AS schema, c.relname AS name FROM pg_catalog.pg_subscription_rel r"
            " JOIN pg_catalog.pg_class c ON c.oid = r.srrelid AND c.relkind <> 'S'"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace",
        )
    }
    first = case.there.rows(
        "SELECT pubname AS name FROM pg_catalog.pg_publication"
        " WHERE pubname = ANY (%s) AND NOT puballtables ORDER BY 1 LIMIT 1",
        publications,
    )
    for table in case.there.rows(TABLES, list(SYSTEM_SCHEMAS)):
        known = table_name(table)
        if table["oid"] in covered or known in others or known not in local:
            continue
        filled = is_filled(case, local[known])
        fix: tuple[str, ...] = ()
        if first and not filled:
            published = name(table["schema"], table["name"])
            fix = (f"ALTER PUBLICATION {name(first[0]['name'])} ADD TABLE {published};",)
        yield Hit(
            f'table "{known}"',
            f'no publication of subscription "{case.name}" contains the table'
            + ("; it has rows on the subscriber" if filled else ""),
            fix,
        )
