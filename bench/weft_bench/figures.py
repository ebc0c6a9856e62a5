"""Figures: collected, written as JSON after every pass, and shown as a table."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import NamedTuple

from rich import box
from rich.table import Table

# Kinds of processes that have a column of their own; the rest is summed.
PROCESS_COLUMNS = ("walsender", "leader", "writers")


@dataclass(frozen=True)
class Figure:
    scenario: str
    system: str
    server: str
    clients: int
    writers: int | None
    pass_: str
    repeat: int
    metric: str
    unit: str
    value: float
    process: str | None = None

    def as_json(self) -> dict[str, object]:
        record = {
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
        if self.process is not None:
            record["process"] = self.process
        return record


class Summary(NamedTuple):
    median: float
    minimum: float
    maximum: float


def summarize(values: list[float]) -> Summary:
    return Summary(statistics.median(values), min(values), max(values))


class Results:
    """All figures of a run; the file is complete JSON after every pass."""

    def __init__(self, target: str | int | None):
        self.file = target and open(target, "r+" if isinstance(target, int) else "w")  # noqa: SIM115
        self.figures: list[Figure] = []
        self.about: dict[str, object] = {}

    def add(self, figures: list[Figure]) -> None:
        self.figures += figures
        self.write()

    def write(self) -> None:
        if not self.file:
            return
        records = [self.about] + [figure.as_json() for figure in self.figures]
        self.file.seek(0)
        self.file.truncate()
        self.file.write("[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n")
        self.file.flush()

    def select(self, **wanted) -> list[Figure]:
        return [
            figure
            for figure in self.figures
            if all(getattr(figure, name) == value for name, value in wanted.items())
        ]

    def tables(self) -> list[Table]:
        shown = dict.fromkeys((figure.scenario, figure.pass_) for figure in self.figures)
        return [self.table(scenario, pass_) for scenario, pass_ in shown]

    def table(self, scenario: str, pass_: str) -> Table:
        rates = self.select(scenario=scenario, pass_=pass_, metric="drain_tps")
        native = [figure.value for figure in rates if figure.system == "native"]
        table = Table(
            title=f"{scenario}, {pass_} pass: transactions/s; µs of processor per transaction",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=0,
        )
        table.add_column("system", no_wrap=True)
        for column in ("runs", "median", "min", "max", "ratio"):
            table.add_column(column, justify="right")
        for column in (*PROCESS_COLUMNS, "others"):
            table.add_column(column, justify="right")
        for system, writers in dict.fromkeys((f.system, f.writers) for f in rates):
            values = [f.value for f in rates if (f.system, f.writers) == (system, writers)]
            rate = summarize(values)
            table.add_row(
                system if writers is None else f"{system} ({writers})",
                str(len(values)),
                *(f"{value:,.0f}" for value in rate),
                f"{rate.median / statistics.median(native):.2f}" if native else "-",
                *self.processor_cells(scenario, pass_, system, writers),
            )
        return table

    def processor_cells(self, scenario, pass_, system, writers) -> list[str]:
        figures = self.select(
            scenario=scenario, pass_=pass_, system=system, writers=writers, metric="cpu_us_per_txn"
        )
        medians = {
            process: statistics.median(f.value for f in figures if f.process == process)
            for process in {f.process for f in figures}
        }
        own = [f"{medians.pop(name):.1f}" if name in medians else "-" for name in PROCESS_COLUMNS]
        return [*own, f"{sum(medians.values()):.1f}"]
