"""The server's own subscriptions, with Weft and without."""

from __future__ import annotations

import psycopg

from ..build import Build
from ..errors import BenchError
from ..pair import Pair, wait_until
from ..server import Server
from .base import Look, Report, System, wait_for_tables

SUBSCRIPTION = "bench"


def advance_slots(pair: Pair) -> None:
    """Moves the idle slots behind the WAL that vacuum and checkpoint have just written, and
    behind that of earlier passes: reading it again is no part of what is measured."""
    pair.publisher.execute(
        "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) "
        "FROM pg_replication_slots"
    )


def slots_idle(pair: Pair) -> bool:
    return not pair.publisher.value(
        "SELECT coalesce(bool_or(active), false) FROM pg_replication_slots"
    )


def publish(publisher: Server) -> None:
    publisher.execute("CREATE PUBLICATION bench FOR ALL TABLES")


class Subscription(System):
    options: dict[str, str]
    synchronous_name: str | None = SUBSCRIPTION
    # The subscription that is measured; it is created by this name unless a group creates it.
    subscription = slot = SUBSCRIPTION
    shares = True
    plugin = "pgoutput"

    def prepare(self, pair: Pair) -> None:
        self.prepare_subscriber(pair)
        publish(pair.publisher)

    def prepare_subscriber(self, pair: Pair) -> None:
        pass

    def reserve(self, publisher: Server) -> None:
        self.slot = "_".join((SUBSCRIPTION, self.name.replace("-", "_"), str(self.writers or 0)))
        publisher.execute(
            "SELECT pg_create_logical_replication_slot(%s, %s)", [self.slot, self.plugin]
        )

    def attach(self, pair: Pair) -> None:
        if not pair.subscriber.value("SELECT EXISTS (SELECT FROM pg_subscription)"):
            self.prepare_subscriber(pair)
            self.create(pair, "false", slot_name=self.slot, create_slot="false", enabled="false")

    def detach(self, pair: Pair) -> None:
        self.hold(pair)

    def create(self, pair: Pair, copy_data: str, **others: str) -> None:
        options = {**self.options, "copy_data": copy_data, **others}
        if self.synchronous_commit:
            options["synchronous_commit"] = "on"
        listed = ", ".join(f"{name} = {value}" for name, value in options.items())
        pair.subscriber.execute(
            f"CREATE SUBSCRIPTION {SUBSCRIPTION} CONNECTION '{pair.publisher.remote_conninfo}' "
            f"PUBLICATION bench WITH ({listed})"
        )

    def connect(self, pair: Pair) -> None:
        self.create(pair, copy_data="false")

    def pause(self, pair: Pair) -> None:
        self.hold(pair)
        advance_slots(pair)

    def hold(self, pair: Pair) -> None:
        """Returns once the worker has ended and the slot is free for the next one."""
        pair.subscriber.execute(f"ALTER SUBSCRIPTION {self.subscription} DISABLE")
        wait_until(
            lambda: (
                slots_idle(pair)
                and pair.subscriber.value(
                    "SELECT NOT EXISTS (SELECT FROM pg_stat_subscription "
                    "WHERE pid IS NOT NULL AND subname = %s)",
                    [self.subscription],
                )
            ),
            "the disabled subscription's processes do not end",
        )

    def resume(self, pair: Pair, subscriber: psycopg.Connection) -> None:
        subscriber.execute(f"ALTER SUBSCRIPTION {self.subscription} ENABLE")

    def copy(self, pair: Pair, at: Report, look: Look) -> None:
        self.create(pair, copy_data="true")
        wait_for_tables(
            pair, "SELECT count(*) > 0 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel",
            "the initial copy does not end", at, look,
        )  # fmt: skip


class Native(Subscription):
    name = "native"
    options = {"binary": "true", "streaming": "off"}  # noqa: RUF012


class NativeText(Subscription):
    name = "native-text"
    options = {"binary": "false", "streaming": "off"}  # noqa: RUF012


