"""The figures of a run as pictures."""

from __future__ import annotations

import io
import re
import statistics
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .arguments import SYSTEMS
from .figures import Figure, by_label, format_value, select

# Places on the x axis, and the median, least and greatest value at each.
Points = tuple[list[Any], list[float], list[float], list[float]]

# The same colour for the same system everywhere.
COLOURS = {
    "publisher": "#333333",
    "physical": "#7f7f7f",
    "native": "#1f77b4",
    "native-text": "#9ecae1",
    "native-parallel": "#17becf",
    "pglogical": "#2ca02c",
    "slony": "#bcbd22",
    "londiste": "#8c564b",
    "weft": "#d62728",
    "weft-stock": "#ff9896",
    "plain": "#9467bd",
    "native-timestamps": "#aec7e8",
    "weft-timestamps": "#e377c2",
    "weft-exact": "#ffbb78",
    "weft-detect": "#ff7f0e",
    "weft-strict": "#843c39",
    "weft-lz4": "#e7969c",
    "weft-group": "#7b4173",
    "weft-group-3": "#ce6dbd",
    "native-deferred": "#6baed6",
}
# Numbers of writers of the same system differ in the line.
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v")

SUSTAINED = {
    "publisher_tps": ("sustained-publisher", "Publisher's rate", "transactions/s"),
    "catch_up_s": ("sustained-catch-up", "Time to catch up", "seconds"),
    "sustained_tps": ("sustained-rate", "Sustained rate", "transactions/s"),
}
BARS = {
    "drain_tps": ("Rate at which a backlog is applied", "transactions/s, more is better"),
    "applied_s": ("Time until a large transaction is applied", "seconds, less is better"),
    "copy_s": ("Time of the initial copy", "seconds, less is better"),
}
# Titles of variants whose names are not clear enough.
VARIANTS = {"mixed": "values of many types", "wide": "100 columns"}


def order(figures: list[Figure]) -> list[str]:
    """Labels in the order of the systems, not of the measurements."""
    labels = {(SYSTEMS.index(f.system), f.writers or 0): f.label for f in figures}
    return [labels[key] for key in sorted(labels)]


def system_of(label: str) -> str:
    return label.split(" (")[0]


