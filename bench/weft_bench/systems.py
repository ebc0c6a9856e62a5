"""The systems under test: how each is set up, held back, let go and asked how far it is.

A system is told apart from the others by nothing but what stands here; the servers are built,
filled and configured alike for all.
"""

from __future__ import annotations

import psycopg

from .arguments import Options
from .pair import SUBSCRIPTION, Pair, disable_subscription
from .server import BenchError


class Subscription:
    """A native subscription, in step and disabled in the template."""

    name: str
    writers: int | None = None
    options: dict[str, str]

    @property
    def label(self) -> str:
        return self.name if self.writers is None else f"{self.name}, {self.writers} writers"

    def settings(self) -> dict[str, object]:
        """What the subscriber's configuration has beyond that of the other systems."""
        return {}

    def prepare(self, pair: Pair) -> None:
        """Called once on a fresh pair."""
        options = ", ".join(f"{name} = {value}" for name, value in self.options.items())
        pair.subscriber.execute(f"ALTER SUBSCRIPTION {SUBSCRIPTION} SET ({options})")

    def pause(self, pair: Pair) -> None:
        disable_subscription(pair)

    def skip_maintenance(self, pair: Pair) -> None:
        """Moves the paused slot behind the WAL that vacuum and checkpoint have just written, and
        behind that of earlier passes: reading it again is no part of what is measured."""
        pair.publisher.execute(
            "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) "
            "FROM pg_replication_slots"
        )

    def resume(self, subscriber: psycopg.Connection) -> None:
        subscriber.execute(f"ALTER SUBSCRIPTION {SUBSCRIPTION} ENABLE")

    def position(self, subscriber: psycopg.Connection) -> int:
        """The end of the last transaction that is committed here, as the publisher counts."""
        row = subscriber.execute(
            "SELECT (coalesce(pg_replication_origin_progress('pg_' || oid, false), '0/0') "
            "- '0/0'::pg_lsn)::bigint FROM pg_subscription"
        ).fetchone()
        return row[0]

    def verify(self, pair: Pair) -> None:
        """Raises an error if something else than this system was measured."""


class Native(Subscription):
    name = "native"
    options = {"binary": "true", "streaming": "off"}  # noqa: RUF012


class NativeText(Subscription):
    name = "native-text"
    options = {"binary": "false", "streaming": "off"}  # noqa: RUF012


class Weft(Subscription):
    name = "weft"
    options = Native.options

    def __init__(self, writers: int):
        self.writers = writers

    def settings(self) -> dict[str, object]:
        return {
            "shared_preload_libraries": "weft",
            "weft.writers_per_subscription": self.writers,
            "weft.max_writers_per_subscription": max(self.writers, 8),
        }

    def prepare(self, pair: Pair) -> None:
        pair.subscriber.execute("CREATE EXTENSION weft")
        super().prepare(pair)

    def verify(self, pair: Pair) -> None:
        leader, writers, native, reason = pair.subscriber.execute(
            "SELECT leader_pid, num_writers, native_transactions, native_reason "
            "FROM weft.stat_subscription"
        )[0]
        if leader is None or reason or writers != self.writers or native > 0:
            raise BenchError(
                f"Weft has not applied all with {self.writers} writers: {writers} writers, "
                f"{native} transactions applied natively, {reason or 'no reason given'}"
            )


def chosen_systems(options: Options) -> list[Subscription]:
    systems: list[Subscription] = []
    for name in options.systems:
        if name == "native":
            systems.append(Native())
        elif name == "native-text":
            systems.append(NativeText())
        else:
            systems += [Weft(writers) for writers in options.writers]
    return systems
