"""How far the subscriber has told the publisher that everything is safe on its disk."""

from __future__ import annotations

import time
from collections.abc import Callable

from .contents import MARKS
from .errors import BenchError
from .pair import ABSOLUTE_TIMEOUT, Pair

POLL_INTERVAL = 0.01
# A slot of a standby has no confirmed_flush_lsn: there, restart_lsn is what it has flushed.
CONFIRMED = (
    "SELECT coalesce(confirmed_flush_lsn, restart_lsn) > %s::pg_lsn FROM pg_replication_slots "
    "WHERE slot_name = %s"
)


def durable_mark(pair: Pair) -> tuple[int, str]:
    """Commits a mark as pair.mark() does.  Returns it with a position before its commit record,
    and behind everything before it: what is confirmed beyond this includes the mark."""
    pair.marks += 1
    with pair.publisher.connect() as session, session.transaction():
        session.execute("SET LOCAL synchronous_commit = local")
        session.execute(f"INSERT INTO {MARKS} VALUES ({pair.marks})")
        row = session.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return pair.marks, row[0]


def wait_until_confirmed(
    pair: Pair, slot: str, position: str, look: Callable[[], None] = lambda: None
) -> float:
    """Returns the time at which the slot was behind the position."""
    start = time.monotonic()
    with pair.publisher.connect() as session:
        while True:
            row = session.execute(CONFIRMED, [position, slot]).fetchone()
            now = time.monotonic()
            if row is None:
                raise BenchError(f"there is no slot {slot}")
            if row[0]:
                return now
            if now - start > ABSOLUTE_TIMEOUT:
                raise BenchError(f"{slot} is not confirmed after {ABSOLUTE_TIMEOUT} s")
            look()
            time.sleep(POLL_INTERVAL)
