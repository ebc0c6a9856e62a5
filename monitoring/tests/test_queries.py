"""The queries of metrics.toml return what it says, on real servers, with an exporter's rights."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from servers import Server, programs_of, wait_for
from situation import (
    DATABASE,
    GROUP_DATABASES,
    PUBLICATIONS,
    TABLES,
    Situation,
    connect_as_role,
    plugin_setting,
)
from trial import pair
from weft_monitoring.definitions import Query, Source
from weft_monitoring.exporters import pgwatch_sql, unpivoted

# int4, int8, float8: what every exporter can read
NUMBERS = {23, 20, 701}
TEXT = 25

Row = dict[str, Any]


def run(connection: "psycopg.Connection[Any]", query: Query, sql: str = "") -> list[Row]:
    """The rows of a query, whose columns are checked."""
    cursor = connection.execute(sql or query.sql)
    assert cursor.description is not None
    names = [column.name for column in cursor.description]
    if not sql:
        assert names == [*query.all_labels, *(column.name for column in query.columns)]
        for column in cursor.description:
            if column.name in query.all_labels:
                assert column.type_code == TEXT, (query.name, column.name)
            else:
                assert column.type_code in NUMBERS, (query.name, column.name)
    return [dict(zip(names, row, strict=True)) for row in cursor]


def places(arranged: Situation) -> Iterator[tuple[Server, str]]:
    """The databases with the extension."""
    yield arranged.subscriber, DATABASE
    yield arranged.publisher, GROUP_DATABASES[0]
    yield arranged.subscriber, GROUP_DATABASES[1]


def measured(arranged: Situation, source: Source) -> dict[str, list[Row]]:
    """The rows of each query in all databases."""
    rows: dict[str, list[Row]] = {query.name: [] for query in source.queries}
    for server, database in places(arranged):
        with connect_as_role(server, database) as connection:
            for query in source.on("subscriber"):
                rows[query.name] += run(connection, query)
    for server in (arranged.publisher, arranged.subscriber):
        for database in (DATABASE, *GROUP_DATABASES):
            if server.value("SELECT count(*) FROM pg_database WHERE datname = %s", database):
                with connect_as_role(server, database) as connection:
                    for query in source.on("publisher"):
                        rows[query.name] += run(connection, query)
    return rows


@pytest.fixture(scope="module")
def rows(arranged: Situation, source: Source) -> dict[str, list[Row]]:
    return measured(arranged, source)


def test_each_column_has_a_value_somewhere(arranged: Situation, source: Source) -> None:
    """Some values, such as an estimate of time, exist only while something happens."""
    missing = set(source.metrics)

    def nothing_is_missing() -> bool:
        arranged.load()
        rows = measured(arranged, source)
        for query in source.queries:
            for column in query.columns:
                if any(row[column.name] is not None for row in rows[query.name]):
                    missing.discard(column.metric)
        return not missing

    wait_for(nothing_is_missing, lambda: f"values of {sorted(missing)}", limit=30)


def test_labels_are_never_null_and_tell_rows_apart(
    rows: dict[str, list[Row]], source: Source
) -> None:
    for query in source.queries:
        keys = [tuple(row[label] for label in query.all_labels) for row in rows[query.name]]
        assert len(set(keys)) == len(keys), (query.name, keys)
        assert all(value is not None for key in keys for value in key), (query.name, keys)


def test_values_are_not_negative(rows: dict[str, list[Row]], source: Source) -> None:
    for query in source.queries:
        for row in rows[query.name]:
            for column in query.columns:
                value = row[column.name]
                assert value is None or value >= 0, (query.name, column.name, row)


def by(rows: list[Row], *labels: str) -> dict[Any, Row]:
    return {tuple(row[label] for label in labels): row for row in rows}


def test_values_are_those_of_the_situation(rows: dict[str, list[Row]]) -> None:
    subscription = by(rows["subscription"], "subname")
    main, broken = subscription[("main",)], subscription[("broken",)]
    assert (main["enabled"], main["up"], main["native"], main["writers"]) == (1, 1, 0, 2)
    assert (broken["enabled"], broken["up"]) == (0, 0)
    assert broken["errors_total"] >= 1 and broken["last_error_timestamp_seconds"] > 1.7e9
    assert main["errors_total"] == 0 and main["last_error_timestamp_seconds"] is None
    transactions = by(rows["subscription_transactions"], "subname", "path")
    assert transactions[("main", "writers")]["total"] >= 50
    applied = by(rows["rows"], "subname", "operation")
    assert applied[("main", "insert")]["applied_total"] >= 50
    assert applied[("main", "delete")]["applied_total"] >= 1
    assert by(rows["path"], "subname")[("main",)]["fast_tables"] >= 1
    copying = by(rows["copy"], "subname")[("copying",)]
    assert copying["tables"] == 1 and 1e6 < copying["done_bytes"] < copying["estimated_bytes"] < 4e7
    assert by(rows["conflict"], "subname", "conflict_type")[("conflicts", "insert_exists")]
    assert by(rows["cut"], "subname")[("main",)]["made_total"] >= 1
    links = by(rows["node_link"], "datname", "from_node", "to_node")
    assert len(links) == 4 and all(link["up"] == 1 for link in links.values())
    slots = by(rows["slot"], "slot_name")
    assert slots[("main",)]["active"] == 1 and slots[("broken",)]["active"] == 0
    assert slots[("broken",)]["inactive_seconds"] >= 0
    assert slots[("main",)]["safe_bytes"] > 1e10 and slots[("main",)]["lost"] == 0
    assert slots[("main",)]["streamed_bytes_total"] > 0


def test_health_names_the_broken_subscription(rows: dict[str, list[Row]]) -> None:
    found = [row for row in rows["health"] if row["severity"] == "error"]
    assert any("broken" in row["object"] for row in found), rows["health"]
    assert not any("main" in row["object"] for row in found), rows["health"]


def test_other_formats_return_the_same(arranged: Situation, source: Source) -> None:
    """Queries that are wrapped for pgwatch and for Debian's exporter."""
    for server, database in places(arranged):
        with connect_as_role(server, database) as connection:
            for query in source.queries:
                labels = query.all_labels
                plain = run(connection, query)
                long = run(connection, query, unpivoted(query))
                tagged = run(connection, query, pgwatch_sql(query))
                assert len(plain) == len(tagged)
                assert by(plain, *labels).keys() == by(tagged, *(f"tag_{x}" for x in labels)).keys()
                for row in tagged:
                    assert row["epoch_ns"] > 1.7e18
                    assert {column.name for column in query.columns} < row.keys()
                assert by(long, *labels).keys() == by(plain, *labels).keys()
                # what is NULL may have changed since, but not what can never be NULL
                first = by(plain, *labels)
                for key, row in by(long, *labels, "metric").items():
                    assert isinstance(row["value"], float)
                    assert row["metric"] in first[key[:-1]]


