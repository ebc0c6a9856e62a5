"""What a measurement costs beside processor time: WAL, local commits, updates left out."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from .pair import Pair, wait_until
from .ratios import per
from .server import Server

# Until the counters of tables, which may lag by a second, have arrived; and how long they must
# stay the same for that.
COUNTER_TIMEOUT = 10.0


def lsn(position: int) -> str:
    """A position in the WAL as the server writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def local_commits(server: Server, start: int, end: int) -> int:
    """Commit records between two positions in the server's WAL."""
    return int(
        server.value(
            "SELECT coalesce(sum(count), 0) FROM pg_get_wal_stats(%s, %s, true) "
            "WHERE \"resource_manager/record_type\" LIKE 'Transaction/COMMIT%%'",
            [lsn(start), lsn(end)],
        )
    )


def updates_applied(server: Server) -> tuple[int, int]:
    """Updates that Weft has counted as applied, and those of them that it left out since a later
    one of the same row followed."""
    if not server.value("SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'weft')"):
        return 0, 0
    updates, left_out = server.execute(
        "SELECT coalesce(sum(updates), 0), coalesce(sum(coalesced_rows), 0) FROM weft.stat_relation"
    )[0]
    return int(updates), int(left_out)


@dataclass(frozen=True)
class Cost:
    transactions: int
    publisher_wal: int | None = None
    subscriber_wal: int | None = None
    commits: int | None = None
    updates: int = 0
    left_out: int = 0

    @property
    def metrics(self) -> dict[str, tuple[str, float]]:
        """Unit and value by metric; nothing that was not measured."""
        found: dict[str, tuple[str, float]] = {}
        if self.publisher_wal is not None:
            found["publisher_wal_per_txn"] = ("bytes", per(self.publisher_wal, self.transactions))
        if self.subscriber_wal is not None:
            found["subscriber_wal_per_txn"] = ("bytes", per(self.subscriber_wal, self.transactions))
        if self.commits is not None:
            found["commits_per_txn"] = ("commits", per(self.commits, self.transactions))
        if self.updates:
            found["updates_left_out"] = ("%", 100 * per(self.left_out, self.updates))
        return found


class Accounts:
    """Positions and counters at the start of something, and what has been added at its end."""

    def __init__(self, pair: Pair, has_subscriber: bool, publisher_start: int | None = None):
        """The position of the publisher, if it is not the current one."""
        self.pair = pair
        if publisher_start is None:
            publisher_start = pair.publisher.wal_position()
        self.publisher_start = publisher_start
        # A standby writes no WAL.
        self.writes = has_subscriber and not pair.subscriber.is_standby()
        if self.writes:
            self.subscriber_start = pair.subscriber.wal_position()
            self.updates_start = updates_applied(pair.subscriber)

    def subscriber_starts(self) -> None:
        """What it has written so far does not belong to the measurement."""
        if self.writes:
            self.subscriber_start = self.pair.subscriber.wal_position()

    def close(self, transactions: int, publisher_end: int | None = None) -> Cost:
        """Takes some seconds; call it outside the clock."""
        if publisher_end is None:
            publisher_end = self.pair.publisher.wal_position()
        wal = publisher_end - self.publisher_start
        if not self.writes:
            return Cost(transactions, wal)
        here = self.pair.subscriber
        end = here.wal_position()
        # A commit that need not be durable may not have been written yet.
        wait_until(
            lambda: here.value("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", [lsn(end)]),
            "the subscriber's WAL is not written",
        )
        try:
            commits = local_commits(here, self.subscriber_start, end)
        except psycopg.Error:
            # A checkpoint has removed a part of it.
            commits = None
        updates, left_out = self.added_updates()
        return Cost(transactions, wal, end - self.subscriber_start, commits, updates, left_out)

    def added_updates(self) -> tuple[int, int]:
        """Counters of a worker that has been started since then begin at 0."""
        seen: tuple[int, int] | None = None

        def settled() -> bool:
            nonlocal seen
            before, seen = seen, updates_applied(self.pair.subscriber)
            return seen == before

        wait_until(settled, "Weft's counters do not settle", COUNTER_TIMEOUT, interval=1.2)
        assert seen is not None
        if seen[0] < self.updates_start[0]:
            return seen
        return seen[0] - self.updates_start[0], seen[1] - self.updates_start[1]
