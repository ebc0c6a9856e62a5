"""weft compare: compares a subscription's tables with the publisher's, while both are in use."""

from contextlib import suppress
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

from weft_cli.changes import progress_bars, second_connection, while_running
from weft_cli.comparisons import load_comparison, show_comparison
from weft_cli.context import Context
from weft_cli.errors import Refused, WeftError
from weft_cli.exit_code import ExitCode
from weft_cli.options import HELP_NAMES, common_options
from weft_cli.output import UNKNOWN, duration, emit, number, printable, size
from weft_cli.quoting import word
from weft_cli.server import Server

# How many differing rows are shown, unless --rows says otherwise.
ROWS_SHOWN = 10


@click.command("compare", context_settings={"help_option_names": HELP_NAMES})
@click.argument("subscription", required=False)
@click.option("--node", metavar="NAME", help="Compare with this member of the node group instead.")
@click.option(
    "--table", "tables", metavar="NAME", multiple=True, help="Only this table; may be repeated."
)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Processes.")
@click.option(
    "--max-rows-per-second",
    type=click.IntRange(1),
    metavar="N",
    help="Limit on the rows that are read on each side.",
)
@click.option(
    "--max-differences",
    type=click.IntRange(1),
    metavar="N",
    default=1000,
    show_default=True,
    help="After that many of a table, its rest is not compared.",
)
@click.option(
    "--resume", type=int, metavar="NUMBER", help="Continue this comparison, which was interrupted."
)
@click.option(
    "--show", type=int, metavar="NUMBER", help="Show the result of an earlier comparison."
)
@click.option("--list", "list_all", is_flag=True, help="List all comparisons.")
@click.option("--dry-run", "only_plan", is_flag=True, help="Only show what would be compared.")
@click.option(
    "--rows",
    type=click.IntRange(0),
    metavar="N",
    help=f"How many differing rows to show; {ROWS_SHOWN} by default, all with -o json.",
)
@common_options
@click.pass_obj
def command(
    context: Context,
    subscription: str | None,
    node: str | None,
    tables: tuple[str, ...],
    jobs: int,
    max_rows_per_second: int | None,
    max_differences: int,
    resume: int | None,
    show: int | None,
    list_all: bool,
    only_plan: bool,
    rows: int | None,
) -> ExitCode:
    """Compares the tables of SUBSCRIPTION with the publisher's, while both are in use.

    Exit status 1 means that something differs, or that not everything could be compared.
    """
    given = [bool(subscription), bool(node), show is not None, list_all]
    if sum(given) != 1:
        raise click.UsageError("give one of SUBSCRIPTION, --node, --show and --list")
    if rows is None and context.options.output == "table":
        rows = ROWS_SHOWN
    with context.connect() as server:
        server.require_weft()
        if list_all:
            return _list(context, server)
        if show is not None:
            return _report(context, server, show, rows)
        chosen = resolve_tables(server, subscription, tables) if tables else None
        if only_plan:
            return _plan(context, server, subscription, chosen)
        arguments: dict[str, Any] = {
            "tables": chosen,
            "jobs": jobs,
            "max_rows_per_second": max_rows_per_second,
            "max_differences": max_differences,
        }
        if node:
            arguments["node"] = node
        else:
            arguments |= {"subscription": subscription, "resume": resume}
        return _report(context, server, compare(context, server, arguments), rows)


def resolve_tables(server: Server, subscription: str | None, names: tuple[str, ...]) -> list[str]:
    """Qualified and quoted names of tables that a user has named somehow."""
    known = server.rows(
        "SELECT DISTINCT c.oid::regclass::text AS name, n.nspname || '.' || c.relname AS plain,"
        " c.relname, n.nspname FROM pg_subscription_rel r"
        " JOIN pg_class c ON c.oid = r.srrelid AND c.relkind <> 'S'"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN pg_subscription s ON s.oid = r.srsubid"
        " JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database()"
        " WHERE s.subname = %s OR %s::text IS NULL",
        subscription,
        subscription,
    )
    result = []
    for name in names:
        found = [
            each["name"] for each in known if name in (each["name"], each["plain"], each["relname"])
        ]
        if len(found) > 1:
            raise Refused(f'the name "{name}" is ambiguous', f"One of {', '.join(found)}")
        if not found:
            of = f'subscription "{subscription}"' if subscription else "any subscription"
            raise Refused(f'"{name}" is not a table of {of}')
        result += found
    return result