def test_nothing_is_told_by_a_standby(arranged: Situation, source: Source) -> None:
    """A standby has the primary's subscriptions; nobody may be called out because of them."""
    primary = arranged.subscriber
    standby = Server(primary.directory.parent / "standby", primary.programs, weft=True)
    standby.directory.mkdir()
    primary.run(
        "pg_basebackup", "-h", str(primary.directory), "-p", "5432", "-U", "postgres",
        "-D", str(standby.data), "-R", "-X", "stream", "-c", "fast", "--no-sync",
    )  # fmt: skip
    with (standby.data / "postgresql.conf").open("a") as file:
        file.write(f"unix_socket_directories = '{standby.directory}'\n")
    standby.start()
    try:
        for database in (DATABASE, GROUP_DATABASES[1]):
            with connect_as_role(standby, database) as connection:
                for query in source.queries:
                    # members of a group are facts, and raise no alert
                    if query.name != "node":
                        assert run(connection, query) == [], query.name
    finally:
        standby.stop()


def test_publisher_may_be_old(source: Source) -> None:
    programs = programs_of(15)
    if programs is None:
        pytest.skip("there is no PostgreSQL 15")
    with pair(old=programs) as (old, new):
        old.query(TABLES + PUBLICATIONS)
        old.query("CREATE ROLE weft_monitor LOGIN; GRANT pg_monitor TO weft_monitor")
        new.query(TABLES)
        new.query(f"CREATE SUBSCRIPTION main CONNECTION '{old.conninfo}' PUBLICATION main")
        old.wait_until("SELECT active FROM pg_replication_slots WHERE slot_name = 'main'")
        with connect_as_role(old, "postgres") as connection:
            for query in source.on("publisher"):
                (row,) = [each for each in run(connection, query) if each["slot_name"] == "main"]
                assert (row["active"], row["inactive_seconds"]) == (1, None)
        new.query("DROP SUBSCRIPTION main")


def test_plugin_setting_is_of_this_server(arranged: Situation) -> None:
    known = arranged.publisher.value(
        "SELECT count(*) FROM pg_settings WHERE name = 'output_plugin_libraries'"
    )
    assert bool(plugin_setting()) == bool(known)
