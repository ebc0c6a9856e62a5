"""Initial copies of tables, and how far they are."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from weft_cli.output import UNKNOWN, duration, number, printable, rate, size
from weft_cli.server import Server

# Tables that wait for their turn are only counted.
MOST_SHOWN = 20
BAR_WIDTH = 16

COPIES = """
SELECT subname AS subscription, relation::text AS table, phase, helpers,
    rows_done, rows_estimated, bytes_done, bytes_estimated, bytes_per_second,
    extract(epoch FROM time_left)::float8 AS seconds_left, indexes, indexes_done,
    extract(epoch FROM clock_timestamp() - started_at)::float8 AS seconds, last_error
FROM weft.copy_progress
ORDER BY phase = 'waiting', started_at, relation::text
"""


@dataclass
class Copy:
    subscription: str | None
    table: str
    phase: str
    helpers: int | None
    rows_done: int | None
    rows_estimated: int | None
    bytes_done: int | None
    bytes_estimated: int | None
    bytes_per_second: int | None
    seconds_left: float | None
    indexes: int | None
    indexes_done: int | None
    seconds: float | None
    last_error: str | None

    @property
    def share(self) -> float | None:
        """How much of the current phase is done, between 0 and 1; None if that is not known."""
        if self.phase == "indexing" and self.indexes:
            return (self.indexes_done or 0) / self.indexes
        if self.phase != "copying":
            return None
        for done, estimated in (
            (self.bytes_done, self.bytes_estimated),
            (self.rows_done, self.rows_estimated),
        ):
            if done is not None and estimated:
                return min(done / estimated, 1.0)
        return None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"share": self.share}


def read_copies(server: Server) -> list[Copy]:
    return [Copy(**row) for row in server.rows(COPIES)]


def copies_view(copies: list[Copy]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("table", overflow="fold")
    table.add_column("phase")
    table.add_column("", min_width=BAR_WIDTH, no_wrap=True)
    for name in ("done", "rate", "left"):
        table.add_column(name, justify="right", no_wrap=True)
    active = [copy for copy in copies if copy.phase != "waiting" or copy.last_error]
    shown = active[:MOST_SHOWN]
    for copy in shown:
        table.add_row(
            printable(copy.table),
            copy.phase,
            bar(copy.share),
            _done(copy),
            UNKNOWN if copy.bytes_per_second is None else f"{size(copy.bytes_per_second)}/s",
            duration(copy.seconds_left),
        )
    parts: list[RenderableType] = [Text(f"Copying {len(copies)} tables", style="bold")]
    if len(copies) == 1:
        parts = [Text("Copying 1 table", style="bold")]
    if shown:
        parts.append(table)
    if rest := len(copies) - len(shown):
        parts.append(Text(f"{rest} {'more ' if shown else ''}waiting", style="dim"))
    return Group(*parts)


def bar(share: float | None) -> RenderableType:
    if share is None:
        return Text("")
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(total=1.0, completed=share, width=BAR_WIDTH - 5),
        Text(f"{share * 100:3.0f}%"),
    )
    return line


def _done(copy: Copy) -> str:
    if copy.phase == "indexing" and copy.indexes:
        return f"{copy.indexes_done or 0} of {copy.indexes} indexes"
    if copy.bytes_done:
        return f"{size(copy.bytes_done)} of {size(copy.bytes_estimated)}"
    if copy.rows_done:
        return f"{number(copy.rows_done)} rows"
    return rate(None)
