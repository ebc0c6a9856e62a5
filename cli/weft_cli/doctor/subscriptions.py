"""Checks of a subscription: enabled, connected, and making progress."""

import time
from collections.abc import Iterator

from weft_cli.doctor.case import SLOTS, Case
from weft_cli.doctor.itself import subject
from weft_cli.doctor.reading import Row
from weft_cli.doctor.registry import Group, Hit, Needs, check
from weft_cli.doctor.sql_text import name
from weft_cli.doctor.table_facts import table_name

# How long a worker is watched if there are signs that it fails: longer than it lives if it does,
# and longer than it takes to start anew after a reload.
WATCH_TIME = 1.5
WATCH_STEP = 0.25
# A session that blocks apply for less is usual on a subscriber that is read and written.
LOCK_AGE = 2.0


@check(
    "W040",
    Group.SUBSCRIPTION,
    Needs.SUBSCRIPTION,
    "subscriber",
    "error",
    "the subscription is enabled",
    "A disabled subscription applies nothing, and its slot keeps the publisher's WAL until the "
    "disk is full, or max_slot_wal_keep_size is reached and the slot is lost. With "
    "disable_on_error, an error has disabled it.",
    "If an error has disabled it, remove the cause first: the server's log has the error. Then "
    "enable it.",
)
def enabled(case: Case) -> Iterator[Hit]:
    assert case.subscription is not None
    # Without a slot, it cannot be enabled (W055).
    if not case.subscription["enabled"] and case.subscription["slot"] is not None:
        doubt = doubt_about_slot(case, str(case.subscription["slot"]))
        yield Hit(
            subject(case),
            "the subscription is disabled" + last_error(case) + doubt,
            () if doubt else (f"ALTER SUBSCRIPTION {name(case.name)} ENABLE;",),
        )


def doubt_about_slot(case: Case, wanted: str) -> str:
    """Why the slot may be another subscription's, for the end of a sentence; nothing if it is not.

    A dump contains subscriptions with the names of their slots.  One that is restored from it, and
    enabled, would take what the original has not received yet.
    """
    if not case.subscribed:
        return (
            "; it has no tables, as if it were restored from a dump: then its slot may be that of"
            " the original"
        )
    if case.publisher is None:
        return ""
    # The worker of a subscription that has just been disabled needs a moment to release it.
    deadline = time.monotonic() + WATCH_TIME
    while any(slot["active"] and slot["name"] == wanted for slot in case.there.rows(SLOTS)):
        if time.monotonic() > deadline:
            return f'; somebody else uses its slot, "{wanted}"'
        time.sleep(WATCH_STEP)
    return ""


def last_error(case: Case) -> str:
    """The last error of the apply worker as far as it is known, for the end of a sentence."""
    assert case.subscription is not None
    if not (case.weft_loaded and case.subscriber.has_function("weft.stat_get_last_error()")):
        return ""
    found = case.subscriber.rows(
        "SELECT last_error FROM weft.stat_get_last_error() WHERE subid = %s::oid",
        case.subscription["oid"],
    )
    return f"; last error: {found[0]['last_error']}" if found and found[0]["last_error"] else ""


APPLY_WORKER = """
    SELECT w.pid, w.last_msg_receipt_time AS heard, e.apply_error_count AS errors,
        coalesce(to_jsonb(e) ->> 'sync_table_error_count', to_jsonb(e) ->> 'sync_error_count')::int8
            AS sync_errors
    FROM pg_catalog.pg_stat_get_subscription(%s::oid) w
        RIGHT JOIN pg_catalog.pg_stat_get_subscription_stats(%s::oid) e
            ON w.worker_type = 'apply'"""


def apply_worker(case: Case) -> Row:
    assert case.subscription is not None
    oid = case.subscription["oid"]
    return case.subscriber.rows(APPLY_WORKER, oid, oid)[0]


@check(
    "W041",
    Group.SUBSCRIPTION,
    Needs.SUBSCRIPTION,
    "subscriber",
    "error",
    "the apply worker runs",
    "The subscription is enabled, but has no apply worker, or one that fails and is started again "
    "and again: it cannot connect, an error stops it, or there is no free worker.",
    "Remove the cause: the last error is in weft.stat_subscription and in the server's log. A "
    "transaction that cannot be applied can be skipped: ALTER SUBSCRIPTION ... SKIP.",
)
def apply_runs(case: Case) -> Iterator[Hit]:
    assert case.subscription is not None
    if not case.subscription["enabled"]:
        return
    first = apply_worker(case)
    # Errors while it connects are not counted, but then it has received nothing either.
    if first["pid"] is not None and first["heard"] is not None and not first["errors"]:
        return
    # A worker that has failed before may be fine now; one that is missing may be about to start.
    pids = {first["pid"]}
    seen = 0
    deadline = time.monotonic() + WATCH_TIME
    while time.monotonic() < deadline:
        time.sleep(WATCH_STEP)
        pid = apply_worker(case)["pid"]
        seen = seen + 1 if pid is not None and pid in pids else 0
        pids.add(pid)
    # Fine: the same worker for the whole second half.
    if seen < WATCH_TIME / WATCH_STEP / 2:
        failing = "fails and is started again and again" if pids != {None} else "does not run"
        yield Hit(subject(case), f"the apply worker {failing}" + last_error(case))


