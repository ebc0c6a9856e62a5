"""Checks of sequences against the columns that they fill."""

from collections.abc import Iterator
from contextlib import contextmanager

from weft_cli.doctor.case import Case
from weft_cli.doctor.reading import NotChecked, Row
from weft_cli.doctor.registry import Group, Hit, Needs, check
from weft_cli.doctor.sql_text import literal, name
from weft_cli.doctor.table_facts import table_name
from weft_cli.output import size
from weft_cli.server import Server

# Without an index on the column, its maximum is looked for in tables up to this size only.
LARGE_TABLE = 64 << 20

# Sequences that fill a column: of serial and identity columns.  Descending ones are left out.
SEQUENCES = """
    SELECT n.nspname AS schema, t.relname AS name, a.attname AS column,
        sn.nspname AS sequence_schema, c.relname AS sequence,
        q.seqincrement AS step, q.seqmax AS highest,
        has_sequence_privilege(c.oid, 'SELECT') AND has_column_privilege(t.oid, a.attnum, 'SELECT')
            AND has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(sn.oid, 'USAGE')
            AS readable,
        pg_catalog.pg_total_relation_size(t.oid) AS length,
        EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = t.oid AND i.indisvalid
            AND i.indkey[0] = a.attnum AND i.indpred IS NULL) AS indexed
    FROM pg_catalog.pg_sequence q
        JOIN pg_catalog.pg_class c ON c.oid = q.seqrelid
        JOIN pg_catalog.pg_namespace sn ON sn.oid = c.relnamespace
        JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_class'::regclass
            AND d.objid = c.oid AND d.refclassid = 'pg_catalog.pg_class'::regclass
            AND d.deptype IN ('a', 'i')
        JOIN pg_catalog.pg_class t ON t.oid = d.refobjid
        JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
        JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum = d.refobjsubid
        LEFT JOIN pg_catalog.pg_attrdef f ON f.adrelid = t.oid AND f.adnum = a.attnum
    WHERE t.oid = ANY (%s::oid[]) AND q.seqincrement > 0
        -- not those of weft.snowflake_nextval(), whose values are no sequence's
        AND (a.attidentity <> ''
            OR pg_catalog.pg_get_expr(f.adbin, f.adrelid) LIKE 'nextval(%%')
    ORDER BY 1, 2, 3"""


def behind(server: Server, tables: list[Row]) -> Iterator[tuple[Row, int, int]]:
    """Sequences whose next value a row may have already, that value, and the largest in use."""
    hidden = []
    for row in server.rows(SEQUENCES, [table["oid"] for table in tables]):
        which = f"column {table_name(row)}.{row['column']}"
        if not row["readable"]:
            hidden.append(f"the role may not read {which} and its sequence")
            continue
        if not row["indexed"] and row["length"] > LARGE_TABLE:
            hidden.append(f"{which} has no index, and its table is large ({size(row['length'])})")
            continue
        largest = largest_value(server, row)
        # Read afterwards, since it grows meanwhile.
        state = sequence_state(server, row)
        following = state["last_value"] + (row["step"] if state["is_called"] else 0)
        if largest is not None and following <= largest:
            yield row, following, largest
    if hidden:
        raise NotChecked("; ".join(hidden))


def sequence_state(server: Server, row: Row) -> Row:
    sequence = name(row["sequence_schema"], row["sequence"])
    return server.rows(f"SELECT last_value, is_called FROM {sequence}")[0]


def largest_value(server: Server, row: Row) -> int | None:
    """The largest value of the column that the sequence could make.

    With steps, several servers fill one column with different values.
    """
    column = name(row["column"])
    query = f"SELECT max({column})::bigint FROM {name(row['schema'], row['name'])}"
    if row["step"] > 1:
        value = sequence_state(server, row)["last_value"]
        query += f" WHERE ({column} - {value}) % {row['step']} = 0"
    found = server.value(query)
    return None if found is None else int(found)


@contextmanager
def without_views(server: Server) -> Iterator[None]:
    """A view that takes a table's place between two statements would run its owner's functions.

    Servers without the parameter, which minor releases of all versions have got, are read as they
    are.
    """
    change = "SELECT set_config(name, %s, false) FROM pg_catalog.pg_settings WHERE name = %s"
    parameter = "restrict_nonsystem_relation_kind"
    server.rows(change, "view", parameter)
    try:
        yield
    finally:
        if not server.connection.closed:
            server.rows(change, "", parameter)


def hits(server: Server, tables: list[Row]) -> Iterator[Hit]:
    with without_views(server):
        yield from hits_of(server, tables)


def hits_of(server: Server, tables: list[Row]) -> Iterator[Hit]:
    for row, following, largest in behind(server, tables):
        quoted = literal(name(row["sequence_schema"], row["sequence"]))
        target = min(largest, row["highest"])
        yield Hit(
            f'sequence "{row["sequence_schema"]}.{row["sequence"]}"',
            f'its next value is {following}, but column "{row["column"]}" of table'
            f' "{table_name(row)}" has values up to {largest}',
            # It may be run later, when the sequence is ahead already: never backwards.
            (f"SELECT setval({quoted}, greatest({target}, pg_sequence_last_value({quoted})));",),
        )


@check(
    "W090",
    Group.SEQUENCES,
    Needs.BOTH,
    "publisher",
    "error",
    "sequences of the publisher are ahead of their columns",
    "The next value of a sequence is not above the largest value in its column: rows were "
    "inserted with explicit values, or the database was restored or switched over without its "
    "sequences. INSERTs fail on duplicate keys, or create duplicates.",
    "Set the sequence to the largest value.",
)
def publisher_sequences(case: Case) -> Iterator[Hit]:
    yield from hits(case.there, case.published)


@check(
    "W091",
    Group.SEQUENCES,
    Needs.SUBSCRIPTION,
    "subscriber",
    "info",
    "sequences of the subscriber are ahead of their columns",
    "Logical replication does not replicate sequences, so those of a subscriber stay behind the "
    "rows that it gets. That matters once it accepts writes: after a switch-over (weft "
    "switch-over sets them), a failover, or at once if conflicts are detected. In that case the "
    "severity is warning.",
    "Run SELECT * FROM weft.sync_sequences('SUBSCRIPTION'), or set them to the largest values. In "
    "a group, use sequences with different steps, or weft.snowflake_nextval.",
)
def subscriber_sequences(case: Case) -> Iterator[Hit]:
    for hit in hits(case.subscriber, case.subscribed):
        yield Hit(
            hit.object,
            hit.problem,
            hit.fix_sql,
            severity="warning" if case.detects_conflicts else None,
        )
