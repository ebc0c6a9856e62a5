"""Checks of what surrounds the tables: encodings, collations, clocks."""

import time
from collections.abc import Iterator

from weft_cli.doctor.case import Case
from weft_cli.doctor.registry import Group, Hit, Needs, check
from weft_cli.doctor.sql_text import name
from weft_cli.output import duration
from weft_cli.server import Server

# The clock is read so often, and the reading with the shortest round trip counts.
CLOCK_READINGS = 5


@check(
    "W100",
    Group.DATABASE,
    Needs.BOTH,
    "subscriber",
    "warning",
    "encodings of the databases",
    "The databases have different encodings. The subscriber converts what it gets; a character "
    "that its encoding does not have stops apply. With SQL_ASCII on one side, nothing is "
    "converted, and the bytes may be wrong.",
    "Only a new database can have another encoding: CREATE DATABASE ... TEMPLATE template0 "
    "ENCODING ... on the subscriber, and a new subscription there.",
)
def encodings(case: Case) -> Iterator[Hit]:
    query = (
        "SELECT pg_catalog.pg_encoding_to_char(encoding) FROM pg_catalog.pg_database"
        " WHERE datname = current_database()"
    )
    here, there = case.subscriber.value(query), case.there.value(query)
    if here != there:
        yield Hit(
            f'database "{case.subscriber.connection.info.dbname}"',
            f"the encoding is {here} on the subscriber, {there} on the publisher",
        )


COLLATIONS = """
    SELECT NULL AS schema, d.datname AS name, d.datcollversion AS old, v.new,
        NULL::text[] AS indexes
    FROM pg_catalog.pg_database d,
        pg_catalog.pg_database_collation_actual_version(d.oid) v(new)
    WHERE d.datname = current_database() AND d.datcollversion <> v.new
    UNION ALL
    SELECT n.nspname, c.collname, c.collversion, v.new, (
        SELECT array_agg(DISTINCT format('%I.%I', xn.nspname, x.relname))
        FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
            JOIN pg_catalog.pg_namespace xn ON xn.oid = x.relnamespace
        WHERE c.oid = ANY (i.indcollation))
    FROM pg_catalog.pg_collation c JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace,
        pg_catalog.pg_collation_actual_version(c.oid) v(new)
    WHERE c.collversion <> v.new AND (n.nspname <> 'pg_catalog'
        OR EXISTS (SELECT FROM pg_catalog.pg_index i WHERE c.oid = ANY (i.indcollation)))
    ORDER BY 1 NULLS FIRST, 2"""


def collations_of(server: Server, side: str) -> Iterator[Hit]:
    for row in server.rows(COLLATIONS):
        if row["schema"] is None:
            what = f'database "{row["name"]}"'
            fix: tuple[str, ...] = (
                f"REINDEX DATABASE {name(row['name'])};",
                f"ALTER DATABASE {name(row['name'])} REFRESH COLLATION VERSION;",
            )
        else:
            what = f'collation "{row["schema"]}.{row["name"]}"'
            fix = (
                *(f"REINDEX INDEX CONCURRENTLY {index};" for index in row["indexes"] or []),
                f"ALTER COLLATION {name(row['schema'], row['name'])} REFRESH VERSION;",
            )
        yield Hit(
            what,
            f"it was created with version {row['old']} of its collation, and the server now has"
            f" {row['new']}",
            fix,
            side=side,
        )


@check(
    "W101",
    Group.DATABASE,
    Needs.SUBSCRIBER,
    "subscriber",
    "warning",
    "collation versions",
    "The operating system's or ICU's collation has changed since indexes were built. They may be "
    "out of order: rows are not found, duplicates are accepted, and changes are not applied to "
    "rows that exist.",
    "Rebuild the indexes, and then refresh the stored version. This takes as long as building "
    "them; REINDEX DATABASE locks each table in turn.",
)
def collations(case: Case) -> Iterator[Hit]:
    yield from collations_of(case.subscriber, "subscriber")
    if case.publisher is not None:
        yield from collations_of(case.publisher, "publisher")
    case.require_publisher()


def clock_offset(server: Server) -> tuple[float, float]:
    """How far the server's clock is ahead of this machine's, and how much of that is unsure."""
    readings = []
    for _ in range(CLOCK_READINGS):
        before = time.time()
        there = server.value("SELECT extract(epoch FROM clock_timestamp())::float")
        after = time.time()
        readings.append(((after - before) / 2, there - (before + after) / 2))
    unsure, offset = min(readings)
    return offset, unsure


@check(
    "W102",
    Group.DATABASE,
    Needs.BOTH,
    "subscriber",
    "warning",
    "clocks agree",
    "The clocks of the two servers differ. Lag that is measured in time is wrong by as much. If "
    "conflicts are detected, the later commit wins, so a server whose clock is ahead wins too "
    "often, and one whose clock is behind applies changes later.",
    "Synchronize both clocks (NTP, chrony), without setting one back on a server that detects "
    "conflicts. --clock-skew sets the difference that is allowed (2 s).",
)
def clocks(case: Case) -> Iterator[Hit]:
    here, unsure_here = clock_offset(case.subscriber)
    there, unsure_there = clock_offset(case.there)
    skew = here - there
    if abs(skew) - unsure_here - unsure_there > case.thresholds.clock_skew:
        yield Hit(
            f"clock of {case.subscriber.name}",
            f"it is {duration(abs(skew))} {'ahead of' if skew > 0 else 'behind'} the publisher's",
        )
