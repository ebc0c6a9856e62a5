"""What the catalogs of both sides say about the replicated tables."""

from weft_cli.doctor.reading import Row
from weft_cli.doctor.sql_text import name
from weft_cli.server import Server

COLUMNS = """
    SELECT a.attrelid::bigint AS oid, a.attname AS name, a.attnum AS number,
        format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS not_null,
        a.attgenerated <> '' AS generated, a.attidentity <> '' AS identity,
        a.atthasdef AS has_default, t.typtype AS kind
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attrelid, a.attnum"""

# "columns" is NULL if there are expressions.
INDEXES = """
    SELECT i.indrelid::bigint AS oid, c.relname AS name, i.indisprimary AS is_primary,
        i.indisunique AS is_unique, i.indisreplident AS is_identity,
        i.indimmediate AS immediate, i.indpred IS NOT NULL AS partial,
        am.amname AS method, pg_catalog.pg_get_indexdef(i.indexrelid) AS definition,
        i.indnullsnotdistinct AS nulls_equal,
        CASE WHEN i.indexprs IS NULL THEN
            (SELECT array_agg(a.attname ORDER BY k.place)
                FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
                    JOIN pg_catalog.pg_attribute a
                        ON a.attrelid = i.indrelid AND a.attnum = k.number
                WHERE k.place <= i.indnkeyatts) END AS columns
    FROM pg_catalog.pg_index i
        JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
        JOIN pg_catalog.pg_am am ON am.oid = c.relam
    WHERE i.indrelid = ANY (%s::oid[]) AND i.indisvalid
    ORDER BY i.indrelid, c.relname"""


class Tables:
    """Columns and indexes of the replicated tables, of both sides."""

    def __init__(self, subscriber: Server, publisher: Server, pairs: list[tuple[Row, Row]]):
        self.pairs = pairs
        # Earlier versions never publish generated columns, though 15 lists them.
        self.publishes_generated = publisher.version >= 180000
        here = [table["oid"] for table, _ in self.pairs]
        there = [table["oid"] for _, table in self.pairs]
        self.columns = by_table(subscriber.rows(COLUMNS, here))
        self.columns_there = by_table(publisher.rows(COLUMNS, there))
        self.indexes = by_table(subscriber.rows(INDEXES, here))
        self.indexes_there = by_table(publisher.rows(INDEXES, there))

    def here(self, table: Row) -> dict[str, Row]:
        return {column["name"]: column for column in self.columns.get(table["oid"], [])}

    def there(self, table: Row) -> dict[str, Row]:
        """All columns, published or not."""
        return {column["name"]: column for column in self.columns_there.get(table["oid"], [])}

    def published(self, table: Row) -> dict[str, Row]:
        return {
            key: column
            for key, column in self.there(table).items()
            if key in (table["columns"] or [])
            and (self.publishes_generated or not column["generated"])
        }

    def identity(self, table: Row) -> list[str] | None:
        """The columns by which the publisher identifies rows; None: it has no identity."""
        if table["identity"] == "f":
            return list(self.there(table))
        for index in self.indexes_there.get(table["oid"], []):
            if table["identity"] == "d" and index["is_primary"]:
                return list(index["columns"])
            if table["identity"] == "i" and index["is_identity"]:
                return list(index["columns"])
        return None

    def key(self, table: Row) -> list[str] | None:
        """The columns by which the subscriber finds rows, unless all are sent."""
        indexes = self.indexes.get(table["oid"], [])
        for wanted in ("is_identity", "is_primary"):
            for index in indexes:
                if index[wanted]:
                    return list(index["columns"])
        return None


def by_table(found: list[Row]) -> dict[int, list[Row]]:
    result: dict[int, list[Row]] = {}
    for row in found:
        result.setdefault(row["oid"], []).append(row)
    return result


def table_name(table: Row) -> str:
    return f"{table['schema']}.{table['name']}"


def table_of(table: Row) -> str:
    return name(table["schema"], table["name"])
