"""The figures of a run as tables for a terminal."""

from __future__ import annotations

import statistics

from rich import box
from rich.table import Table

from .figures import Figure, Results, by_label, format_value, select, summarize
from .quiet import LEAST_IDLE, MOST_STOLEN
from .ratios import paired, slowdown

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
COSTS = ("publisher_tps", "publisher_wal_per_txn", "idle_before")
# The first of these that was measured is what others are compared with.
NATIVE = ("native", "native-timestamps", "native-parallel")
LAGS = ("p50", "p95", "p99", "max", "end")
# Below this many seconds, the start of processes and the first tuning decisions weigh too much.
SHORT = 10


def make_table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0))
    table.add_column("system", no_wrap=True)
    return table


def tables(results: Results) -> list[tuple[str, Table]]:
    """Titles, and what they are about: a table would break its title at its own width."""
    made: list[tuple[str, Table]] = []
    for scenario, variant in dict.fromkeys((f.scenario, f.variant) for f in results.figures):
        chosen = results.select(scenario=scenario, variant=variant)
        if scenario == "sustained":
            made += [sustained_table(chosen, metric) for metric in SUSTAINED]
            for clients in dict.fromkeys(f.clients for f in chosen):
                made += cost_tables(select(chosen, clients=clients))
        elif scenario == "lag":
            made += [lag_table(chosen)]
        else:
            for pass_ in dict.fromkeys(f.pass_ for f in chosen):
                made.append(headline_table(select(chosen, pass_=pass_)))
                made += cost_tables(select(chosen, pass_=pass_))
    return [(title, table) for title, table in made if table.row_count]


def title_of(figure: Figure) -> str:
    parts = (figure.scenario, figure.variant, figure.pass_ and f"{figure.pass_} pass")
    return ", ".join(part for part in parts if part)


def headline_table(figures: list[Figure]) -> tuple[str, Table]:
    metric = HEADLINES[figures[0].scenario]
    drained = metric == "drain_tps"
    per, unit = ("transaction", "transactions/s") if drained else ("row", "seconds")
    title = (
        f"{title_of(figures[0])}: {unit}; times as fast as {native_of(figures)} and as physical, "
        f"of the same repeats (min to max); µs of processor per {per}; peak memory"
    )
    table = make_table()
    table.add_column("server")
    for column in ("runs", "median", "min", "max", "/native", "/physical", *PROCESSES, "others"):
        table.add_column(column, justify="right")
    table.add_column("MB", justify="right")
    main = select(figures, metric=metric)
    references = [
        [f for f in main if f.system == name] for name in (native_of(figures), "physical")
    ]
    for label in by_label(figures):
        of_system = [figure for figure in figures if figure.label == label]
        table.add_row(
            label,
            of_system[0].server,
            *summary_cells(select(of_system, metric=metric), references),
            *processor_cells(of_system),
            format_value(median_of(of_system, metric="peak_mb")),
        )
    return title, table


def native_of(figures: list[Figure]) -> str:
    """The native system that others are compared with."""
    measured = {figure.system for figure in figures}
    return next((name for name in NATIVE if name in measured), NATIVE[0])


def summary_cells(figures: list[Figure], references: list[list[Figure]]) -> list[str]:
    """The publisher alone has nothing to drain."""
    if not figures:
        return ["-"] * (4 + len(references))
    summary = summarize([figure.value for figure in figures])
    return [
        str(len(figures)),
        *(format_value(value) for value in summary),
        *(ratio_cell(figures, reference) for reference in references),
    ]


def ratio_cell(figures: list[Figure], reference: list[Figure]) -> str:
    ratios = paired(figures, reference)
    if ratios is None:
        return "-"
    if ratios.minimum == ratios.maximum:
        return f"{ratios.median:.2f}"
    return f"{ratios.median:.2f} ({ratios.minimum:.2f} to {ratios.maximum:.2f})"


def median_of(figures: list[Figure], **wanted: object) -> float:
    values = [figure.value for figure in select(figures, **wanted)]
    return statistics.median(values) if values else 0


def median_cell(figures: list[Figure], metric: str, form: str = "") -> str:
    """What was not measured is not 0."""
    if not select(figures, metric=metric):
        return "-"
    value = median_of(figures, metric=metric)
    return f"{value:{form}}" if form else format_value(value)


