"""What weft top shows: several views at one moment, with rates since the moment before."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from weft_cli.assessment import Assessment, Limits, assess, findings_about
from weft_cli.copies import Copy, read_copies
from weft_cli.culprit import WRITER_WAITS
from weft_cli.finding import Finding
from weft_cli.observer import Look, Observer
from weft_cli.server import Server

# Looks by which a subscription is judged.
LOOKS = 5
# Conflicts of the history that are shown.
LATEST = 50

WRITERS = """
SELECT subid, subname AS subscription, writer, pid, state, transactions, changes, misspeculations,
    remote_lsn::text AS remote_lsn
FROM weft.stat_writer ORDER BY subname, writer
"""

TABLES = """
SELECT subid, subname AS subscription, relation::text AS table, path, reason,
    inserts, updates, deletes, general_rows, coalesced_rows
FROM weft.stat_relation ORDER BY subname, relation::text
"""

STREAMS = """
SELECT subname AS subscription, remote_xid::text AS transaction, state, writer, spool_bytes,
    received_changes, applied_changes
FROM weft.stat_stream ORDER BY subname, spool_bytes DESC
"""

CONFLICTS = """
SELECT subid, subname AS subscription, conflict_type AS type, conflicts
FROM weft.stat_conflict ORDER BY subname, conflict_type
"""

HISTORY = """
SELECT recorded_at AS time, subname AS subscription, relation AS table, conflict_type AS type,
    resolution, key::text AS key
FROM weft.conflict_history ORDER BY recorded_at DESC LIMIT %s
"""


@dataclass
class TopData:
    looks: deque[Look]
    assessments: list[Assessment]
    findings: list[Finding]
    writers: list[dict[str, Any]]
    tables: list[dict[str, Any]]
    streams: list[dict[str, Any]]
    conflicts: list[dict[str, Any]]
    # None: this role may not read it
    history: list[dict[str, Any]] | None
    copies: list[Copy] = field(default_factory=list)


class Collector:
    """Reads everything, and remembers the last counters."""

    def __init__(self, observer: Observer, limits: Limits):
        self.observer = observer
        self.limits = limits
        self.looks: deque[Look] = deque(maxlen=LOOKS)
        self.counters: dict[tuple[Any, ...], tuple[float, int]] = {}
        self.may_read_history = bool(
            observer.server.value("SELECT has_table_privilege('weft.conflict_history', 'SELECT')")
        )

    def collect(self) -> TopData:
        look = self.observer.look()
        self.looks.append(look)
        assessments = [assess(self.looks, oid) for oid in look.subscriptions]
        server = self.observer.server
        return TopData(
            looks=self.looks,
            assessments=assessments,
            findings=[each for a in assessments for each in findings_about(a, self.limits)],
            writers=self._writers(server, look),
            tables=self._tables(server),
            streams=server.rows(STREAMS),
            conflicts=self._conflicts(server),
            history=server.rows(HISTORY, LATEST) if self.may_read_history else None,
            copies=read_copies(server),
        )

    def _rate(self, count: int, *key: Any) -> float | None:
        """Per second since the last call for this key; None the first time, or after a reset."""
        now = time.monotonic()
        before = self.counters.get(key)
        self.counters[key] = (now, count)
        if before is None or count < before[1] or now <= before[0]:
            return None
        return (count - before[1]) / (now - before[0])

    def _writers(self, server: Server, look: Look) -> list[dict[str, Any]]:
        writers = server.rows(WRITERS)
        for row in writers:
            key = ("writer", row["subid"], row["writer"], row["pid"])
            row["transaction_rate"] = self._rate(row["transactions"], *key, "transactions")
            row["change_rate"] = self._rate(row["changes"], *key, "changes")
            wait = look.waits.get(row["pid"])
            row["wait"] = None
            if wait and wait.lock_seconds is not None:
                row["wait"] = f"lock{' on ' + wait.lock_object if wait.lock_object else ''}"
            elif wait and wait.event and row["state"] != "idle":
                row["wait"] = WRITER_WAITS.get(wait.event, f"{wait.kind}: {wait.event}")
        return writers

    def _tables(self, server: Server) -> list[dict[str, Any]]:
        tables = server.rows(TABLES)
        for row in tables:
            row["rows"] = row["inserts"] + row["updates"] + row["deletes"]
            row["rate"] = self._rate(row["rows"], "table", row["subid"], row["table"])
        return tables

    def _conflicts(self, server: Server) -> list[dict[str, Any]]:
        conflicts = server.rows(CONFLICTS)
        for row in conflicts:
            row["rate"] = self._rate(row["conflicts"], "conflict", row["subid"], row["type"])
        return [row for row in conflicts if row["conflicts"]]
