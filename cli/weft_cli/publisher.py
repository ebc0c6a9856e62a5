"""What a publisher knows of a subscription: its slot, its walsender, and the end of its WAL."""

from dataclasses import dataclass
from typing import Any

from weft_cli import lsn
from weft_cli.server import Server


@dataclass
class Slot:
    wal_end: int
    exists: bool
    plugin: str | None = None
    active: bool = False
    confirmed_lsn: int | None = None
    restart_lsn: int | None = None
    wal_status: str | None = None
    safe_wal_size: int | None = None
    max_keep_bytes: int | None = None
    invalidation_reason: str | None = None
    sender_pid: int | None = None
    # None: may not be seen, or no walsender
    sender_state: str | None = None
    sent_lsn: int | None = None
    sender_visible: bool = False
    wait_kind: str | None = None
    wait_event: str | None = None
    segment_size: int = lsn.SEGMENT_SIZE

    @property
    def retained_bytes(self) -> int | None:
        """WAL that the publisher keeps for this slot."""
        return None if self.restart_lsn is None else max(self.wal_end - self.restart_lsn, 0)


SLOT = """
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
        ELSE pg_current_wal_flush_lsn() END)::text AS wal_end,
    s.slot_name IS NOT NULL AS exists, s.plugin, coalesce(s.active, false) AS active,
    s.confirmed_flush_lsn::text AS confirmed_lsn, s.restart_lsn::text AS restart_lsn,
    s.wal_status, s.safe_wal_size, s.active_pid AS sender_pid,
    r.state AS sender_state, r.sent_lsn::text AS sent_lsn,
    a.backend_type IS NOT NULL AS sender_visible,
    a.wait_event_type AS wait_kind, a.wait_event,
    (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size') AS segment_size,
    (SELECT setting::bigint * 1024 * 1024 FROM pg_settings
        WHERE name = 'max_slot_wal_keep_size' AND setting <> '-1') AS max_keep_bytes
    {columns}
FROM (SELECT) one LEFT JOIN pg_replication_slots s ON s.slot_name = %s
    LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
    LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
"""

# A file is last written when it is filled, so this is when the publisher wrote what follows.
SEGMENT_AGE = """
SELECT extract(epoch FROM clock_timestamp() - max(modification))::float8
FROM pg_ls_waldir() WHERE right(name, 16) = %s
"""


def read_slot(server: Server, name: str) -> Slot:
    # The publisher may be as old as PostgreSQL 15.
    columns = ", s.invalidation_reason" if server.version >= 170000 else ""
    row: dict[str, Any] = server.rows(SLOT.format(columns=columns), name)[0]
    for key in ("wal_end", "confirmed_lsn", "restart_lsn", "sent_lsn"):
        row[key] = lsn.parse(row[key])
    row["wal_end"] = row["wal_end"] or 0
    return Slot(**row)


def read_age_of(server: Server, position: int, slot: Slot) -> float | None:
    """Seconds since the publisher filled the WAL file with this position.

    The position is older than that, by at most the time in which a file is filled.  None if the
    file is still being written or is not there, or if the role may not list the files.
    """
    current = lsn.segment_name(slot.wal_end, slot.segment_size)
    name = lsn.segment_name(position, slot.segment_size)
    if name == current or not server.value(
        "SELECT has_function_privilege('pg_ls_waldir()', 'EXECUTE')"
    ):
        return None
    age: float | None = server.value(SEGMENT_AGE, name)
    return age
