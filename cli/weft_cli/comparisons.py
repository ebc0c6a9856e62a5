"""What the extension has recorded of a comparison, and how to show it."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from weft_cli.errors import Refused
from weft_cli.output import UNKNOWN, duration, number, printable
from weft_cli.server import Server

STATUS_STYLES = {"done": "", "skipped": "yellow", "changed": "yellow", "failed": "bold red"}
# Characters of a value, or key, in a table.
MOST_TEXT = 60


@dataclass(frozen=True)
class Comparison:
    number: int
    subscription: str
    node: str | None
    status: str
    seconds: float | None
    longest_cut: float | None  # in seconds
    tables: list[dict[str, Any]]
    differences: list[dict[str, Any]]  # as many as were asked for
    difference_count: int

    @property
    def fine(self) -> bool:
        """Is everything known to be equal?"""
        return (
            self.status == "finished"
            and self.difference_count == 0
            and all(each["status"] == "done" and each["complete"] for each in self.tables)
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "comparison": self.number,
            "subscription": self.subscription,
            "node": self.node,
            "status": self.status,
            "seconds": self.seconds,
            "longest_cut": self.longest_cut,
            "equal": self.fine,
            "difference_count": self.difference_count,
            "tables": self.tables,
            "differences": self.differences,
        }


def load_comparison(server: Server, comparison: int, most_rows: int | None) -> Comparison:
    """Raises Refused if there is no such comparison, or the role may not see it."""
    heads = server.rows(
        "SELECT s.subname, c.node, s.status, c.longest_cut,"
        " extract(epoch FROM c.ended_at - c.started_at)::float AS seconds"
        " FROM weft.stat_comparison s JOIN weft.comparison c USING (comparison)"
        " WHERE s.comparison = %s",
        comparison,
    )
    if not heads:
        raise Refused(
            f"there is no comparison {comparison} in {server.name}", "weft compare --list"
        )
    head = heads[0]
    tables = server.rows(
        "SELECT table_name, status, reason, publisher_rows, local_rows, differences, candidates,"
        " complete FROM weft.comparison_table WHERE comparison = %s ORDER BY table_name",
        comparison,
    )
    differences = server.rows(
        "SELECT difference, relation::text AS table_name, key, kind, row_count, columns,"
        " publisher_row, local_row, local_origin, local_commit_time, repair_result, repair_reason"
        " FROM weft.difference WHERE comparison = %s ORDER BY difference LIMIT %s",
        comparison,
        most_rows,
    )
    return Comparison(
        number=comparison,
        subscription=head["subname"],
        node=head["node"],
        status=head["status"],
        seconds=head["seconds"],
        longest_cut=None if head["longest_cut"] is None else head["longest_cut"] / 1000,
        tables=tables,
        differences=differences,
        difference_count=sum(each["differences"] for each in tables),
    )


def short(value: object) -> str:
    text = printable("NULL" if value is None else value)
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"


def describe_key(difference: dict[str, Any]) -> str:
    """The key, or the whole row of a table that has none."""
    values = difference["key"] or difference["publisher_row"] or difference["local_row"] or {}
    return short(", ".join(f"{name}={value}" for name, value in values.items()))


def describe_difference(difference: dict[str, Any]) -> RenderableType:
    """What is on the publisher, and what is here."""
    if difference["kind"] != "different":
        count = difference["row_count"]
        return f"{difference['kind']}{f', {count} times' if count > 1 else ''}"
    there, here = difference["publisher_row"] or {}, difference["local_row"] or {}
    return Group(
        *(
            f"{printable(name)}: {short(there.get(name))} there, {short(here.get(name))} here"
            for name in difference["columns"] or []
        )
    )


def show_comparison(console: Console, comparison: Comparison) -> None:
    other = f'node "{comparison.node}"' if comparison.node else "the publisher"
    console.print(
        Text(
            f'Comparison {comparison.number} of subscription "{comparison.subscription}" with'
            f" {other}: {comparison.status}"
            + (f" in {duration(comparison.seconds)}" if comparison.seconds is not None else ""),
            "bold",
        ),
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("table", overflow="fold")
    for name in ("rows there", "rows here", "different"):
        table.add_column(name, justify="right")
    table.add_column("result", overflow="fold")
    for each in comparison.tables:
        style = "bold red" if each["differences"] else STATUS_STYLES.get(each["status"], "dim")
        table.add_row(
            printable(each["table_name"]),
            number(each["publisher_rows"]),
            number(each["local_rows"]),
            number(each["differences"]),
            Text(table_result(each), style),
        )
    console.print(table)
    if comparison.differences:
        console.print()
        console.print(difference_table(comparison.differences))
    left = comparison.difference_count - len(comparison.differences)
    if left > 0:
        console.print(Text(f"… and {left:,} more (--rows, or weft.difference)", "dim"))


def table_result(table: dict[str, Any]) -> str:
    if table["status"] != "done":
        reason = f": {printable(table['reason'])}" if table["reason"] else ""
        return f"{table['status']}{reason}"
    if not table["complete"]:
        changing = table["candidates"]
        if changing:
            return f"{changing} rows were changing all the time"
        return "there are more differences"
    return "differs" if table["differences"] else "equal"


def difference_table(differences: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("row of", overflow="fold")
    table.add_column("key", overflow="fold")
    table.add_column("difference", overflow="fold")
    table.add_column("written here by", overflow="fold")
    for each in differences:
        origin = each["local_origin"]
        writer = UNKNOWN if origin is None else printable(origin) or "a session"
        table.add_row(
            printable(each["table_name"]), describe_key(each), describe_difference(each), writer
        )
    return table
