"""Checks of replicated tables: drift between both sides, keys, and what fires."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count

from weft_cli.doctor.case import Case
from weft_cli.doctor.reading import Row
from weft_cli.doctor.registry import Group, Hit, Needs, check
from weft_cli.doctor.sql_text import literal, name
from weft_cli.doctor.table_facts import Tables, table_name, table_of

MOST_NAME_BYTES = 63

# Types that hold all values of another one.
WIDER = {
    ("smallint", "integer"),
    ("smallint", "bigint"),
    ("smallint", "numeric"),
    ("integer", "bigint"),
    ("integer", "numeric"),
    ("bigint", "numeric"),
    ("real", "double precision"),
    ("character varying", "text"),
}


def column_object(table: Row, column: str) -> str:
    return f'column "{table_name(table)}.{column}"'


def type_here(case: Case, type_name: str) -> bool:
    """Does the subscriber have exactly that type?  The name comes from the publisher."""
    base = re.sub(r"\(\d+(,-?\d+)?\)", "", type_name)
    return bool(
        case.subscriber.rows(
            "SELECT 1 FROM pg_catalog.pg_type WHERE format_type(oid, NULL) = %s LIMIT 1",
            base,
        )
    )


@check(
    "W070",
    Group.TABLES,
    Needs.BOTH,
    "subscriber",
    "error",
    "published columns exist on the subscriber",
    "A published column does not exist on the subscriber. Apply stops at the next change of the "
    "table.",
    "Add the column on the subscriber. Rows that are there already get NULL: afterwards, compare "
    "the table, or copy it again with weft resync.",
)
def missing_columns(case: Case) -> Iterator[Hit]:
    tables = case.tables
    for table, published in tables.pairs:
        here = tables.here(table)
        for key, column in tables.published(published).items():
            if key in here:
                continue
            known = type_here(case, column["type"])
            yield Hit(
                column_object(table, key),
                f"the column ({column['type']}) does not exist on the subscriber",
                (f"ALTER TABLE {table_of(table)} ADD COLUMN {name(key)} {column['type']};",)
                if known
                else (),
            )


@check(
    "W071",
    Group.TABLES,
    Needs.BOTH,
    "subscriber",
    "error",
    "columns that only the subscriber has can be left empty",
    "A column that is not published is NOT NULL on the subscriber, and has no default. Every "
    "INSERT fails, and apply stops.",
    "Drop NOT NULL, give the column a default, or publish it.",
)
def surplus_columns(case: Case) -> Iterator[Hit]:
    tables = case.tables
    for table, published in tables.pairs:
        sent = tables.published(published)
        for key, column in tables.here(table).items():
            filled = column["has_default"] or column["identity"] or column["generated"]
            if key not in sent and column["not_null"] and not filled:
                yield Hit(
                    column_object(table, key),
                    "the column is not published, is NOT NULL here, and has no default",
                    (f"ALTER TABLE {table_of(table)} ALTER COLUMN {name(key)} DROP NOT NULL;",),
                )


def is_time(type_name: str) -> bool:
    return type_name.startswith(("time", "date"))


def holds_all(here: str, there: str) -> bool:
    """Can the subscriber's type store every value of the publisher's?"""
    if here == there:
        return True
    base_here, base_there = (re.sub(r"\(.*\)", "", each) for each in (here, there))
    if (base_there, base_here) in WIDER:
        return here == base_here
    if base_here == base_there == "character varying":
        lengths = [re.search(r"\((\d+)\)", each) for each in (here, there)]
        return lengths[0] is None or (
            lengths[1] is not None and int(lengths[0][1]) >= int(lengths[1][1])
        )
    return base_here == base_there == "numeric" and here == "numeric"


@check(
    "W072",
    Group.TABLES,
    Needs.BOTH,
    "subscriber",
    "warning",
    "columns have the same type",
    "The subscriber's column has another type, which does not hold every value of the "
    "publisher's. Values are converted through their text; one that cannot be converted stops "
    "apply. With binary = true, the types must be equal.",
    "Give both columns the same type, or the subscriber's a wider one (integer to bigint, varchar "
    "to text). This rewrites the table, unless it only lifts a limit.",
)
def types(case: Case) -> Iterator[Hit]:
    assert case.subscription is not None
    tables = case.tables
    for table, published in tables.pairs:
        here = tables.here(table)
        for key, column in tables.published(published).items():
            if key not in here:
                continue
            mine, theirs = here[key]["type"], column["type"]
            if mine == theirs or (holds_all(mine, theirs) and not case.subscription["binary"]):
                continue
            fix = (
                f"ALTER TABLE {table_of(table)} ALTER COLUMN {name(key)} TYPE {theirs}"
                f" USING {name(key)}::{theirs};",
            )
            yield Hit(
                column_object(table, key),
                f"the column is of type {mine} on the subscriber, {theirs} on the publisher",
                fix if type_here(case, theirs) and keeps_values(mine, theirs) else (),
            )


def keeps_values(before: str, after: str) -> bool:
    """Does a conversion mean the same in every session?

    Between types with and without time zone, it depends on TimeZone, and apply's may be another one
    than that of the session that converts.
    """
    zone = "with time zone"
    return not (is_time(before) and is_time(after)) or (zone in before) == (zone in after)


def is_same_key(one: Row, other: Row) -> bool:
    return (
        one["columns"] is not None
        and other["columns"] is not None
        and set(one["columns"]) == set(other["columns"])
        and one["partial"] == other["partial"]
        and one["nulls_equal"] == other["nulls_equal"]
    )


def unmatched(indexes: list[Row], others: list[Row]) -> list[Row]:
    """Unique indexes without a counterpart: on the same columns, or of the same text."""
    found = []
    for index in indexes:
        if not index["is_unique"]:
            continue
        tail = index["definition"].partition(" USING ")[2]
        if not any(
            other["is_unique"]
            and (is_same_key(index, other) or other["definition"].partition(" USING ")[2] == tail)
            for other in others
        ):
            found.append(index)
    return found


@check(
    "W073",
    Group.TABLES,
    Needs.BOTH,
    "subscriber",
    "warning",
    "unique indexes of the subscriber exist on the publisher",
    "The subscriber has a unique index that the publisher does not have. As soon as the publisher "
    "accepts two rows that it forbids, apply stops.",
    "Drop the index on the subscriber, make it an ordinary one, or create it on the publisher.",
)
def surplus_unique(case: Case) -> Iterator[Hit]:
    tables = case.tables
    for table, published in tables.pairs:
        theirs = tables.indexes_there.get(published["oid"], [])
        for index in unmatched(tables.indexes.get(table["oid"], []), theirs):
            yield Hit(
                f'index "{table["schema"]}.{index["name"]}"',
                f"the unique index on table {table_name(table)} does not exist on the publisher",
            )


@check(
    "W074",
    Group.TABLES,
    Needs.BOTH,
    "subscriber",
    "warning",
    "unique indexes of the publisher exist on the subscriber",
    "The publisher has a unique index that the subscriber does not have. Nothing fails, but after "
    "a switch-over or failover the subscriber accepts duplicates; and where conflicts are "
    "detected, those on these values are not.",
    "Create the index on the subscriber.",
)
def missing_unique(case: Case) -> Iterator[Hit]:
    tables = case.tables
    for table, published in tables.pairs:
        mine = tables.indexes.get(table["oid"], [])
        here = tables.here(table)
        for index in unmatched(tables.indexes_there.get(published["oid"], []), mine):
            if index["is_primary"] and not tables.key(table):
                continue  # W077
            columns = index["columns"]
            # Expressions and conditions are the publisher's text, which is not run here.
            plain = columns is not None and not index["partial"] and set(columns) <= set(here)
            hit = Hit(
                f'index "{index["name"]}" of table "{table_name(table)}"',
                "the publisher's unique index does not exist on the subscriber",
            )
            if plain:
                nulls = " NULLS NOT DISTINCT" if index["nulls_equal"] else ""
                new = free_name(case, table, index["name"])
                fix = (
                    f"CREATE UNIQUE INDEX CONCURRENTLY {name(new)} ON {table_of(table)}"
                    f" ({', '.join(name(column) for column in columns)}){nulls};"
                )
                hit = replace(hit, fix_sql=(fix,), new_index=(table["schema"], new))
            yield hit


def free_name(case: Case, table: Row, wanted: str) -> str:
    """A name for an index, by which it can be dropped if it cannot be completed."""
    used = {
        row["relname"]
        for row in case.subscriber.rows(
            "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = %s",
            table["schema"],
        )
    }
    numbered = (with_suffix(wanted, f"_{number}") for number in count(1))
    return next(each for each in chain([wanted], numbered) if each not in used)


def with_suffix(wanted: str, suffix: str) -> str:
    """Within the length that the server stores."""
    kept = wanted.encode()[: MOST_NAME_BYTES - len(suffix)]
    return kept.decode(errors="ignore") + suffix


@check(
    "W075",
    Group.TABLES,
    Needs.BOTH,
    "publisher",
    "error",
    "published tables have a replica identity",
    "The publisher's table has no primary key or other replica identity, but its UPDATEs or "
    "DELETEs are published: they fail on the publisher. A warning if there have been none so far. "
    "Tables to which rows have only been added, such as logs, are not reported.",
    "Give the table a primary key. Otherwise set REPLICA IDENTITY FULL, which sends whole rows, "
    "and create an index on the subscriber that finds them (W076).",
)
def replica_identity(case: Case) -> Iterator[Hit]:
    assert case.subscription is not None
    tables = case.tables
    changing = case.there.rows(
        "SELECT DISTINCT t.schemaname AS schema, t.tablename AS name,"
        " s.n_tup_upd + s.n_tup_del > 0 AS updated, s.n_tup_ins > 0 AS filled"
        " FROM pg_catalog.pg_publication_tables t"
        " JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname"
        " LEFT JOIN pg_catalog.pg_stat_all_tables s"
        "  ON s.schemaname = t.schemaname AND s.relname = t.tablename"
        " WHERE t.pubname = ANY (%s) AND (p.pubupdate OR p.pubdelete)",
        list(case.subscription["publications"]),
    )
    # Where rows are only added, there is nothing to identify.
    published_changes = {table_name(row) for row in changing if row["updated"] or not row["filled"]}
    updated = {table_name(row) for row in changing if row["updated"]}
    for _, table in tables.pairs:
        if table["kind"] != "r" or table_name(table) not in published_changes:
            continue
        if tables.identity(table) is not None:
            continue
        columns = tables.there(table)
        index = next(
            (
                index
                for index in tables.indexes_there.get(table["oid"], [])
                if index["is_unique"] and index["immediate"] and not index["partial"]
                and index["columns"] and all(columns[c]["not_null"] for c in index["columns"])
            ),
            None,
        )  # fmt: skip
        if index is None:
            how = "FULL"
        elif index["is_primary"]:
            how = "DEFAULT"
        else:
            how = f"USING INDEX {name(index['name'])}"
        yield Hit(
            f'table "{table_name(table)}"',
            "the table has no replica identity: UPDATE and DELETE fail on the publisher",
            (f"ALTER TABLE {table_of(table)} REPLICA IDENTITY {how};",),
            severity="error" if table_name(table) in updated else "warning",
        )


# Below this size, reading the whole table for each row is no matter.
SMALL_TABLE = 1 << 20


@check(
    "W076",
    Group.TABLES,
    Needs.BOTH,
    "subscriber",
    "warning",
    "rows of tables with REPLICA IDENTITY FULL can be found by an index",
    "The publisher sends whole rows (REPLICA IDENTITY FULL), and the subscriber's table has "
    "neither a primary key nor an index that can find a row. For each row that is updated or "
    "deleted, the whole table is read. Small tables, and those that are only added to, are not "
    "reported.",
    "Create a primary key on both sides, or an index on the subscriber: btree or hash, not "
    "partial, whose first column is selective.",
)
def index_for_full(case: Case) -> Iterator[Hit]:
    tables = case.tables
    candidates = {
        published["oid"]: table
        for table, published in tables.pairs
        if published["identity"] == "f" and table["kind"] == "r" and not has_index(tables, table)
    }
    changed = case.there.rows(
        "SELECT relid::bigint AS oid FROM pg_catalog.pg_stat_all_tables"
        " WHERE relid = ANY (%s::oid[]) AND n_tup_upd + n_tup_del > 0",
        list(candidates),
    )
    for row in changed:
        table = candidates[row["oid"]]
        query = "SELECT pg_catalog.pg_relation_size(%s::oid)"
        if (case.subscriber.value(query, table["oid"]) or 0) > SMALL_TABLE:
            yield Hit(
                f'table "{table_name(table)}"',
                "updates and deletes read the whole table: it has no index that finds a row",
            )


def has_index(tables: Tables, table: Row) -> bool:
    """An index that finds a row, all of whose columns are known."""
    return any(
        index["method"] in ("btree", "hash") and not index["partial"] and index["columns"]
        for index in tables.indexes.get(table["oid"], [])
    )


@check(
    "W077",
    Group.TABLES,
    Needs.BOTH,
    "subscriber",
    "error",
    "the subscriber finds rows by what the publisher sends",
    "The publisher sends the columns of its key. The subscriber's table has no key, or one that "
    "contains other columns. UPDATE and DELETE cannot be applied, and stop apply.",
    "Create the same primary key on the subscriber as on the publisher, or set REPLICA IDENTITY "
    "FULL on the publisher.",
)
def key_matches(case: Case) -> Iterator[Hit]:
    tables = case.tables
    for table, published in tables.pairs:
        sent = tables.identity(published)
        if sent is None or published["identity"] == "f" or table["kind"] != "r":
            continue
        key = tables.key(table)
        if key is not None and set(key) <= set(sent):
            continue
        columns = ", ".join(name(column) for column in sent)
        fix: tuple[str, ...] = ()
        if key is not None:
            problem = f"the key is ({', '.join(key)}) here, ({', '.join(sent)}) on the publisher"
        else:
            problem = f"the table has no key here; the publisher's is ({', '.join(sent)})"
            if set(sent) <= set(tables.here(table)):
                fix = (f"ALTER TABLE {table_of(table)} ADD PRIMARY KEY ({columns});",)
        yield Hit(f'table "{table_name(table)}"', problem, fix)


@check(
    "W078",
    Group.TABLES,
    Needs.BOTH,
    "subscriber",
    "error",
    "replicated tables are logged",
    "The table is UNLOGGED on the subscriber. After a crash it is empty, but the subscription "
    "continues where it was: the rows are lost.",
    "Make the table an ordinary one, which writes it to the WAL once.",
)
def unlogged(case: Case) -> Iterator[Hit]:
    for table in case.subscribed:
        if table["persistence"] == "u":
            yield Hit(
                f'table "{table_name(table)}"',
                "the table is unlogged: a crash of the subscriber empties it",
                (f"ALTER TABLE {table_of(table)} SET LOGGED;",),
            )


@check(
    "W079",
    Group.TABLES,
    Needs.BOTH,
    "subscriber",
    "error",
    "generated columns",
    "A column is generated on one side and an ordinary one on the other. If it is generated on "
    "the subscriber only, apply stops. If it is generated on the publisher only, it is not "
    "replicated, unless the publication says so (publish_generated_columns, from PostgreSQL 18 "
    "on).",
    "Make the column the same on both sides.",
)
def generated_columns(case: Case) -> Iterator[Hit]:
    tables = case.tables
    for table, published in tables.pairs:
        here = tables.here(table)
        sent = tables.published(published)
        for key, column in tables.there(published).items():
            if key not in here or here[key]["generated"] == column["generated"]:
                continue
            if column["generated"] and key not in sent:
                yield Hit(
                    column_object(table, key),
                    "the column is generated on the publisher and not replicated: it stays empty",
                    severity="warning",
                )
            elif here[key]["generated"]:
                yield Hit(
                    column_object(table, key),
                    "the column is generated here, but an ordinary one on the publisher",
                    (f"ALTER TABLE {table_of(table)} ALTER COLUMN {name(key)} DROP EXPRESSION;",),
                )


ENUMS = """
    SELECT n.nspname AS schema, t.typname AS name, e.enumlabel AS label
    FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
        JOIN pg_catalog.pg_enum e ON e.enumtypid = t.oid
    ORDER BY 1, 2, e.enumsortorder"""


@check(
    "W080",
    Group.TABLES,
    Needs.BOTH,
    "subscriber",
    "error",
    "enum types have the same values",
    "An enum type of the publisher has a value that the subscriber's type of the same name does "
    "not have. Apply stops at the first row that contains it.",
    "Add the value on the subscriber. In future, add values on the subscriber first.",
)
def enums(case: Case) -> Iterator[Hit]:
    here: dict[tuple[str, str], list[str]] = {}
    for row in case.subscriber.rows(ENUMS):
        here.setdefault((row["schema"], row["name"]), []).append(row["label"])
    before: dict[tuple[str, str], str] = {}
    for row in case.there.rows(ENUMS):
        key = (row["schema"], row["name"])
        if key in here and row["label"] not in here[key]:
            place = f" AFTER {literal(before[key])}" if key in before else ""
            yield Hit(
                f'value {literal(row["label"])} of type "{row["schema"]}.{row["name"]}"',
                "the type does not have the value on the subscriber",
                (f"ALTER TYPE {name(*key)} ADD VALUE {literal(row['label'])}{place};",),
            )
        before[key] = row["label"]


@check(
    "W081",
    Group.TABLES,
    Needs.SUBSCRIPTION,
    "subscriber",
    "warning",
    "triggers that fire for replicated changes",
    "A trigger of a replicated table is ENABLE ALWAYS or ENABLE REPLICA: it fires for each row "
    "that is applied. If the same trigger also fired on the publisher, its effects happen twice. "
    "Tables with such triggers do not take Weft's fast path.",
    "If that is not meant, let the trigger fire for ordinary sessions only. Otherwise exclude "
    "this check with --ignore W081.",
)
def triggers(case: Case) -> Iterator[Hit]:
    assert case.subscription is not None
    for row in case.subscriber.rows(
        "SELECT n.nspname AS schema, c.relname AS name, t.tgname AS trigger,"
        " t.tgenabled AS enabled"
        " FROM pg_catalog.pg_subscription_rel r"
        " JOIN pg_catalog.pg_class c ON c.oid = r.srrelid"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " JOIN pg_catalog.pg_trigger t ON t.tgrelid = c.oid"
        " JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid"
        " WHERE r.srsubid = %s::oid AND t.tgenabled IN ('A', 'R') AND NOT t.tgisinternal"
        # Weft's own, such as the fence of a switch-over.
        " AND p.pronamespace::regnamespace::text NOT IN ('weft', 'weft_switch')"
        " ORDER BY 1, 2, 3",
        case.subscription["oid"],
    ):
        how = "ENABLE ALWAYS" if row["enabled"] == "A" else "ENABLE REPLICA"
        yield Hit(
            f'trigger "{row["trigger"]}" of table "{table_name(row)}"',
            f"the trigger is {how}, and fires for each replicated row",
            (f"ALTER TABLE {table_of(row)} ENABLE TRIGGER {name(row['trigger'])};",),
        )
