"""Waits until tables of a subscription are copied, with progress bars."""

import time
from typing import Any

from rich.progress import Progress, TaskID

from weft_cli.changes import LOOK_PERIOD, progress_bars
from weft_cli.context import Context
from weft_cli.errors import Refused
from weft_cli.output import duration, number, printable, rate, size
from weft_cli.server import Server


def tables_left(
    server: Server, subscription: str, tables: list[str] | None
) -> list[dict[str, Any]]:
    """Tables that are not synchronized yet, with what is known of their copies."""
    return server.rows(
        "SELECT p.relation::text AS table_name, p.phase, p.helpers, p.rows_done, p.rows_estimated,"
        " p.bytes_done, p.bytes_estimated, p.bytes_per_second, p.time_left, p.indexes,"
        " p.indexes_done, p.last_error FROM weft.copy_progress p"
        " WHERE p.subname = %s AND p.subid IN (SELECT s.oid FROM pg_subscription s"
        "  JOIN pg_database d ON d.oid = s.subdbid WHERE d.datname = current_database())"
        " AND (%s::regclass[] IS NULL OR p.relation = ANY (%s::regclass[])) ORDER BY 1",
        subscription,
        tables,
        tables,
    )


def wait_for_copies(
    context: Context, server: Server, subscription: str, tables: list[str] | None = None
) -> None:
    """Returns when all these tables, or all of the subscription, are synchronized."""
    bars: dict[str, TaskID] = {}
    complained: dict[str, str] = {}
    with progress_bars(context) as progress:
        while left := tables_left(server, subscription, tables):
            if not server.value(
                "SELECT subenabled FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid"
                " WHERE d.datname = current_database() AND subname = %s",
                subscription,
            ):
                raise Refused(
                    f'subscription "{subscription}" is disabled, so its tables are not copied',
                    "See the server's log; then enable the subscription.",
                )
            _update(progress, bars, left)
            for row in left:
                error = row["last_error"]
                if error and complained.get(row["table_name"]) != error:
                    complained[row["table_name"]] = error
                    context.errors.print(
                        printable(f"{row['table_name']}: the copy was restarted: {error}"),
                        style="yellow",
                        soft_wrap=True,
                    )
            time.sleep(LOOK_PERIOD)


def _update(progress: Progress, bars: dict[str, TaskID], left: list[dict[str, Any]]) -> None:
    names = {row["table_name"] for row in left}
    for name, task in bars.items():
        if name not in names:
            progress.update(task, visible=False)
    for row in left:
        name = row["table_name"]
        if row["phase"] == "waiting":
            continue
        if name not in bars:
            bars[name] = progress.add_task(printable(name), total=None)
        total = row["bytes_estimated"] or None
        done = row["bytes_done"] or 0
        progress.update(
            bars[name],
            total=total,
            completed=min(done, total) if total else 0,
            note=_note(row),
            visible=True,
        )


def _note(row: dict[str, Any]) -> str:
    if row["phase"] == "indexing":
        return f"index {row['indexes_done']} of {row['indexes']}"
    if row["phase"] != "copying":
        return str(row["phase"])
    parts = [f"{number(row['rows_done'])} rows", size(row["bytes_done"])]
    if row["bytes_per_second"]:
        parts.append(rate(row["bytes_per_second"] / 1e6, "MB"))
    if row["time_left"] is not None:
        parts.append(f"{duration(row['time_left'])} left")
    return ", ".join(parts)