@check(
    "W042",
    Group.SUBSCRIPTION,
    Needs.SUBSCRIPTION,
    "subscriber",
    "error",
    "initial copies do not fail",
    "The initial copy of a table has failed. It is repeated from its beginning, and fails again "
    "unless the cause is removed: rows that are already in the table, a column or type that "
    "differs, or missing rights.",
    "Remove the cause. If the table has rows that the copy brings as well, empty it.",
)
def copies(case: Case) -> Iterator[Hit]:
    if not case.unsynchronized:
        return
    failed = known_failures(case)
    for row in failed:
        yield Hit(f'table "{table_name(row)}"', f"the initial copy has failed: {row['last_error']}")
    if not failed and apply_worker(case)["sync_errors"]:
        yield from native_failures(case)


def known_failures(case: Case) -> list[Row]:
    """Tables whose copy has failed, as far as Weft knows."""
    if not (case.weft_loaded and case.subscriber.columns("weft.copy_progress")):
        return []
    return case.subscriber.rows(
        "SELECT n.nspname AS schema, c.relname AS name, p.last_error"
        " FROM weft.copy_progress p JOIN pg_catalog.pg_class c ON c.oid = p.relation"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE p.subname = %s AND p.last_error IS NOT NULL ORDER BY 1, 2",
        case.name,
    )


def native_failures(case: Case) -> Iterator[Hit]:
    """Tables that wait for a copy, if copies have failed and Weft does not know which."""
    waiting: dict[str, Row] = {}
    deadline = time.monotonic() + WATCH_TIME
    while time.monotonic() < deadline:
        waiting |= {table_name(row): row for row in uncopied(case)}
        time.sleep(WATCH_STEP)
    for table in sorted(waiting):
        yield Hit(
            f'table "{table}"',
            "the table is not being copied, and initial copies of the subscription have failed",
        )


def uncopied(case: Case) -> list[Row]:
    """Tables that no worker copies at the moment, perhaps since it has just failed."""
    assert case.subscription is not None
    return case.subscriber.rows(
        "SELECT n.nspname AS schema, c.relname AS name FROM pg_catalog.pg_subscription_rel r"
        " JOIN pg_catalog.pg_class c ON c.oid = r.srrelid"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE r.srsubid = %s::oid AND r.srsubstate = 'd' AND NOT EXISTS ("
        "  SELECT FROM pg_catalog.pg_stat_get_subscription(r.srsubid) w"
        "  WHERE w.relid = r.srrelid AND w.pid IS NOT NULL) ORDER BY 1, 2",
        case.subscription["oid"],
    )


# Sessions that hold locks for which workers of the subscription wait.
BLOCKERS = """
    SELECT b.pid, a.usename AS role, a.application_name AS application, a.backend_start::text,
        clock_timestamp() - a.xact_start AS age, a.backend_start IS NULL AS hidden
    FROM (SELECT DISTINCT unnest(pg_catalog.pg_blocking_pids(w.pid)) AS pid
            FROM unnest(%s::int[]) w(pid)) b
        JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid
    WHERE a.backend_type IS NULL OR a.backend_type = 'client backend'"""


def workers(case: Case) -> list[int]:
    assert case.subscription is not None
    oid = case.subscription["oid"]
    found = case.subscriber.rows(
        "SELECT pid FROM pg_catalog.pg_stat_get_subscription(%s::oid) WHERE pid IS NOT NULL",
        oid,
    )
    if case.weft_loaded and case.subscriber.columns("weft.stat_writer"):
        found += case.subscriber.rows(
            "SELECT pid FROM weft.stat_writer WHERE subid = %s::oid AND pid IS NOT NULL",
            oid,
        )
    return [row["pid"] for row in found]


@check(
    "W043",
    Group.SUBSCRIPTION,
    Needs.SUBSCRIPTION,
    "subscriber",
    "warning",
    "apply is not blocked by a session",
    "A session on the subscriber holds a lock, in a transaction that has been open for seconds, "
    "for which apply waits. As commits keep their order, all later transactions wait, too.",
    "Let the session end its transaction, or end the session. Applications that lock rows or "
    "tables on a subscriber should do so briefly: see lock_timeout and "
    "idle_in_transaction_session_timeout.",
)
def blocked(case: Case) -> Iterator[Hit]:
    first = {row["pid"] for row in case.subscriber.rows(BLOCKERS, workers(case))}
    if not first:
        return
    # A lock that is released soon is no problem.
    time.sleep(LOCK_AGE / 2)
    for row in case.subscriber.rows(BLOCKERS, workers(case)):
        if row["pid"] not in first:
            continue
        if row["hidden"]:
            case.require_statistics(case.subscriber)
        if row["age"] is None or row["age"].total_seconds() < LOCK_AGE:
            continue
        yield Hit(
            f"session {row['pid']}",
            f'apply of subscription "{case.name}" waits for a lock of role "{row["role"]}"'
            + (f" ({row['application']})" if row["application"] else ""),
            (terminate(row),),
        )


def terminate(session: Row) -> str:
    """Ends that session; not another one that has got its process id since."""
    return (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        f" WHERE pid = {int(session['pid'])} AND backend_start = '{session['backend_start']}';"
    )
