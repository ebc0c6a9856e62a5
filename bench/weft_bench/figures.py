"""Figures: collected, and written as JSON after every pass."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import IO, Any, NamedTuple


@dataclass(frozen=True)
class Figure:
    scenario: str
    system: str
    server: str
    clients: int | None
    writers: int | None
    pass_: str | None
    repeat: int
    metric: str
    unit: str
    value: float
    process: str | None = None
    variant: str | None = None
    # Transactions per second that the load was limited to.
    rate: int | None = None

    @property
    def formatted(self) -> str:
        return format_value(self.value)

    @property
    def label(self) -> str:
        return self.system if self.writers is None else f"{self.system} ({self.writers})"

    def as_json(self) -> dict[str, object]:
        record: dict[str, object] = {
            "scenario": self.scenario,
            "system": self.system,
            "server": self.server,
            "clients": self.clients,
            "writers": self.writers,
            "pass": self.pass_,
            "metric": self.metric,
            "unit": self.unit,
            "repeat": self.repeat,
            "value": round(self.value, 3),
        }
        for name in ("process", "variant", "rate"):
            if getattr(self, name) is not None:
                record[name] = getattr(self, name)
        return record


def figure_from_json(record: dict) -> Figure:
    values = dict(record)
    return Figure(pass_=values.pop("pass"), **values)


def figures_from_json(text: str) -> tuple[dict, list[Figure]]:
    """What is in one file or several, one after the other; what the runs were is told of the
    first."""
    decoder = json.JSONDecoder()
    abouts: list[dict] = []
    figures: list[Figure] = []
    text = text.strip()
    while text:
        (about, *records), end = decoder.raw_decode(text)
        abouts.append(about)
        figures += map(figure_from_json, records)
        text = text[end:].lstrip()
    return (abouts or [{}])[0], figures


def format_value(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 10 else f"{value:.1f}"


class Summary(NamedTuple):
    median: float
    minimum: float
    maximum: float


def summarize(values: list[float]) -> Summary:
    return Summary(statistics.median(values), min(values), max(values))


def faster(metric: str, value: float, than: float) -> float:
    """How many times as fast: rates are better the higher, times the lower."""
    ratio = value / than if than else float("inf")
    return ratio if metric.endswith("_tps") else 1 / ratio if ratio else float("inf")


class Results:
    """All figures of a run; the file is complete JSON after every pass."""

    def __init__(self, target: str | int | None = None):
        self.file: IO[str] | None = None
        if target is not None:
            self.file = open(target, "r+" if isinstance(target, int) else "w")  # noqa: SIM115
        self.figures: list[Figure] = []
        self.about: dict[str, Any] = {}

    def add(self, figures: list[Figure]) -> None:
        self.figures += figures
        self.write()

    def note(self, what: str, **details: object) -> None:
        """Something about the run itself, beside machine and settings."""
        self.about.setdefault(what, []).append(details)
        self.write()

    def note_once(self, what: str, name: str, details: object) -> None:
        self.about.setdefault(what, {}).setdefault(name, details)

    def write(self) -> None:
        if not self.file:
            return
        records = [self.about] + [figure.as_json() for figure in self.figures]
        self.file.seek(0)
        self.file.truncate()
        self.file.write("[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n")
        self.file.flush()

    def select(self, **wanted: object) -> list[Figure]:
        return select(self.figures, **wanted)


def select(figures: list[Figure], **wanted: object) -> list[Figure]:
    return [
        figure
        for figure in figures
        if all(getattr(figure, name) == value for name, value in wanted.items())
    ]


def by_label(figures: list[Figure]) -> dict[str, list[float]]:
    """The values of each system, in the order in which they were measured."""
    values: dict[str, list[float]] = {}
    for figure in figures:
        values.setdefault(figure.label, []).append(figure.value)
    return values
