"""weft top: what happens now, on pages between which keys switch."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from weft_cli.assessment import Limits
from weft_cli.context import LOOK_TIMEOUT, Context
from weft_cli.errors import Unreachable, WeftError
from weft_cli.exit_code import ExitCode
from weft_cli.keyboard import Keyboard
from weft_cli.observer import Observer
from weft_cli.options import HELP_NAMES, common_options, publisher_option, watch_option
from weft_cli.output import emit, printable
from weft_cli.status_view import WIDE, unreachable_view
from weft_cli.top_data import Collector, TopData
from weft_cli.top_pages import PAGES, Column, Page, Row

SCHEMA = 1
INTERVAL = 2.0
SHORTEST, LONGEST = 0.5, 60.0
# Lines that are not the page: titles, an empty line, headings, an empty line, keys.
OTHER_LINES = 5

KEYS = "1-6 or arrows: page   s/S: sort by   r: reverse   +/-: interval   space: pause   q: quit"
SHORT_KEYS = "1-6: page  s: sort  r: reverse  +/-: interval  space: pause  q: quit"


@dataclass
class Screen:
    """What the user has chosen."""

    page: int = 0
    interval: float = INTERVAL
    paused: bool = False
    first_row: int = 0
    sort: dict[int, str] = field(default_factory=dict)
    descending: dict[int, bool] = field(default_factory=dict)

    def sort_column(self) -> str:
        return self.sort.get(self.page, PAGES[self.page].sort)

    def is_descending(self) -> bool:
        return self.descending.get(self.page, PAGES[self.page].descending)

    def press(self, key: str) -> bool:
        """Returns false if the user leaves."""
        if key in ("q", "Q", "escape"):
            return False
        if key.isdigit() and 1 <= int(key) <= len(PAGES):
            self._go_to(int(key) - 1)
        elif key in ("right", "left"):
            self._go_to((self.page + (1 if key == "right" else -1)) % len(PAGES))
        elif key in ("s", "S"):
            self._sort_by_next(1 if key == "s" else -1)
        elif key == "r":
            self.descending[self.page] = not self.is_descending()
        elif key in ("+", "-"):
            self.interval *= 2 if key == "+" else 0.5
            self.interval = min(max(self.interval, SHORTEST), LONGEST)
        elif key == " ":
            self.paused = not self.paused
        elif key in ("up", "down", "page up", "page down"):
            lines = 10 if key.startswith("page") else 1
            self.first_row += lines if key.endswith("down") else -lines
            self.first_row = max(self.first_row, 0)
        return True

    def _go_to(self, page: int) -> None:
        self.page = page
        self.first_row = 0

    def _sort_by_next(self, step: int) -> None:
        columns = PAGES[self.page].columns
        if not columns:
            return
        names = [column.name for column in columns]
        column = columns[(names.index(self.sort_column()) + step) % len(names)]
        self.sort[self.page] = column.name
        # Of figures, the large ones are of interest; names are read from A on.
        self.descending[self.page] = column.numeric


@click.command("top", context_settings={"help_option_names": HELP_NAMES})
@click.argument("subscription", nargs=-1)
@common_options
@watch_option
@publisher_option
@click.option("--no-publisher", is_flag=True, help="Do not connect to publishers.")
@click.pass_obj
def command(
    context: Context, subscription: tuple[str, ...], publisher: str | None, no_publisher: bool
) -> ExitCode:
    """Shows live what apply is doing: subscriptions, writers, tables, streams, conflicts, copies.

    Keys: 1 to 6 or arrows for the page, s and S for the column to sort by, r for the order,
    + and - for the interval, space to pause, q to quit. --watch is the interval at first.
    If the output is not a terminal, all pages are written once.
    """

    def begin() -> Collector:
        server = context.connect(LOOK_TIMEOUT)
        server.require_weft()
        return Collector(Observer(server, subscription, publisher, not no_publisher), Limits())

    interval = context.options.watch or INTERVAL
    if context.options.output == "json" or not context.console.is_terminal:
        return _write(context, begin(), interval)
    _Live(context, begin, Screen(interval=interval)).run()
    return ExitCode.FINE


def _write(context: Context, collector: Collector, interval: float) -> ExitCode:
    """Everything once, or again and again if the user wants that; rates need two looks."""
    try:
        collector.collect()
        while True:
            time.sleep(interval if context.options.watch else 1.0)
            data = collector.collect()
            emit(context, SCHEMA, "top", _as_json(data), partial(_all_pages, data))
            if not context.options.watch:
                return ExitCode.FINE
    finally:
        collector.observer.close()


def _as_json(data: TopData) -> dict[str, Any]:
    return {
        "subscriptions": [assessment.as_json() for assessment in data.assessments],
        "writers": data.writers,
        "tables": data.tables,
        "streams": data.streams,
        "conflicts": data.conflicts,
        "latest_conflicts": data.history,
        "copies": [copy.as_json() for copy in data.copies],
    }


def _all_pages(data: TopData, console: Console) -> None:
    for number, page in enumerate(PAGES):
        console.print(Text(page.title, style="bold underline"))
        console.print(page_view(page, data, Screen(page=number), console.width, None))
        console.print()


class _Live:
    """The screen of a terminal, and its keys."""

    def __init__(self, context: Context, begin: Callable[[], Collector], screen: Screen):
        self.context = context
        self.begin = begin
        self.screen = screen
        self.collector: Collector | None = begin()
        self.data: TopData | None = None
        self.error: WeftError | None = None

    def run(self) -> None:
        console = self.context.console
        try:
            with Keyboard() as keyboard, Live(console=console, screen=True,
                                              auto_refresh=False) as live:  # fmt: skip
                while True:
                    if not self.screen.paused:
                        self._collect()
                    live.update(self._view(), refresh=True)
                    if not self._obey(keyboard, live):
                        return
        finally:
            if self.collector:
                self.collector.observer.close()

    def _obey(self, keyboard: Keyboard, live: Live) -> bool:
        """Handles keys until the next refresh is due; false if the user leaves."""
        started = time.monotonic()
        while (rest := started + self.screen.interval - time.monotonic()) > 0:
            key = keyboard.wait(rest)
            if key is not None and not self.screen.press(key):
                return False
            if key is not None:
                live.update(self._view(), refresh=True)
        return True

    def _collect(self) -> None:
        try:
            self.collector = self.collector or self.begin()
            self.data = self.collector.collect()
            self.error = None
        except Unreachable as error:
            if self.collector:
                self.collector.observer.close()
            self.collector = None
            self.error = error

    def _view(self) -> RenderableType:
        console = self.context.console
        parts: list[RenderableType] = [self._head(console.width), Text("")]
        if self.error:
            parts.append(unreachable_view(self.error))
        elif self.data:
            page = PAGES[self.screen.page]
            height = console.height - OTHER_LINES
            parts.append(page_view(page, self.data, self.screen, console.width, height))
        keys = KEYS if console.width > len(KEYS) else SHORT_KEYS
        return Group(*parts, Text(""), Text(keys, style="dim", no_wrap=True))

    def _head(self, width: int) -> RenderableType:
        tabs = Text(no_wrap=True)
        for number, page in enumerate(PAGES):
            style = "reverse" if number == self.screen.page else ""
            tabs.append(f" {number + 1} {page.title} ", style).append(" ")
        clock = "PAUSED" if self.screen.paused else f"{datetime.now():%H:%M:%S}"
        wrong = [f for f in self.data.findings if f.severity != "info"] if self.data else []
        right = Text(f"every {self.screen.interval:g} s  {clock}", style="dim", no_wrap=True)
        grid = Table.grid(expand=True)
        grid.add_column(ratio=1, no_wrap=True)
        grid.add_column(justify="right", no_wrap=True)
        name = printable(self.collector.observer.server.name) if self.collector else ""
        first = Text(name, style="bold", no_wrap=True, overflow="ellipsis")
        if wrong:
            first.append(
                f"  {len(wrong)} problem{'' if len(wrong) == 1 else 's'}: weft status",
                "bold yellow",
            )
        grid.add_row(first, right)
        return Group(grid, tabs)


def sorted_rows(page: Page, data: TopData, screen: Screen) -> list[Row]:
    """What is not known comes last, in either order."""
    rows = list(page.rows(data))
    column = next((c for c in page.columns if c.name == screen.sort_column()), None)
    if column is None:
        return rows
    known = [row for row in rows if column.value(row) is not None]
    unknown = [row for row in rows if column.value(row) is None]
    return sorted(known, key=column.value, reverse=screen.is_descending()) + unknown


def page_view(
    page: Page, data: TopData, screen: Screen, width: int, height: int | None
) -> RenderableType:
    rows = sorted_rows(page, data, screen)
    parts: list[RenderableType] = []
    if page.columns and not rows:
        parts.append(Text(page.nothing))
    elif rows:
        first = min(screen.first_row, max(len(rows) - 1, 0))
        last = len(rows) if height is None else first + max(height, 1)
        parts.append(_table(page, rows[first:last], screen, width))
    below = page.below(data)
    if below is not None:
        parts.append(below)
    return Group(*parts)


def _table(page: Page, rows: list[Row], screen: Screen, width: int) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns = [column for column in page.columns if width >= WIDE or not column.wide]
    for column in columns:
        table.add_column(
            _heading(column, screen),
            justify="right" if column.numeric else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        table.add_row(*(column.cell(row) for column in columns))
    return table


def _heading(column: Column, screen: Screen) -> Text:
    if column.name != screen.sort_column():
        return Text(column.name)
    return Text(column.name, style="reverse")