def compare(context: Context, server: Server, arguments: dict[str, Any]) -> int:
    """Compares, with a progress bar, and returns the number of the comparison."""
    procedure = "compare_node" if "node" in arguments else "compare_subscription"
    types = {"tables": "::regclass[]", "max_rows_per_second": "::bigint", "resume": "::bigint"}
    text = ", ".join(f"{name} => %s{types.get(name, '')}" for name in arguments)
    statement = f"CALL weft.{procedure}({text})"
    pid = server.connection.info.backend_pid

    with second_connection(server) as observer, progress_bars(context) as progress:
        task = progress.add_task("comparing", total=None)
        since = observer.value("SELECT clock_timestamp()")

        def look() -> None:
            for row in observer.rows("SELECT * FROM weft.stat_comparison WHERE pid = %s", pid):
                _advance(progress, task, row)

        try:
            result = while_running(
                server, lambda: server.value(statement, *arguments.values()), look
            )
        except BaseException:
            _say_how_to_resume(context, observer, arguments, since)
            raise
    return int(result)


def _say_how_to_resume(
    context: Context, observer: Server, arguments: dict[str, Any], since: datetime
) -> None:
    """Nothing if there is nothing to continue; comparisons of nodes cannot be."""
    number = arguments.get("resume")
    with suppress(WeftError):
        number = number or observer.value(
            "SELECT max(comparison) FROM weft.stat_comparison WHERE subname = %s"
            " AND status = 'interrupted' AND started_at >= %s",
            arguments.get("subscription"),
            since,
        )
    if number:
        context.errors.print(
            f"To continue: weft compare --resume {number} {word(arguments['subscription'])}",
            soft_wrap=True,
        )


def _advance(progress: Progress, task: TaskID, row: dict[str, Any]) -> None:
    estimated = row["rows_estimated"] or None
    done = row["rows_compared"] or 0
    tables = f"{row['tables_done']} of {row['tables']} tables"
    progress.update(
        task,
        description=f"comparison {row['comparison']}: {tables}",
        completed=min(done, estimated) if estimated else 0,
        total=estimated,
        note=f"{number(done)} rows, {number(row['differences'])} differences",
    )


def _report(context: Context, server: Server, comparison: int, rows: int | None) -> ExitCode:
    result = load_comparison(server, comparison, rows)

    def render(console: Console) -> None:
        show_comparison(console, result)
        if result.difference_count:
            console.print(Text(f"To repair: weft repair {comparison}"), soft_wrap=True)

    emit(context, 1, "comparison", result.as_json(), render)
    return ExitCode.FINE if result.fine else ExitCode.FINDINGS


def _plan(
    context: Context, server: Server, subscription: str | None, chosen: list[str] | None
) -> ExitCode:
    rows = server.rows(
        "SELECT c.oid::regclass::text AS table_name, nullif(c.reltuples, -1)::bigint AS rows,"
        " pg_table_size(c.oid) AS bytes, r.srsubstate = 'r' AS ready"
        " FROM pg_subscription_rel r JOIN pg_class c ON c.oid = r.srrelid AND c.relkind <> 'S'"
        " JOIN pg_subscription s ON s.oid = r.srsubid"
        " JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database()"
        " WHERE (s.subname = %s OR %s::text IS NULL)"
        " AND (%s::regclass[] IS NULL OR c.oid = ANY (%s::regclass[])) ORDER BY 1",
        subscription,
        subscription,
        chosen,
        chosen,
    )

    def render(console: Console) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("table", overflow="fold")
        table.add_column("rows here, about", justify="right")
        table.add_column("size", justify="right")
        table.add_column("")
        for row in rows:
            table.add_row(
                printable(row["table_name"]),
                number(row["rows"]),
                size(row["bytes"]),
                "" if row["ready"] else Text("is being copied, not comparable", "yellow"),
            )
        console.print(table)

    emit(context, 1, "compare-plan", {"tables": rows}, render)
    return ExitCode.FINE


def _list(context: Context, server: Server) -> ExitCode:
    rows = server.rows(
        "SELECT comparison, subname AS subscription, status, started_at,"
        " extract(epoch FROM coalesce(ended_at, CASE WHEN pid IS NOT NULL"
        "  THEN clock_timestamp() END) - started_at)::float AS seconds,"
        " tables, tables_done, tables_not_compared, rows_compared, differences"
        " FROM weft.stat_comparison ORDER BY comparison"
    )

    def render(console: Console) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("number", "started", "took", "tables", "rows", "different"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("status", no_wrap=True)
        table.add_column("subscription", overflow="fold")
        for row in rows:
            table.add_row(
                str(row["comparison"]),
                f"{row['started_at']:%Y-%m-%d %H:%M}" if row["started_at"] else UNKNOWN,
                duration(row["seconds"]),
                f"{row['tables_done']} of {row['tables']}",
                number(row["rows_compared"]),
                number(row["differences"]),
                row["status"],
                printable(row["subscription"]),
            )
        console.print(table if rows else Text("There are no comparisons."))

    emit(context, 1, "comparisons", {"comparisons": rows}, render)
    return ExitCode.FINE
