"""The tables of a run in a Markdown document, between two comments:

    <!-- figures targets/drain.json -->
    <!-- end of figures -->

The file is one of bench/results.  What is between the comments is replaced by what the file says.
With "figures without costs", the tables of WAL and other costs are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.table import Table

from .arguments import DEFAULTS, Options
from .errors import BenchError
from .figures import Results, figures_from_json
from .tables import tables

RESULTS = Path(__file__).parent.parent / "results"
BEGIN = re.compile(r"<!-- figures (without costs )?(\S+) -->")
END = "<!-- end of figures -->"
# A column that only tables of costs have.
COSTS = "WAL there"
# What a cell says that holds nothing.
NOTHING = ("", "-")
# In this order, as the options of bench/run are called.
SHOWN = ("transactions", "seconds", "rows", "scale", "clients", "writers", "repeats", "passes",
         "kind", "indexes", "load", "steps", "synchronous")  # fmt: skip


def option_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def command_of(scenario: str, given: dict[str, Any]) -> str:
    """A call that has these options, as they are in the file."""
    default = vars(DEFAULTS[scenario])
    words = ["bench/run", scenario, "--systems", option_text(given["systems"])]
    for name in SHOWN:
        if name in given and option_text(given[name]) != option_text(default[name]):
            words += [f"--{name}", option_text(given[name])]
    if given.get("cpus"):
        words += ["--cpus", "/".join(given["cpus"])]
    if given.get("rtt") is not None:
        words += ["--rtt", f"{given['rtt'] * 1000:g}ms"]
        if given.get("rate"):
            words += ["--rate", f"{given['rate'] / 1e6:g}mbit"]
    return " ".join(words)


def origin(about: dict[str, Any], link: str) -> str:
    """Which call it was, when and where.  The file also names the commit, and the time of day."""
    machine = about["machine"]
    commands = [
        f"`{command_of(name, settings['options'])}`" for name, settings in about["settings"].items()
    ]
    return (
        f"{', '.join(commands)}: {machine['date'].split()[0]}, {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['memory_gb']} GB, {machine['filesystem']}, "
        f"PostgreSQL {machine['server']} ([figures]({link}))."
    )


def cell(text: str) -> str:
    """As it stands in Markdown."""
    return text.strip().replace("|", "\\|")


def markdown(table: Table) -> Iterator[str]:
    """Without the columns that say nothing."""
    columns = [
        (str(column.header), [str(value) for value in column.cells], column.justify)
        for column in table.columns
    ]
    columns = [
        column for number, column in enumerate(columns)
        if number == 0 or any(value not in NOTHING for value in column[1])
    ]  # fmt: skip
    rows = [
        [header for header, _, _ in columns],
        ["---:" if justify == "right" else "---" for _, _, justify in columns],
        *zip(*(values for _, values, _ in columns)),
    ]
    for row in rows:
        yield f"| {' | '.join(map(cell, row))} |"


def section(file: Path, link: str, costs: bool = True) -> str:
    """The tables of a file."""
    try:
        about, figures = figures_from_json(file.read_text())
    except (OSError, ValueError, TypeError) as error:
        raise BenchError(f"{file}: {error}") from None
    results = Results()
    results.figures = figures
    parts = [origin(about, link)]
    for title, table in tables(results):
        if not costs and any(column.header == COSTS for column in table.columns):
            continue
        parts += [f"{title[0].upper()}{title[1:]}:", "\n".join(markdown(table))]
    return "\n\n".join(parts)


def renewed(text: str, document: Path, results: Path = RESULTS) -> str:
    """The document with the tables that the files have now."""
    found = []
    place = 0
    for begin in BEGIN.finditer(text):
        without_costs, name = begin.groups()
        if begin.start() < place:
            raise BenchError(f"{document}: figures {name} begin within others")
        end = text.find(END, begin.end())
        if end < 0:
            raise BenchError(f'{document}: "{END}" is missing after figures {name}')
        file = results / name
        link = os.path.relpath(file, document.parent)
        found += [text[place : begin.end()], f"\n{section(file, link, not without_costs)}\n"]
        place = end
    return "".join(found) + text[place:]


def outdated(document: Path, results: Path = RESULTS) -> bool:
    text = document.read_text()
    return renewed(text, document, results) != text


assert set(SHOWN) <= {field.name for field in fields(Options)}
