"""Queries in the formats of the programs that run them.

All of them end up as metrics with the same names and labels.  Where a program adds a prefix, or
puts the name of the column into a label, prometheus/scrape.yml undoes that.
"""

from typing import Any

from .definitions import Query, Source, without_links
from .yaml_text import to_yaml

# Seconds between measurements where a program wants to know that.  Each takes some milliseconds.
INTERVAL = 15
# the oldest servers that can answer
OLDEST = {"subscriber": 17, "publisher": 15}
COLLECTORS = {"subscriber": "weft", "publisher": "weft_publisher"}


def sql_exporter(source: Source, side: str) -> str:
    """A collector for sql_exporter (burningalchemist/sql_exporter)."""
    return to_yaml(
        {
            "collector_name": COLLECTORS[side],
            "metrics": [
                {
                    "metric_name": column.metric,
                    "type": column.type,
                    "help": column.help,
                    "key_labels": list(query.all_labels),
                    "values": [column.name],
                    "query_ref": query.full_name,
                }
                for query in source.on(side)
                for column in query.columns
            ],
            "queries": [
                {"query_name": query.full_name, "query": query.sql + "\n"}
                for query in source.on(side)
            ],
        }
    )


def unpivoted(query: Query) -> str:
    """One row for each value that is not NULL, which Debian's exporter would call an error."""
    labels = ", ".join(f"q.{label}" for label in query.all_labels)
    values = ",\n  ".join(f"('{column.name}', q.{column.name}::float8)" for column in query.columns)
    return (
        f"SELECT {labels}, v.metric, v.value\nFROM (\n{query.sql}\n) q\n"
        f"CROSS JOIN LATERAL (VALUES\n  {values}) v(metric, value)\nWHERE v.value IS NOT NULL\n"
    )


def debian_sql_exporter(source: Source, side: str) -> str:
    """Configuration of the program that Debian packages as prometheus-sql-exporter."""
    job = {
        "name": COLLECTORS[side],
        "interval": f"{INTERVAL}s",
        # the database, role and host; password from PGPASSFILE
        "connections": ["postgres://weft_monitor@localhost/shop"],
        "queries": [
            {
                "name": query.full_name,
                "help": query.about,
                "labels": [*query.all_labels, "metric"],
                "values": ["value"],
                "allow_zero_rows": True,
                "query": unpivoted(query),
            }
            for query in source.on(side)
        ],
    }
    return to_yaml({"jobs": [job]})


def postgres_exporter_queries(source: Source, side: str) -> dict[str, Any]:
    """The format that CloudNativePG has taken over from postgres_exporter."""
    return {
        query.full_name: {
            "query": query.sql + "\n",
            "metrics": [
                *(
                    {label: {"usage": "LABEL", "description": without_links(source.labels[label])}}
                    for label in query.all_labels
                ),
                *(
                    {column.name: {"usage": column.type.upper(), "description": column.help}}
                    for column in query.columns
                ),
            ],
        }
        for query in source.on(side)
    }


def cloudnative_pg(source: Source) -> str:
    """A ConfigMap; the publisher's queries need no extension, so they are a key of their own."""
    subscriber = postgres_exporter_queries(source, "subscriber")
    for query in subscriber.values():
        # the main database of a cluster need not have the extension
        query["predicate_query"] = (
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'weft')\n"
        )
    return to_yaml(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "weft-monitoring", "labels": {"cnpg.io/reload": ""}},
            "data": {
                "subscriber": to_yaml(subscriber),
                "publisher": to_yaml(postgres_exporter_queries(source, "publisher")),
            },
        }
    )


def pgwatch_sql(query: Query) -> str:
    columns = [
        "(extract(epoch FROM clock_timestamp()) * 1e9)::int8 AS epoch_ns",
        *(f"q.{label} AS tag_{label}" for label in query.all_labels),
        *(f"q.{column.name}" for column in query.columns),
    ]
    return (
        "SELECT /* pgwatch_generated */\n  "
        + ",\n  ".join(columns)
        + f"\nFROM (\n{query.sql}\n) q\n"
    )


def pgwatch(source: Source) -> str:
    """Metrics and two presets for pgwatch 3 and later."""
    metrics: dict[str, Any] = {}
    for query in source.queries:
        metrics[query.full_name] = {
            "description": query.about,
            "sqls": {OLDEST[query.on]: pgwatch_sql(query)},
            "gauges": [column.name for column in query.columns if column.type == "gauge"],
        }
    presets = {
        COLLECTORS[side]: {
            "description": f"Weft: {side}",
            "metrics": {query.full_name: INTERVAL for query in source.on(side)},
        }
        for side in COLLECTORS
    }
    return to_yaml({"metrics": metrics, "presets": presets})