class NativeParallel(Subscription):
    name = "native-parallel"
    options = {"binary": "true", "streaming": "parallel"}  # noqa: RUF012

    def refusal(self, scenario: str) -> str | None:
        return "streaming has nothing to do with the initial copy" if scenario == "copy" else None


class WeftStock(Subscription):
    """A publisher that knows nothing of Weft."""

    name = "weft-stock"
    options = NativeParallel.options

    def __init__(self, writers: int):
        self.writers = writers

    def subscriber_settings(self, build: Build) -> dict[str, object]:
        return {
            "shared_preload_libraries": "weft",
            "weft.writers_per_subscription": self.writers,
            "weft.max_writers_per_subscription": max(self.writers or 0, 8),
        }

    def prepare_subscriber(self, pair: Pair) -> None:
        pair.subscriber.execute("CREATE EXTENSION weft")

    def shared_mb(self, pair: Pair) -> float:
        query = "SELECT coalesce(sum(ring_size), 0) FROM weft.stat_subscription"
        return float(pair.subscriber.value(query)) / 1024 / 1024

    def verify(self, pair: Pair, scenario: str) -> str | None:
        if scenario == "copy":
            self.verify_copy(pair)
            return None
        leader, writers, native, reason = pair.subscriber.execute(
            "SELECT leader_pid, num_writers, native_transactions, native_reason "
            "FROM weft.stat_subscription WHERE subname = %s",
            [self.subscription],
        )[0]
        problem = (
            f"{writers} writers, {native} transactions applied natively, "
            f"{reason or 'no reason given'}"
        )
        if leader is None or reason or writers != self.writers:
            raise BenchError(f"Weft has not applied with {self.writers} writers: {problem}")
        if native > 0 and scenario != "copy":
            raise BenchError(f"Weft has not applied all: {problem}")
        return problem if native > 0 else None

    def verify_copy(self, pair: Pair) -> None:
        """The default is two helpers."""
        copies = pair.subscriber.execute(
            "SELECT relation::text, helpers_used FROM weft.copy_get_progress()"
        )
        if copies != [(pair.contents.tables[0], 2)]:
            raise BenchError(f"Weft has not copied with two helpers, but {copies or 'natively'}")


class Weft(WeftStock):
    """Everything it has: Weft on the publisher, too, so that it may use a slot of its own."""

    name = "weft"
    plugin = "weft"

    def publisher_settings(self, build: Build) -> dict[str, object]:
        return {"shared_preload_libraries": "weft", **build.with_plugin("weft")}

    def reserve_settings(self, build: Build) -> dict[str, object]:
        return self.publisher_settings(build)


TIMESTAMPS = {"track_commit_timestamp": "on"}


class NativeTimestamps(Native):
    """A subscriber that tracks commit timestamps, as every member of a group does."""

    name = "native-timestamps"

    def subscriber_settings(self, build: Build) -> dict[str, object]:
        return {**super().subscriber_settings(build), **TIMESTAMPS}


class WeftTimestamps(Weft):
    name = "weft-timestamps"

    def subscriber_settings(self, build: Build) -> dict[str, object]:
        return {**super().subscriber_settings(build), **TIMESTAMPS}


class WeftExact(WeftTimestamps):
    """Each transaction has a commit of its own."""

    name = "weft-exact"

    def subscriber_settings(self, build: Build) -> dict[str, object]:
        return {**super().subscriber_settings(build), "weft.exact_commit_timestamps": "on"}


class WeftDetect(WeftTimestamps):
    """As within a group: conflicts are detected, and there is a slot for another member, so that
    no updates are coalesced."""

    name = "weft-detect"
    options = {**WeftTimestamps.options, "detect_conflicts": "true"}  # noqa: RUF012

    def prepare_subscriber(self, pair: Pair) -> None:
        super().prepare_subscriber(pair)
        pair.subscriber.execute(
            "SELECT pg_create_logical_replication_slot('other_member', 'pgoutput')"
        )
