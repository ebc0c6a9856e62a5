"""Compares the schema and the rows of two databases, for ddl_regress.py and ddl_migrations.py.

The schema is what pg_dump says of it, one entry for each object.  The rows are those of all
permanent tables.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from demo_common import run

ENTRY = re.compile(
    r"^-- Name: (?P<name>.*?); Type: (?P<type>.*?); Schema: (?P<schema>.*?); Owner: .*$",
    re.MULTILINE,
)
# Settings for the entries that follow; the random key of the command \restrict; and what
# ddl_regress.py itself does to tables.
IGNORED_LINE = re.compile(r"SET |--|$|\\(un)?restrict |ALTER TABLE ONLY .* REPLICA IDENTITY FULL;$")

# Objects that are not replicated by design.
LOCAL_TYPES = {
    "BLOB", "BLOB METADATA", "LARGE OBJECT", "PUBLICATION", "PUBLICATION TABLE", "SUBSCRIPTION",
    "USER MAPPING",
}  # fmt: skip
LOCAL_TEXT = re.compile(
    r"\A(CREATE UNLOGGED |COMMENT ON LARGE OBJECT|(GRANT|REVOKE) .* ON LARGE OBJECT)"
)

TABLES = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE relkind = 'r' AND relpersistence = 'p' AND nspname <> 'information_schema'
    AND nspname !~ '^pg_' AND nspname <> 'weft'
"""
SAME_TEXTS = (
    "SET datestyle = 'ISO, MDY'; SET timezone = 'GMT'; SET intervalstyle = 'postgres';"
    " SET bytea_output = 'hex'; SET extra_float_digits = 3; SET search_path = '';"
    " SET row_security = off; SET statement_timeout = '60s'"
)


@dataclass
class Differences:
    """What two databases do not have in common."""

    schema: list[str] = field(default_factory=list)
    # of objects that are not replicated by design
    local: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    # of entries of "schema", for reading
    texts: dict[str, tuple[str, str]] = field(default_factory=dict)

    def without(self, others: "Differences") -> "Differences":
        """Those that are not among others."""
        return Differences(
            [line for line in self.schema if line not in others.schema],
            [line for line in self.local if line not in others.local],
            [line for line in self.rows if line not in others.rows],
            self.texts,
        )


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def entries(conninfo: str) -> dict[str, str]:
    """What pg_dump writes about each object."""
    text = run(
        "pg_dump", "--schema-only", "--no-publications", "--no-subscriptions", "--no-tablespaces",
        "--quote-all-identifiers", "--exclude-schema=weft", conninfo,
    )  # fmt: skip
    result: dict[str, str] = {}
    matches = list(ENTRY.finditer(text))
    for match, following in zip(matches, [*matches[1:], None]):
        body = text[match.end() : following.start() if following else len(text)]
        lines = [line for line in body.splitlines() if not IGNORED_LINE.match(line)]
        key = f"{match['type']} {match['schema']}.{match['name']}"
        if "EXTENSION" in match["type"] and match["name"] in ("weft", "EXTENSION weft"):
            continue
        result[key] = result.get(key, "") + "\n".join(lines).strip() + "\n"
    return result


def is_local(key: str, texts: Iterable[str]) -> bool:
    kind = next((kind for kind in LOCAL_TYPES if key.startswith(kind + " ")), None)
    return kind is not None or any(LOCAL_TEXT.match(text) for text in texts)


def compare_schemas(one: str, other: str, result: Differences) -> None:
    here, there = entries(one), entries(other)
    unlogged = {
        match[1]
        for text in [*here.values(), *there.values()]
        if (match := re.match(r"CREATE UNLOGGED \w+ (\S+)", text))
    }
    for key in sorted(here.keys() | there.keys()):
        first, second = here.get(key), there.get(key)
        if first == second:
            continue
        what = "missing" if second is None else "unexpected" if first is None else "different"
        line = f"{what}: {key}"
        owned = any(name in (first or "") + (second or "") for name in unlogged)
        if owned or is_local(key, [text for text in (first, second) if text]):
            result.local.append(line)
        else:
            result.schema.append(line)
            result.texts[line] = (first or "", second or "")


def tables_of(connection: psycopg.Connection[Any]) -> set[tuple[str, str]]:
    return {(row[0], row[1]) for row in connection.execute(TABLES)}


def fingerprint(connection: psycopg.Connection[Any], schema: str, name: str) -> object:
    """Equal if the tables have the same rows; an error is a fingerprint, too."""
    table = f"ONLY {identifier(schema)}.{identifier(name)}"
    query = (
        "SELECT pg_catalog.count(*), pg_catalog.md5(pg_catalog.string_agg(h, '' ORDER BY h))"
        f" FROM (SELECT pg_catalog.md5(t::pg_catalog.text) AS h FROM {table} t) s"
    )
    try:
        row = connection.execute(query.encode()).fetchone()
        return tuple(row) if row else None
    except psycopg.Error as error:
        return error.sqlstate


def compare_rows(one: str, other: str, result: Differences) -> int:
    """Returns how many tables were compared."""
    with (
        psycopg.connect(one, autocommit=True) as here,
        psycopg.connect(other, autocommit=True) as there,
    ):
        for connection in (here, there):
            for command in SAME_TEXTS.split(";"):
                connection.execute(command.encode())
        both = sorted(tables_of(here) & tables_of(there))
        for schema, name in both:
            first = fingerprint(here, schema, name)
            second = fingerprint(there, schema, name)
            if first != second:
                result.rows.append(f"{schema}.{name}: {first}, {second}")
    return len(both)


def compare_databases(one: str, other: str) -> tuple[Differences, int]:
    """Returns what differs, and how many tables' rows were compared."""
    result = Differences()
    compare_schemas(one, other, result)
    tables = compare_rows(one, other, result)
    return result, tables
