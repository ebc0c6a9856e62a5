"""What the subscriber knows of its subscriptions, at one moment."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from weft_cli import lsn
from weft_cli.server import Server

# Rounds in which sessions are followed that block sessions that block apply.
CHAIN_LENGTH = 5


@dataclass
class Subscription:
    """A row of weft.stat_subscription, and what the server's catalogs and views add.

    What an older version of Weft does not tell is None.
    """

    oid: int
    name: str
    database: str
    here: bool  # in the database to which we are connected
    enabled: bool
    slot: str | None
    # without Weft's leader, the subscription is applied natively, or not at all
    leader_pid: int | None
    apply_pid: int | None
    other_pids: list[int]
    num_writers: int | None
    busy_writers: int | None
    received_lsn: int | None
    applied_lsn: int | None
    apply_lag_bytes: int | None
    apply_lag_time: float | None
    publisher_lsn: int | None
    publisher_lsn_age: float | None
    publisher_lag_bytes: int | None
    transactions: int | None
    native_transactions: int | None
    changes: int | None
    dependency_waits: int | None
    order_waits: int | None
    misspeculations: int | None
    apply_rate: float | None
    apply_rate_bytes: float | None
    catch_up_time: float | None
    ring_size: int | None
    ring_used: int | None
    output_plugin: str | None
    native_reason: str | None
    last_error: str | None
    last_error_time: datetime | None
    # apply has gone on since
    error_overcome: bool
    disabled_by_error: bool
    error_count: int
    tables_not_ready: int | None

    @property
    def ring_fill(self) -> float:
        return (self.ring_used or 0) / self.ring_size if self.ring_size else 0.0

    @property
    def native(self) -> bool:
        """Does the server's own code apply it?"""
        return self.apply_pid is not None and not self.num_writers

    @property
    def pids(self) -> list[int]:
        own = [self.apply_pid] if self.apply_pid else []
        return [*own, *self.other_pids]


@dataclass
class Wait:
    """What a process is waiting for."""

    pid: int
    visible: bool
    kind: str | None
    event: str | None
    lock_seconds: float | None = None
    lock_object: str | None = None

    @property
    def on_lock(self) -> bool:
        return self.kind == "Lock" or self.lock_seconds is not None


@dataclass
class Blocker:
    """A session that holds a lock for which apply waits; a prepared transaction has no process."""

    pid: int
    role: str | None = None
    application: str | None = None
    client: str | None = None
    state: str | None = None
    transaction_seconds: float | None = None
    query: str | None = None
    kind: str | None = None


SUBSCRIPTIONS = """
SELECT w.*,
    d.datname AS database, d.datname = current_database() AS here,
    s.subenabled, s.subdisableonerr, s.subslotname,
    clock_timestamp() AS now,
    p.pid AS apply_pid, p.latest_end_lsn,
    t.apply_error_count, t.sync_error_count,
    t.apply_error_count + t.sync_error_count AS error_count,
    (SELECT array_agg(o.pid) FROM pg_stat_subscription o
        WHERE o.subid = s.oid AND o.pid <> p.pid) AS worker_pids,
    (SELECT array_agg(g.pid) FROM weft.stat_writer g
        WHERE g.subid = s.oid AND g.pid IS NOT NULL AND g.state <> 'exited') AS writer_pids,
    CASE WHEN d.datname = current_database() THEN (SELECT count(*) FROM pg_subscription_rel r
        JOIN pg_class c ON c.oid = r.srrelid AND c.relkind <> 'S'
        WHERE r.srsubid = s.oid AND r.srsubstate <> 'r') END AS tables_not_ready
    {error_columns}
FROM weft.stat_subscription w
    JOIN pg_subscription s ON s.oid = w.subid
    JOIN pg_database d ON d.oid = s.subdbid
    LEFT JOIN pg_stat_subscription p ON p.subid = s.oid AND p.worker_type = 'apply'
    LEFT JOIN (SELECT subid, apply_error_count,
        coalesce(to_jsonb(e) ->> 'sync_table_error_count', to_jsonb(e) ->> 'sync_error_count')::int8
            AS sync_error_count FROM pg_stat_subscription_stats e) t ON t.subid = s.oid
    {error_join}
ORDER BY d.datname <> current_database(), d.datname, s.subname
"""

WAITS = """
SELECT pid, backend_type IS NOT NULL AS visible, wait_event_type AS kind, wait_event AS event
FROM pg_stat_activity WHERE pid = ANY(%s)
"""

LOCK_WAITS = """
SELECT pid, coalesce(extract(epoch FROM clock_timestamp() - waitstart), 0)::float8 AS seconds,
    CASE WHEN relation IS NOT NULL AND database = (SELECT oid FROM pg_database
            WHERE datname = current_database())
        THEN relation::regclass::text END AS object
FROM pg_locks WHERE NOT granted AND pid = ANY(%s)
"""

BLOCKERS = """
SELECT DISTINCT b.pid AS pid
FROM unnest(%s::int[]) w (pid), unnest(pg_blocking_pids(w.pid)) b (pid)
"""

