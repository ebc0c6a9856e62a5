"""The figures of a run as tables for a terminal."""

from __future__ import annotations

import statistics

from rich import box
from rich.table import Table

from .figures import Figure, Results, by_label, faster, format_value, select, summarize

# Kinds of processes that have a column of their own; the rest is summed.
PROCESSES = ("walsender", "leader", "writers", "startup")
HEADLINES = {
    "drain": "drain_tps",
    "io-drain": "drain_tps",
    "large": "applied_s",
    "copy": "copy_s",
}
SUSTAINED = {
    "publisher_tps": "publisher's transactions/s",
    "catch_up_s": "seconds until caught up",
    "sustained_tps": "sustained transactions/s",
}


def make_table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0))
    table.add_column("system", no_wrap=True)
    return table


def tables(results: Results) -> list[tuple[str, Table]]:
    """Titles, and what they are about: a table would break its title at its own width."""
    made = []
    for scenario, variant in dict.fromkeys((f.scenario, f.variant) for f in results.figures):
        chosen = results.select(scenario=scenario, variant=variant)
        if scenario == "sustained":
            made += [sustained_table(chosen, metric) for metric in SUSTAINED]
            continue
        for pass_ in dict.fromkeys(f.pass_ for f in chosen):
            made.append(headline_table(select(chosen, pass_=pass_)))
    return [(title, table) for title, table in made if table.row_count]


def title_of(figure: Figure) -> str:
    parts = (figure.scenario, figure.variant, figure.pass_ and f"{figure.pass_} pass")
    return ", ".join(part for part in parts if part)


def headline_table(figures: list[Figure]) -> tuple[str, Table]:
    metric = HEADLINES[figures[0].scenario]
    drained = metric == "drain_tps"
    per, unit = ("transaction", "transactions/s") if drained else ("row", "seconds")
    title = (
        f"{title_of(figures[0])}: {unit}; times as fast as native and as physical; "
        f"µs of processor per {per}; peak memory"
    )
    table = make_table()
    table.add_column("server")
    for column in ("runs", "median", "min", "max", "/native", "/physical", *PROCESSES, "others"):
        table.add_column(column, justify="right")
    table.add_column("MB", justify="right")
    if drained:
        # Some systems make the publisher's transactions longer.
        table.add_column("backlog/s", justify="right")
    values = by_label(select(figures, metric=metric))
    references = [values.get(name) for name in ("native", "physical")]
    for label in by_label(figures):
        of_system = [figure for figure in figures if figure.label == label]
        table.add_row(
            label,
            of_system[0].server,
            *summary_cells(metric, values.get(label), references),
            *processor_cells(of_system),
            format_value(median_of(of_system, metric="peak_mb")),
            *([format_value(median_of(of_system, metric="publisher_tps"))] if drained else []),
        )
    return title, table


def summary_cells(metric: str, values: list[float] | None, references: list) -> list[str]:
    """The publisher alone has nothing to drain."""
    if not values:
        return ["-"] * (4 + len(references))
    summary = summarize(values)
    ratios = (
        f"{faster(metric, summary.median, statistics.median(reference)):.2f}" if reference else "-"
        for reference in references
    )
    return [str(len(values)), *(format_value(value) for value in summary), *ratios]


def median_of(figures: list[Figure], **wanted: object) -> float:
    values = [figure.value for figure in select(figures, **wanted)]
    return statistics.median(values) if values else 0


def processor_cells(figures: list[Figure]) -> list[str]:
    used = select(figures, metric="cpu_us_per_txn")
    medians = {
        process: median_of(used, process=process)
        for process in dict.fromkeys(figure.process for figure in used)
    }
    own = [f"{medians.pop(name):.1f}" if name in medians else "-" for name in PROCESSES]
    return [*own, f"{sum(medians.values()):.1f}"]


def sustained_table(figures: list[Figure], metric: str) -> tuple[str, Table]:
    """Systems down, clients across; medians, with minimum and maximum if there are more."""
    table = make_table()
    table.add_column("server")
    main = select(figures, metric=metric)
    clients = sorted({figure.clients for figure in main if figure.clients is not None})
    for number in clients:
        table.add_column(str(number), justify="right")
    for label in by_label(main):
        of_system = [figure for figure in main if figure.label == label]
        cells = []
        for number in clients:
            values = [figure.value for figure in select(of_system, clients=number)]
            if not values:
                cells.append("-")
                continue
            median, low, high = (format_value(value) for value in summarize(values))
            cells.append(median if len(values) == 1 else f"{median} ({low} to {high})")
        table.add_row(label, of_system[0].server, *cells)
    return f"sustained: {SUSTAINED[metric]}, by clients", table