def processor_cells(figures: list[Figure]) -> list[str]:
    used = select(figures, metric="cpu_us_per_txn")
    medians = {
        process: median_of(used, process=process)
        for process in dict.fromkeys(figure.process for figure in used)
    }
    own = [f"{medians.pop(name):.1f}" if name in medians else "-" for name in PROCESSES]
    return [*own, f"{sum(medians.values()):.1f}"]


def cost_tables(figures: list[Figure]) -> list[tuple[str, Table]]:
    """One, or none if there are no figures for it, as in files of older runs."""
    measured = {figure.metric for figure in figures if figure.metric in COSTS}
    if figures[0].scenario == "sustained":
        # It has a table of its own.
        measured.discard("publisher_tps")
    return [cost_table(figures)] if measured else []


def cost_table(figures: list[Figure]) -> tuple[str, Table]:
    """What a system costs, what it left out, and what the measurement is worth."""
    first = figures[0]
    clients = f", {first.clients} clients" if first.scenario == "sustained" else ""
    per = "row" if first.scenario in ("large", "copy") else "transaction"
    title = (
        f"{title_of(first)}{clients}: WAL and local commits per {per}; updates left out; seconds "
        "until applied, and until the publisher knows it safe; the publisher's rate, and its "
        "slowdown against the publisher alone; least idle and most stolen time"
    )
    table = make_table()
    for column in ("WAL there", "WAL here", "commits", "left out", "s", "confirmed s",
                   "publisher/s", "slower", "idle before", "stolen"):  # fmt: skip
        table.add_column(column, justify="right")
    alone = median_of(figures, metric="publisher_tps", system="publisher")
    for label in by_label(figures):
        own = [figure for figure in figures if figure.label == label]
        seconds = median_cell(own, "drain_s")
        short = any(figure.value < SHORT for figure in select(own, metric="drain_s"))
        rate = median_of(own, metric="publisher_tps")
        table.add_row(
            label,
            median_cell(own, "publisher_wal_per_txn", ",.0f"),
            median_cell(own, "subscriber_wal_per_txn", ",.0f"),
            median_cell(own, "commits_per_txn", ".3f"),
            f"{median_of(own, metric='updates_left_out'):.1f} %"
            if select(own, metric="updates_left_out") else "-",
            f"{seconds} (short)" if short else seconds,
            median_cell(own, "confirmed_s"),
            format_value(rate) if rate else "-",
            f"{slowdown(alone, rate):.1f} %" if alone and rate else "-",
            *quiet_cells(own),
        )  # fmt: skip
    return title, table


def quiet_cells(figures: list[Figure]) -> list[str]:
    """The worst of all repeats: before a measurement nothing else may run, and during it no other
    machine may take the processors."""
    idle = [f.value for f in select(figures, metric="idle_before")]
    steal = [
        f.value for name in ("steal_before", "steal_during") for f in select(figures, metric=name)
    ]
    if not idle or not steal:
        return ["-", "-"]
    return [
        f"{min(idle):.0f} %" + ("" if min(idle) >= LEAST_IDLE else " (busy)"),
        f"{max(steal):.1f} %" + ("" if max(steal) <= MOST_STOLEN else " (busy)"),
    ]


def lag_table(figures: list[Figure]) -> tuple[str, Table]:
    """Rates and systems down."""
    title = (
        f"{title_of(figures[0])}: milliseconds until a commit is visible on the subscriber, "
        "medians of the repeats (end: of the last tenth of the time); the publisher's rate; "
        "seconds until caught up; µs of processor; peak memory"
    )
    table = make_table()
    for column in ("rate", *LAGS, "publisher/s", "catch-up s", *PROCESSES, "others", "MB",
                   "idle before", "stolen"):  # fmt: skip
        table.add_column(column, justify="right")
    measured = [figure for figure in figures if figure.rate is not None]
    for rate in sorted({f.rate for f in measured if f.rate is not None}):
        at_rate = select(measured, rate=rate)
        for label in by_label(at_rate):
            own = [figure for figure in at_rate if figure.label == label]
            table.add_row(
                label,
                f"{rate:,}",
                *(median_cell(own, f"lag_{name}_ms") for name in LAGS),
                median_cell(own, "publisher_tps"),
                median_cell(own, "catch_up_s"),
                *processor_cells(own),
                median_cell(own, "peak_mb"),
                *quiet_cells(own),
            )
    return title, table


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
