"""A publisher without anything, and a physical standby."""

from __future__ import annotations

import time

import psycopg

from ..pair import Pair, wait_until
from ..server import Server
from .base import Look, Report, System
from .native import slots_idle

SLOT = "bench"


class Publisher(System):
    """Alone: what the load costs without any replication."""

    name = "publisher"
    has_subscriber = False
    shares = True
    sources = {"publisher": "publisher"}  # noqa: RUF012

    def refusal(self, scenario: str) -> str | None:
        return "it has no subscriber" if scenario in ("copy", "lag") else None

    def start(self, pair: Pair, publisher: dict, subscriber: dict) -> None:
        pair.publisher.start(publisher)


class Physical(System):
    name = "physical"
    sources = {"publisher": "publisher", "subscriber": "publisher"}  # noqa: RUF012
    synchronous_name = "bench"
    slot = SLOT
    shares = True

    def start(self, pair: Pair, publisher: dict, subscriber: dict) -> None:
        self.settings = self.standby_settings(pair, subscriber)
        pair.publisher.start(publisher)
        if pair.subscriber.data.exists():
            self.reserve(pair.publisher)
            self.start_standby(pair)

    def standby_settings(self, pair: Pair, subscriber: dict) -> dict[str, object]:
        return {
            **subscriber,
            "hot_standby": "on",
            "primary_conninfo": self.conninfo(pair),
            "primary_slot_name": SLOT,
        }

    def reserve(self, publisher: Server) -> None:
        publisher.execute(f"SELECT pg_create_physical_replication_slot('{SLOT}', true)")

    def start_held(self, pair: Pair, publisher: dict, subscriber: dict) -> None:
        """Its data is that of the publisher before the backlog."""
        self.settings = self.standby_settings(pair, subscriber)
        with (pair.subscriber.data / "postgresql.auto.conf").open("a") as file:
            file.write("primary_conninfo = ''\n")
        pair.publisher.start(publisher)
        self.start_standby(pair)

    def detach(self, pair: Pair) -> None:
        """Another publisher needs another standby."""
        pair.subscriber.stop("immediate")

    def conninfo(self, pair: Pair) -> str:
        return f"{pair.publisher.remote_conninfo} application_name={self.synchronous_name}"

    def start_standby(self, pair: Pair) -> None:
        (pair.subscriber.data / "standby.signal").touch()
        pair.subscriber.start(self.settings)

    def pause(self, pair: Pair) -> None:
        """Cut off from the publisher, like a subscription that is disabled."""
        pair.subscriber.execute("ALTER SYSTEM SET primary_conninfo = ''")
        pair.subscriber.execute("SELECT pg_reload_conf()")
        wait_until(lambda: slots_idle(pair), "the standby does not let go of the publisher")

    def resume(self, pair: Pair, subscriber: psycopg.Connection) -> None:
        subscriber.execute("ALTER SYSTEM RESET primary_conninfo")
        subscriber.execute("SELECT pg_reload_conf()")

    def copy(self, pair: Pair, at: Report, look: Look) -> None:
        """A base backup, until its server answers."""
        pair.subscriber.program(
            "pg_basebackup", "-d", pair.publisher.remote_conninfo, "-D", str(pair.subscriber.data),
            "--checkpoint=fast", "--wal-method=stream", "--create-slot", "--slot", SLOT,
        )  # fmt: skip
        look()
        self.start_standby(pair)
        while not pair.subscriber.value("SELECT pg_is_in_recovery()"):
            time.sleep(0.01)


class CopiedPhysical(Physical):
    """In the copy scenario the standby does not exist before."""

    sources = {"publisher": "publisher"}  # noqa: RUF012