SESSIONS = """
SELECT pid, usename AS role, application_name AS application,
    coalesce(client_hostname, host(client_addr)) AS client, state, backend_type AS kind, query,
    extract(epoch FROM clock_timestamp() - xact_start)::float8 AS transaction_seconds
FROM pg_stat_activity WHERE pid = ANY(%s)
"""


def read_subscriptions(server: Server, names: tuple[str, ...] = ()) -> list[Subscription]:
    # newer versions have the error in the view itself
    separate = server.has_column("weft.stat_subscription", "last_error") is False
    columns = ["last_error", "last_error_time"] if separate else []
    if server.has_result("weft.stat_get_last_error", "overcome"):
        columns.append("overcome")
    sql = SUBSCRIPTIONS.format(
        error_columns="".join(f", e.{column}" for column in columns),
        error_join="LEFT JOIN weft.stat_get_last_error() e ON e.subid = s.oid" if columns else "",
    )
    found = [_subscription(row) for row in server.rows(sql)]
    return [each for each in found if not names or (each.here and each.name in names)]


def _subscription(row: dict[str, Any]) -> Subscription:
    get = row.get
    publisher_time = get("publisher_lsn_time")
    overcome = bool(get("overcome"))
    applied = lsn.parse(get("applied_lsn"))
    return Subscription(
        oid=row["subid"],
        name=row["subname"],
        database=row["database"],
        here=row["here"],
        enabled=row["subenabled"],
        slot=row["subslotname"],
        leader_pid=get("leader_pid"),
        apply_pid=row["apply_pid"] or get("leader_pid"),
        other_pids=sorted({*(row["worker_pids"] or ()), *(row["writer_pids"] or ())}),
        num_writers=get("num_writers"),
        busy_writers=get("busy_writers"),
        received_lsn=lsn.parse(get("received_lsn")),
        # natively, all that is received has been applied, or is just being applied
        applied_lsn=applied or lsn.parse(row["latest_end_lsn"]),
        apply_lag_bytes=get("apply_lag_bytes", get("lag_bytes")),
        apply_lag_time=_seconds(get("lag_time")),
        publisher_lsn=lsn.parse(get("publisher_lsn")),
        publisher_lsn_age=_seconds(row["now"] - publisher_time) if publisher_time else None,
        publisher_lag_bytes=get("publisher_lag_bytes"),
        transactions=get("transactions"),
        native_transactions=get("native_transactions"),
        changes=get("changes"),
        dependency_waits=get("dependency_waits"),
        order_waits=get("order_waits"),
        misspeculations=get("misspeculations"),
        apply_rate=_float(get("apply_rate")),
        apply_rate_bytes=_float(get("apply_rate_bytes")),
        catch_up_time=_seconds(get("catch_up_time")),
        ring_size=get("ring_size"),
        ring_used=get("ring_used"),
        output_plugin=get("output_plugin"),
        native_reason=get("native_reason"),
        last_error=get("last_error"),
        last_error_time=get("last_error_time"),
        error_overcome=overcome,
        disabled_by_error=_disabled_by_error(row, overcome),
        error_count=int(row["error_count"] or 0),
        tables_not_ready=row["tables_not_ready"],
    )


def _disabled_by_error(row: dict[str, Any], overcome: bool) -> bool:
    """As weft.health() decides it (H003).  Otherwise, its owner has disabled it."""
    copy_failed = bool(row["sync_error_count"] and row["tables_not_ready"])
    apply_failed = bool(row["apply_error_count"]) and not overcome
    return not row["subenabled"] and row["subdisableonerr"] and (copy_failed or apply_failed)


def _seconds(interval: timedelta | None) -> float | None:
    return None if interval is None else interval.total_seconds()


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def read_waits(server: Server, pids: list[int]) -> dict[int, Wait]:
    """What these processes wait for; the views of locks are read only if one waits for a lock."""
    waits = {row["pid"]: Wait(**row) for row in server.rows(WAITS, pids)} if pids else {}
    # Without the right to see waits, locks can still be seen.
    suspects = [wait.pid for wait in waits.values() if wait.kind == "Lock" or not wait.visible]
    if suspects:
        for row in server.rows(LOCK_WAITS, suspects):
            wait = waits[row["pid"]]
            wait.lock_seconds = max(wait.lock_seconds or 0.0, row["seconds"])
            wait.lock_object = row["object"] or wait.lock_object
    return waits


def read_blockers(server: Server, waiting: list[int], own: set[int]) -> list[Blocker]:
    """The sessions at the end of the chain of those that block these processes."""
    ends: set[int] = set()
    seen = set(waiting) | own
    current = list(waiting)
    for _ in range(CHAIN_LENGTH):
        found = {row["pid"] for row in server.rows(BLOCKERS, current)} - seen
        if not found:
            break
        ends = found
        seen |= found
        current = [pid for pid in found if pid]
    sessions = {row["pid"]: row for row in server.rows(SESSIONS, list(ends))} if ends else {}
    return [Blocker(**sessions.get(pid, {"pid": pid})) for pid in sorted(ends)]
