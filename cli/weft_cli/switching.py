"""Switch-overs: what the extension plans, does and records.

Connection strings may contain passwords.  Statements and their parameters are shown by
pg_stat_activity and may be logged, so connection strings are sent as data of COPY into a temporary
table, from which a static statement reads them (sql/11-switch.sql recommends that).
"""

from dataclasses import dataclass
from typing import Any

from weft_cli.changes import StepLog, second_connection, while_running
from weft_cli.context import Context
from weft_cli.errors import WeftError
from weft_cli.quoting import word
from weft_cli.server import Server

UNFINISHED = ("final", "opened")

STEP_TEXTS = {
    "plan": "check both servers",
    "arm_target": "prepare the fence of the next server",
    "fence_target": "close the next server for writes",
    "arm_source": "prepare the fence of the server that accepts writes",
    "publish": "create a publication for the way back",
    "create_slot": "create a slot for the way back",
    "subscribe": "create a subscription for the way back",
    "compare": "compare all rows",
    "catch_up": "wait until the next server has nearly caught up",
    "sequences_before": "set sequences",
    "fence_source": "close the server that has accepted writes",
    "drain": "apply the rest",
    "sequences": "set sequences again",
    "verify": "verify",
    "position": "note the position",
    "final": "make that final",
    "stop": "stop replication in this direction",
    "open": "open the next server for writes",
    "remove": "remove what is not needed any more",
    "follow": "let the other server follow",
    "disarm": "remove the fence of the open server",
    "undo": "undo",
}


@dataclass(frozen=True)
class Wishes:
    """The arguments of the procedures; the names are those of the columns of the table."""

    subscription: str
    reverse: str | None = None
    publisher: str | None = None
    verify: str = "counts"
    wait: str = "10 min"
    max_pause: str = "10 s"
    lock_timeout: str = "300 ms"
    sequence_margin: int = 1000


CALLS = {
    "over": "weft.switch_over(w.subscription, w.reverse, w.publisher, w.verify, w.wait,"
    " w.max_pause, w.lock_timeout, w.sequence_margin)",
    "back": "weft.switch_back(w.subscription, w.publisher, w.verify, w.wait, w.max_pause,"
    " w.lock_timeout, w.sequence_margin)",
    "cancel": "weft.switch_over_cancel(w.subscription, w.publisher)",
}


def tell_wishes(server: Server, wishes: Wishes) -> None:
    server.execute(
        "DROP TABLE IF EXISTS pg_temp.weft_wishes;"
        " CREATE TEMPORARY TABLE weft_wishes (subscription name, reverse text, publisher text,"
        " verify text, wait interval, max_pause interval, lock_timeout interval,"
        " sequence_margin bigint)"
    )
    server.copy_row(
        "pg_temp.weft_wishes",
        (
            wishes.subscription,
            wishes.reverse,
            wishes.publisher,
            wishes.verify,
            wishes.wait,
            wishes.max_pause,
            wishes.lock_timeout,
            wishes.sequence_margin,
        ),
    )


def plan(server: Server) -> list[dict[str, Any]]:
    """One row for each problem, and one for each check that has found none."""
    return server.rows(
        "SELECT p.check_name, p.object, p.severity, p.problem, p.remedy FROM pg_temp.weft_wishes w,"
        " weft.switch_over_plan(w.subscription, w.reverse IS NOT NULL, w.publisher) p"
        " ORDER BY CASE p.severity WHEN 'error' THEN 1 WHEN 'warning' THEN 2 ELSE 3 END, 1, 2"
    )


def phase(server: Server, subscription: str) -> tuple[str | None, bool]:
    """How far the last switch-over of the subscription is, and whether it was one back."""
    for row in server.rows(
        "SELECT a.phase, a.back FROM weft.switch_attempt a"
        " JOIN pg_subscription s ON s.oid = a.subid"
        " JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database()"
        " WHERE s.subname = %s",
        subscription,
    ):
        return row["phase"], row["back"]
    return None, False


def switch(context: Context, server: Server, subscription: str, direction: str) -> None:
    """Calls the procedure, and prints its steps.  Needs tell_wishes()."""
    log = StepLog(context)
    with second_connection(server) as observer:
        since = observer.value("SELECT clock_timestamp()")
        begun: set[int] = set()
        ended: set[int] = set()

        def look() -> None:
            for row in observer.rows(
                "SELECT position, step, result, ended_at IS NOT NULL AS ended,"
                " extract(epoch FROM ended_at - started_at)::float AS seconds"
                " FROM weft.switch_over_progress WHERE subscription = %s AND started_at >= %s"
                " ORDER BY position",
                subscription,
                since,
            ):
                _show_step(log, row, begun, ended)

        try:
            while_running(
                server,
                lambda: server.execute(
                    "DO $$ DECLARE w record; BEGIN SELECT * INTO STRICT w FROM pg_temp.weft_wishes;"
                    f" CALL {CALLS[direction]}; END $$"
                ),
                look,
            )
        except WeftError as error:
            log.interrupt()
            error.hint = f"{error.hint} {_what_now(observer, subscription, direction)}".strip()
            raise
        finally:
            log.interrupt()


def _show_step(log: StepLog, row: dict[str, Any], begun: set[int], ended: set[int]) -> None:
    position = row["position"]
    if position not in begun:
        begun.add(position)
        log.begin(STEP_TEXTS.get(row["step"], row["step"]))
    if row["ended"] and position not in ended:
        ended.add(position)
        log.end(row["step"], row["seconds"])


def _what_now(observer: Server, subscription: str, direction: str) -> str:
    try:
        reached, _ = phase(observer, subscription)
    except WeftError:
        return "Run this again: it continues, or begins anew."
    if reached in UNFINISHED:
        return "It is past the point of no return: run this again to complete it."
    if direction == "cancel":
        return "Run this again."
    return (
        "The server that has accepted writes continues to do so; the other one remains closed."
        " Remove the cause and run this again, or give up with"
        f" weft switch-over --cancel {word(subscription)}"
    )


def last_attempt(server: Server, subscription: str) -> dict[str, Any]:
    """Steps of the last attempt, and for how many seconds nobody accepted writes."""
    rows = server.rows(
        "SELECT direction, step, result, started_at, ended_at,"
        " extract(epoch FROM ended_at - started_at)::float AS seconds"
        " FROM weft.switch_over_progress WHERE subscription = %s AND attempt ="
        " (SELECT attempt FROM weft.switch_over_progress WHERE subscription = %s"
        "  ORDER BY started_at DESC LIMIT 1) ORDER BY position",
        subscription,
        subscription,
    )
    ends = {row["step"]: row["ended_at"] for row in rows if row["ended_at"]}
    paused = None
    if "fence_source" in ends and "open" in ends:
        paused = (ends["open"] - ends["fence_source"]).total_seconds()
    return {"steps": rows, "pause": paused}