class Charts:
    def __init__(self, figures: list[Figure], about: dict):
        # Imported when needed: it takes half a second.
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot

        self.pyplot = matplotlib.pyplot
        self.figures = figures
        machine = about.get("machine", {})
        self.caption = ", ".join(
            f"{machine[name]}{unit}"
            for name, unit in (("cpu", ""), ("cores", " cores"), ("date", ""))
            if name in machine
        )
        self.made: dict[str, bytes] = {}

    def draw(self) -> dict[str, bytes]:
        """PNG files by name."""
        for scenario, variant in dict.fromkeys((f.scenario, f.variant) for f in self.figures):
            chosen = select(self.figures, scenario=scenario, variant=variant)
            suffix = f"-{re.sub('[^a-z0-9]+', '-', variant)}" if variant else ""
            if scenario == "sustained":
                for metric in SUSTAINED:
                    self.sustained(chosen, metric, suffix)
                continue
            for metric in BARS:
                measured = select(chosen, metric=metric)
                if measured:
                    self.bars(measured, f"{scenario}{suffix}")
                    self.over_writers(measured, f"{scenario}{suffix}-writers")
        return self.made

    def finish(self, figure: Any, name: str) -> None:
        figure.text(0.01, 0.005, self.caption, fontsize=7, color="#666666")
        output = io.BytesIO()
        figure.savefig(output, format="png", dpi=110)
        self.pyplot.close(figure)
        self.made[f"{name}.png"] = output.getvalue()

    def make(self, title: str, height: float = 5.0) -> tuple[Any, Any]:
        figure: Any
        figure, axes = self.pyplot.subplots(figsize=(9, height), layout="constrained")
        figure.get_layout_engine().set(rect=(0, 0.03, 1, 0.97))
        axes.set_title(title, loc="left", fontweight="bold")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        return figure, axes

    def sustained(self, figures: list[Figure], metric: str, suffix: str) -> None:
        name, title, unit = SUSTAINED[metric]
        measured = select(figures, metric=metric)
        # The publisher alone has nothing to catch up with.
        if metric == "catch_up_s":
            measured = [figure for figure in measured if figure.system != "publisher"]
        if not measured:
            return
        variant = f", {measured[0].variant}" if measured[0].variant else ""
        figure, axes = self.make(f"{title} over clients{variant}")
        for label, style, marker in self.styled(measured):
            own = [f for f in measured if f.label == label]
            points = medians(own, "clients")
            self.line(axes, points, label, style, marker, with_server(label, measured))
        clients = sorted({f.clients for f in measured if f.clients is not None})
        self.label_axes(axes, clients, "pgbench clients", unit)
        self.finish(figure, name + suffix)

    def styled(self, figures: list[Figure]) -> Iterator[tuple[str, str, str]]:
        """Labels, each with line and marker: those of the same system are told apart by them."""
        seen: dict[str, int] = {}
        for label in order(figures):
            system = system_of(label)
            number = seen.get(system, 0)
            seen[system] = number + 1
            marker = MARKERS[(list(COLOURS).index(system) + number) % len(MARKERS)]
            yield label, STYLES[number % len(STYLES)], marker

    def line(
        self, axes: Any, points: Points, label: str, style: str, marker: str, named: str
    ) -> None:
        at, median, low, high = points
        colour = COLOURS[system_of(label)]
        axes.plot(at, median, style, marker=marker, color=colour, label=named, linewidth=2)
        if low != high:
            axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)

    def label_axes(self, axes: Any, at: list[int], across: str, unit: str) -> None:
        if len(at) > 1:
            axes.set_xscale("log", base=2)
        axes.set_xticks(at, [str(number) for number in at])
        axes.minorticks_off()
        axes.set_xlabel(across)
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.grid(axis="y", alpha=0.3)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)

    def bars(self, figures: list[Figure], name: str) -> None:
        """Horizontal, so that names can be read; passes beside each other, told apart by
        hatching, since lighter colours belong to other systems."""
        unit = BARS[figures[0].metric][1]
        passes = list(dict.fromkeys(f.pass_ for f in figures))
        labels = order(figures)[::-1]
        figure, axes = self.make(
            title_of(figures), 1.6 + 0.34 * len(labels) * max(1, 0.75 * len(passes))
        )
        thick = 0.8 / len(passes)
        for number, pass_ in enumerate(passes):
            values = by_label(select(figures, pass_=pass_))
            for place, label in enumerate(labels):
                if label not in values:
                    continue
                colour = COLOURS[system_of(label)]
                median = statistics.median(values[label])
                low, high = min(values[label]), max(values[label])
                axes.barh(
                    place + thick * ((len(passes) - 1) / 2 - number), median, thick * 0.94,
                    color=colour, edgecolor="white", hatch="////" if number else None, linewidth=0,
                    xerr=[[median - low], [high - median]] if low != high else None,
                    error_kw={"ecolor": "#000000", "capsize": 2, "linewidth": 0.8},
                )  # fmt: skip
                note = f" {format_value(median)}" + (f"  {pass_}" if pass_ else "")
                axes.annotate(
                    note, (high, place + thick * ((len(passes) - 1) / 2 - number)),
                    va="center", fontsize=8,
                )  # fmt: skip
        axes.set_yticks(range(len(labels)), [with_server(label, figures) for label in labels])
        axes.set_xlabel(unit)
        axes.margins(x=0.14)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        self.finish(figure, name)

    def over_writers(self, figures: list[Figure], name: str) -> None:
        """Lines for systems with writers; what has none is a level that they may reach."""
        counts = sorted({f.writers for f in figures if f.writers is not None})
        if len(counts) < 2:
            return
        unit = BARS[figures[0].metric][1]
        for pass_ in dict.fromkeys(f.pass_ for f in figures):
            chosen = select(figures, pass_=pass_)
            figure, axes = self.make(
                f"{title_of(figures)}{f', {pass_} pass' if pass_ else ''}, over writers"
            )
            for system in dict.fromkeys(f.system for f in chosen):
                own = select(chosen, system=system)
                if own[0].writers is not None:
                    self.line(axes, medians(own, "writers"), system, "-", "o", system)
                else:
                    level = statistics.median(f.value for f in own)
                    axes.axhline(
                        level,
                        color=COLOURS[system],
                        linestyle="--",
                        label=with_server(system, figures),
                    )
            self.label_axes(axes, counts, "writers", unit)
            self.finish(figure, f"{name}-{pass_}" if pass_ else name)


def with_server(label: str, figures: list[Figure]) -> str:
    """A system that runs on an older server than others says so."""
    newest = max((f.server for f in figures), key=version_number)
    own = next(f.server for f in figures if f.label == label)
    return label if own == newest else f"{label}\non PostgreSQL {own}"


def version_number(server: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", server)]


def title_of(figures: list[Figure]) -> str:
    scenario, variant = figures[0].scenario, figures[0].variant
    if scenario == "io-drain":
        variant = "reading from disk"
    title = BARS[figures[0].metric][0]
    return f"{title}, {VARIANTS.get(variant, variant)}" if variant else title


def medians(figures: list[Figure], across: str) -> Points:
    at = sorted({getattr(f, across) for f in figures})
    groups = [[f.value for f in select(figures, **{across: place})] for place in at]
    return (
        at,
        [statistics.median(group) for group in groups],
        [min(group) for group in groups],
        [max(group) for group in groups],
    )


def write_charts(files: dict[str, bytes], target: str | int) -> None:
    """Into a directory, or as a tar archive into an open file: whoever has opened it may write
    where we may not."""
    if isinstance(target, str):
        Path(target).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (Path(target) / name).write_bytes(content)
        return
    with open(target, "wb") as output, tarfile.open(fileobj=output, mode="w|") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mtime = int(time.time())
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(content))
