"""weft repair: makes rows that a comparison has found to differ equal to the publisher's."""

from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft_cli.changes import ask, progress_bars, second_connection, while_running
from weft_cli.comparisons import describe_key
from weft_cli.context import Context
from weft_cli.errors import Refused
from weft_cli.exit_code import ExitCode
from weft_cli.options import HELP_NAMES, change_options, common_options
from weft_cli.output import emit, number, printable
from weft_cli.server import Server

ROWS_SHOWN = 10
REPAIRED = ("repaired", "vanished")


@click.command("repair", context_settings={"help_option_names": HELP_NAMES})
@click.argument("comparison", type=int)
@click.option(
    "--winner",
    metavar="NODE",
    help="Of a comparison of two nodes: the one whose rows win; by default, the newer row does.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1, 10000),
    default=100,
    show_default=True,
    help="Rows in one transaction.",
)
@click.option(
    "--lock-timeout",
    metavar="INTERVAL",
    default="200 ms",
    show_default=True,
    help="A row that a session locks for longer is left.",
)
@click.option(
    "--max-pause",
    metavar="INTERVAL",
    default="2 s",
    show_default=True,
    help="For how long apply may stand still for a batch.",
)
@click.option(
    "--rows",
    type=click.IntRange(0),
    metavar="N",
    help=f"How many rows to show; {ROWS_SHOWN} by default, all with -o json.",
)
@common_options
@change_options
@click.pass_obj
def command(
    context: Context,
    comparison: int,
    winner: str | None,
    batch_size: int,
    lock_timeout: str,
    max_pause: str,
    rows: int | None,
) -> ExitCode:
    """Repairs the differences that comparison number COMPARISON has found.

    Each row is looked at again on both sides first, so nothing newer is overwritten. Exit
    status 1 means that some rows were left.
    """
    if rows is None and context.options.output == "table":
        rows = ROWS_SHOWN
    arguments: dict[str, Any] = {
        "batch_size": batch_size,
        "lock_timeout": lock_timeout,
        "max_pause": max_pause,
        "winner": winner,
    }
    with context.connect() as server:
        server.require_weft()
        node = _node_of(server, comparison)
        if _count_left(server, comparison) == 0:
            return _report(context, server, comparison, rows)
        if node is not None:
            # Only the procedure knows which row wins.
            _call(context, server, comparison, arguments, apply=False)
        if context.options.dry_run:
            emit(
                context,
                1,
                "repair-plan",
                plan(server, comparison, node, rows),
                lambda console: _show_plan(console, server, comparison, node, rows),
            )
            return ExitCode.FINE
        if context.options.output == "table":
            _show_plan(context.console, server, comparison, node, rows)
        ask(context, "Repair these rows on this server now?")
        _call(context, server, comparison, arguments, apply=True)
        return _report(context, server, comparison, rows)


def _node_of(server: Server, comparison: int) -> str | None:
    """Raises Refused if there is no such comparison."""
    for row in server.rows("SELECT node FROM weft.comparison WHERE comparison = %s", comparison):
        node: str | None = row["node"]
        return node
    raise Refused(f"there is no comparison {comparison} in {server.name}", "weft compare --list")


def _count_left(server: Server, comparison: int) -> int:
    return int(
        server.value(
            "SELECT count(*) FROM weft.difference WHERE comparison = %s"
            " AND coalesce(repair_result, '') <> ALL (%s)",
            comparison,
            list(REPAIRED),
        )
    )


def _call(
    context: Context, server: Server, comparison: int, arguments: dict[str, Any], apply: bool
) -> None:
    total = _count_left(server, comparison)
    types = {"lock_timeout": "::interval", "max_pause": "::interval", "winner": "::name"}
    text = ", ".join(f"{name} => %s{types.get(name, '')}" for name in arguments)
    statement = f"CALL weft.repair(%s, apply => %s, {text})"
    with second_connection(server) as observer, progress_bars(context) as progress:
        task = progress.add_task("repairing" if apply else "planning", total=total)

        def look() -> None:
            left = _count_left(observer, comparison)
            progress.update(task, completed=total - left, note=f"{number(left)} rows left")

        while_running(
            server,
            lambda: server.execute(statement, comparison, apply, *arguments.values()),
            look,
        )


def plan(server: Server, comparison: int, node: str | None, rows: int | None) -> dict[str, Any]:
    """What would be done: how many rows of each table, and statements, or reasons, of some."""
    tables = server.rows(
        "SELECT relation::text AS table_name, kind, sum(row_count)::bigint AS rows"
        " FROM weft.difference WHERE comparison = %s AND coalesce(repair_result, '') <> ALL (%s)"
        " GROUP BY 1, 2 ORDER BY 1, 2",
        comparison,
        list(REPAIRED),
    )
    if node is None:
        changes = server.rows(
            "SELECT relation::text AS table_name, statement AS change FROM weft.repair(%s)"
            " LIMIT %s",
            comparison,
            rows,
        )
    else:
        changes = server.rows(
            "SELECT relation::text AS table_name, key, publisher_row, local_row,"
            " repair_reason AS change FROM weft.difference"
            " WHERE comparison = %s AND coalesce(repair_result, '') <> ALL (%s)"
            " ORDER BY difference LIMIT %s",
            comparison,
            list(REPAIRED),
            rows,
        )
    return {"comparison": comparison, "node": node, "tables": tables, "changes": changes}


def _show_plan(
    console: Console, server: Server, comparison: int, node: str | None, rows: int | None
) -> None:
    what = plan(server, comparison, node, rows)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("table", overflow="fold")
    table.add_column("difference")
    table.add_column("rows", justify="right")
    for row in what["tables"]:
        table.add_row(printable(row["table_name"]), row["kind"], number(row["rows"]))
    console.print(table)
    for row in what["changes"]:
        key = f"{printable(row['table_name'])} {describe_key(row)}: " if node else ""
        console.print(Text(f"  {key}{printable(row['change'])}", "dim"), soft_wrap=True)
    total = sum(row["rows"] for row in what["tables"])
    if total > len(what["changes"]):
        console.print(Text(f"  … of {total:,} rows (--rows)", "dim"))


def _report(context: Context, server: Server, comparison: int, rows: int | None) -> ExitCode:
    counts = {
        row["result"]: row["count"]
        for row in server.rows(
            "SELECT coalesce(repair_result, 'not repaired') AS result, count(*)"
            " FROM weft.difference WHERE comparison = %s GROUP BY 1 ORDER BY 1",
            comparison,
        )
    }
    left = server.rows(
        "SELECT relation::text AS table_name, key, publisher_row, local_row, kind, repair_result,"
        " repair_reason FROM weft.difference"
        " WHERE comparison = %s AND coalesce(repair_result, '') <> ALL (%s)"
        " ORDER BY difference LIMIT %s",
        comparison,
        list(REPAIRED),
        rows,
    )

    def render(console: Console) -> None:
        text = ", ".join(f"{count:,} {result}" for result, count in counts.items())
        console.print(Text(f"Comparison {comparison}: {text or 'no differences'}"), soft_wrap=True)
        for row in left:
            console.print(
                Text.assemble(
                    ("✗ ", "bold red"),
                    f"{printable(row['table_name'])} {describe_key(row)}:"
                    f" {printable(row['repair_reason'] or row['repair_result'])}",
                ),
                soft_wrap=True,
            )

    emit(context, 1, "repair", {"comparison": comparison, "results": counts, "left": left}, render)
    return ExitCode.FINDINGS if left or set(counts) - set(REPAIRED) else ExitCode.FINE
