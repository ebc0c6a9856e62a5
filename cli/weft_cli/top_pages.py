"""The pages of weft top: which columns they have, and how rows are sorted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weft_cli.assessment import Assessment
from weft_cli.copies import copies_view
from weft_cli.output import UNKNOWN, duration, number, printable, rate, size
from weft_cli.status_view import STATE_STYLES
from weft_cli.top_data import TopData

Row = Any


@dataclass(frozen=True)
class Column:
    name: str
    value: Callable[[Row], Any]
    show: Callable[[Row], str | Text] | None = None
    numeric: bool = False
    # only on wide terminals
    wide: bool = False

    def cell(self, row: Row) -> str | Text:
        if self.show:
            return self.show(row)
        value = self.value(row)
        if value is None:
            return UNKNOWN
        return number(value) if self.numeric else printable(value)


@dataclass(frozen=True)
class Page:
    title: str
    columns: tuple[Column, ...]
    rows: Callable[[TopData], list[Row]]
    # what is said instead of an empty table
    nothing: str
    # the name of the column by which it is sorted at first, and whether large values come first
    sort: str
    descending: bool = False
    below: Callable[[TopData], RenderableType | None] = lambda _data: None


def _get(key: str) -> Callable[[Row], Any]:
    return lambda row: row[key]


def _text(name: str, key: str, wide: bool = False) -> Column:
    return Column(name, _get(key), wide=wide)


def _count(name: str, key: str, wide: bool = False) -> Column:
    return Column(name, _get(key), numeric=True, wide=wide)


def _rate(name: str, key: str) -> Column:
    return Column(name, _get(key), lambda row: rate(row[key]), numeric=True)


def _state(a: Assessment) -> Text:
    return Text(a.state, style=STATE_STYLES.get(a.state, ""))


def _left(a: Assessment) -> str:
    return "never" if a.never else duration(a.seconds_left)


def _per_second(count: float | None) -> str:
    return UNKNOWN if count is None else f"{size(count)}/s"


def _busy(a: Assessment) -> str:
    if a.subscription.native:
        return "native"
    if not a.subscription.num_writers:
        return UNKNOWN
    return f"{a.subscription.busy_writers or 0} of {a.subscription.num_writers}"


def _ring(a: Assessment) -> str:
    return f"{a.subscription.ring_fill * 100:.0f}%" if a.subscription.ring_size else UNKNOWN


def _causes(data: TopData) -> RenderableType | None:
    lines = [
        Text.assemble((f"{printable(a.subscription.name)}: ", "bold"), printable(a.culprit.text))
        for a in data.assessments
        if a.culprit
    ]
    return Group(Text(""), *lines) if lines else None


SUBSCRIPTIONS = Page(
    "subscriptions",
    (
        Column("subscription", lambda a: a.subscription.name),
        Column("state", lambda a: a.state, _state),
        Column("behind", lambda a: a.behind_bytes, lambda a: size(a.behind_bytes), numeric=True),
        Column("time", lambda a: a.behind_seconds, lambda a: duration(a.behind_seconds), True),
        Column("rate", lambda a: a.rate, lambda a: rate(a.rate), numeric=True),
        Column("left", lambda a: a.seconds_left, _left, numeric=True),
        Column("busy", lambda a: a.subscription.busy_writers, _busy, numeric=True),
        Column("ring", lambda a: a.subscription.ring_fill, _ring, numeric=True),
        Column("WAL applied", lambda a: a.rate_bytes, lambda a: _per_second(a.rate_bytes), True,
               wide=True),
        Column("WAL written", lambda a: a.growth_bytes, lambda a: _per_second(a.growth_bytes),
               True, wide=True),
        Column("transactions", lambda a: a.subscription.transactions, numeric=True, wide=True),
        Column("changes", lambda a: a.subscription.changes, numeric=True, wide=True),
        Column("retries", lambda a: a.subscription.misspeculations, numeric=True, wide=True),
        Column("plugin", lambda a: a.subscription.output_plugin, wide=True),
    ),
    lambda data: data.assessments,
    "There are no subscriptions.",
    "subscription",
    below=_causes,
)  # fmt: skip

WRITERS = Page(
    "writers",
    (
        _text("subscription", "subscription"),
        _count("writer", "writer"),
        Column("pid", _get("pid"), lambda row: str(row["pid"] or UNKNOWN), numeric=True),
        _text("state", "state"),
        Column("waits for", _get("wait"), lambda row: printable(row["wait"] or UNKNOWN)),
        _rate("transactions", "transaction_rate"),
        _rate("changes", "change_rate"),
        _count("all transactions", "transactions", wide=True),
        _count("all changes", "changes", wide=True),
        _count("retries", "misspeculations", wide=True),
        _text("at", "remote_lsn", wide=True),
    ),
    lambda data: data.writers,
    "There are no writers.",
    "subscription",
)

TABLES = Page(
    "tables",
    (
        _text("table", "table"),
        _text("path", "path"),
        _rate("rows", "rate"),
        _count("inserted", "inserts", wide=True),
        _count("updated", "updates", wide=True),
        _count("deleted", "deletes", wide=True),
        _count("all rows", "rows"),
        _count("general", "general_rows"),
        _count("coalesced", "coalesced_rows", wide=True),
        Column("why not fast", _get("reason"), lambda row: printable(row["reason"] or "")),
        _text("subscription", "subscription", wide=True),
    ),
    lambda data: data.tables,
    "Nothing has been applied since the apply workers started.",
    "rows",
    descending=True,
)

STREAMS = Page(
    "streams",
    (
        _text("subscription", "subscription"),
        _text("transaction", "transaction"),
        _text("state", "state"),
        Column("writer", _get("writer"), lambda row: str(_or(row["writer"])), numeric=True),
        Column("size", _get("spool_bytes"), lambda row: size(row["spool_bytes"]), numeric=True),
        _count("received", "received_changes"),
        _count("applied", "applied_changes"),
    ),
    lambda data: data.streams,
    "No transaction is being streamed.",
    "size",
    descending=True,
)


def _or(value: Any) -> Any:
    return UNKNOWN if value is None else value


def _history(data: TopData) -> RenderableType | None:
    if not data.history:
        return None
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("latest", "table", "type", "resolution", "key"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for row in data.history:
        table.add_row(
            f"{row['time']:%m-%d %H:%M:%S}",
            *(printable(row[key]) for key in ("table", "type", "resolution", "key")),
        )
    return Group(Text(""), table)


CONFLICTS = Page(
    "conflicts",
    (
        _text("subscription", "subscription"),
        _text("type", "type"),
        _rate("rate", "rate"),
        _count("conflicts", "conflicts"),
    ),
    lambda data: data.conflicts,
    "No conflict has been found since the apply workers started.",
    "conflicts",
    descending=True,
    below=_history,
)


def _copies(data: TopData) -> RenderableType | None:
    return copies_view(data.copies) if data.copies else Text("No table is being copied.")


COPIES = Page("copies", (), lambda _data: [], "", "", below=_copies)

PAGES = (SUBSCRIPTIONS, WRITERS, TABLES, STREAMS, CONFLICTS, COPIES)
