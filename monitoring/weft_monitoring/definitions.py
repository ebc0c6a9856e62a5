"""Reads metrics.toml."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

PREFIX = "weft"
# of the database that the query runs in; every metric has it
DATABASE = "datname"
DEFAULT_ALERT_LABELS = {DATABASE: "shop", "subname": "s"}
METRIC = re.compile(rf"\b{PREFIX}_[a-z_]+\b(?!\()")


@dataclass(frozen=True)
class Column:
    """A column of a query, which is a metric."""

    name: str
    type: str
    help: str
    metric: str


@dataclass(frozen=True)
class Query:
    name: str
    on: str
    about: str
    labels: tuple[str, ...]
    sql: str
    columns: tuple[Column, ...]

    @property
    def full_name(self) -> str:
        return f"{PREFIX}_{self.name}"

    @property
    def all_labels(self) -> tuple[str, ...]:
        return (DATABASE, *self.labels)


@dataclass(frozen=True)
class AlertTest:
    """Series, by metric, with which the alert fires and keeps quiet."""

    fires: dict[str, str]
    quiet: dict[str, str]
    at: int
    # what {{ $value … }} becomes when it fires
    value: str


@dataclass(frozen=True)
class Alert:
    name: str
    severity: str
    expr: str
    hold: str
    summary: str
    meaning: str
    remedy: str
    labels: dict[str, str]
    test: AlertTest


@dataclass(frozen=True)
class Target:
    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    title: str
    type: str
    unit: str
    about: str
    targets: tuple[Target, ...]
    # from where on the value is shown in red
    bad: float | None
    stack: bool


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Source:
    labels: dict[str, str]
    queries: tuple[Query, ...]
    alerts: tuple[Alert, ...]
    rows: tuple[Row, ...]

    def on(self, side: str) -> list[Query]:
        return [query for query in self.queries if query.on == side]

    @cached_property
    def metrics(self) -> dict[str, tuple[Query, Column]]:
        return {
            column.metric: (query, column) for query in self.queries for column in query.columns
        }

    @property
    def panels(self) -> Iterator[Panel]:
        for row in self.rows:
            yield from row.panels


def metrics_in(expression: str) -> set[str]:
    """The metrics that an expression of Prometheus uses."""
    return set(METRIC.findall(expression))


def without_links(text: str) -> str:
    """For readers who do not see docs/monitoring.md, whose links these are."""
    text = re.sub(r"\[([^]]*)\]\(#[^)]*\)", r'"\1" in docs/monitoring.md', text)
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)


def read_query(entry: dict[str, Any]) -> Query:
    name = entry["name"]
    columns = tuple(
        Column(column, kind, text, f"{PREFIX}_{name}_{column}")
        for column, kind, text in entry["columns"]
    )
    return Query(
        name, entry["on"], entry["about"], tuple(entry["labels"]), entry["sql"].strip(), columns
    )


def read_alert(entry: dict[str, Any]) -> Alert:
    test = entry["test"]
    return Alert(
        name=entry["name"],
        severity=entry["severity"],
        expr=entry["expr"],
        hold=entry["for"],
        summary=entry["summary"],
        meaning=entry["meaning"],
        remedy=entry["remedy"],
        labels=entry.get("labels", DEFAULT_ALERT_LABELS),
        test=AlertTest(test["fires"], test["quiet"], test.get("at", 60), test.get("value", "")),
    )


def read_panel(entry: dict[str, Any]) -> Panel:
    targets = [entry, *entry.get("more", [])]
    return Panel(
        title=entry["title"],
        type=entry["type"],
        unit=entry["unit"],
        about=entry["about"],
        targets=tuple(Target(each["expr"], each.get("legend", "")) for each in targets),
        bad=entry.get("bad"),
        stack=entry.get("stack", False),
    )


def read(path: Path) -> Source:
    with path.open("rb") as file:
        text = tomllib.load(file)
    return Source(
        labels=text["labels"],
        queries=tuple(read_query(entry) for entry in text["query"]),
        alerts=tuple(read_alert(entry) for entry in text["alert"]),
        rows=tuple(
            Row(entry["title"], tuple(read_panel(panel) for panel in entry["panels"]))
            for entry in text["row"]
        ),
    )
