"""weft resync: copies tables of a subscription again, while the others are replicated."""

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft_cli.changes import ask
from weft_cli.compare import resolve_tables
from weft_cli.context import Context
from weft_cli.copying import tables_left, wait_for_copies
from weft_cli.exit_code import ExitCode
from weft_cli.options import HELP_NAMES, change_options, common_options
from weft_cli.output import emit, number, printable, size

NOTE = (
    "Until a copy is complete, all sessions see the old rows. Then the table has the publisher's"
    " published rows and nothing else: rows that exist only here, and columns that are not"
    " published, are lost. Each table needs two free slots on the publisher meanwhile."
)


@click.command("resync", context_settings={"help_option_names": HELP_NAMES})
@click.argument("subscription")
@click.argument("tables", nargs=-1, required=True)
@click.option("--cancel", is_flag=True, help="Stop copying, and keep the old rows.")
@click.option("--no-wait", is_flag=True, help="Return at once; the copies go on.")
@common_options
@change_options
@click.pass_obj
def command(
    context: Context, subscription: str, tables: tuple[str, ...], cancel: bool, no_wait: bool
) -> ExitCode:
    """Copies TABLES of SUBSCRIPTION again, while the others are replicated."""
    with context.connect() as server:
        server.require_weft()
        names = resolve_tables(server, subscription, tables)
        rows = server.rows(
            "SELECT oid::regclass::text AS table_name, nullif(reltuples, -1)::bigint AS rows,"
            " pg_total_relation_size(oid) AS bytes FROM pg_class"
            " WHERE oid = ANY (%s::regclass[]) ORDER BY 1",
            names,
        )

        def show(console: Console) -> None:
            table = Table(box=None, pad_edge=False, header_style="bold")
            table.add_column("table", overflow="fold")
            table.add_column("rows here, about", justify="right")
            table.add_column("size", justify="right")
            for row in rows:
                table.add_row(printable(row["table_name"]), number(row["rows"]), size(row["bytes"]))
            console.print(table)
            if not cancel:
                console.print(NOTE, style="dim")

        if context.options.dry_run:
            emit(context, 1, "resync-plan", {"cancel": cancel, "tables": rows}, show)
            return ExitCode.FINE
        if context.options.output == "table":
            show(context.console)
        ask(context, "Stop copying these tables?" if cancel else "Copy these tables again now?")
        function = "cancel_resync" if cancel else "resync_table"
        for name in names:
            server.execute(f"SELECT weft.{function}(%s, %s::regclass)", subscription, name)
        try:
            if not no_wait:
                wait_for_copies(context, server, subscription, names)
        except KeyboardInterrupt:
            context.errors.print(
                "The copies go on. To stop them: weft resync --cancel …", soft_wrap=True
            )
            raise
        left = [row["table_name"] for row in tables_left(server, subscription, names)]
        emit(
            context,
            1,
            "resync",
            {"subscription": subscription, "cancelled": cancel, "tables": names, "left": left},
            lambda console: console.print(_result(cancel, names, left), soft_wrap=True),
        )
    return ExitCode.FINE


def _result(cancel: bool, names: list[str], left: list[str]) -> Text:
    if left:
        return Text("The tables are being copied: see weft.copy_progress, or weft status.")
    done = "Not copied again" if cancel else "Copied again"
    return Text(f"{done}, and synchronized: {', '.join(printable(name) for name in names)}")
