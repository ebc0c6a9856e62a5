"""Node groups: members that detect conflicts, and follow each other."""

from __future__ import annotations

from functools import partial

from ..arguments import Options
from ..build import Build
from ..pair import Pair, wait_until
from ..server import Server
from .native import TIMESTAMPS, Weft

GROUP = "bench"
JOIN_TIMEOUT = "1 hour"
SLOTS_AT = "SELECT coalesce(bool_and(restart_lsn >= %s::pg_lsn), true) FROM pg_replication_slots"


def subscription_of(follower: Server, followed: Server) -> str:
    """As a group calls it."""
    return f"weft_{GROUP}_{followed.name}_{follower.name}"


class WeftGroup(Weft):
    """Two members, of which only one is written to.  The other detects conflicts, and sends what
    it has applied to nobody, but has to decode it to know that."""

    name = "weft-group"
    options = {}  # noqa: RUF012
    subscription = slot = f"weft_{GROUP}_publisher_subscriber"
    # Its publisher is a member that the subscriber has joined before.
    shares = False
    synchronous_name: str | None = subscription
    copies_again = True

    def refusal(self, scenario: str) -> str | None:
        return "a node joins with a copy of its own" if scenario == "copy" else None

    def member_settings(self, build: Build) -> dict[str, object]:
        return {
            **super().subscriber_settings(build), **super().publisher_settings(build), **TIMESTAMPS
        }  # fmt: skip

    def publisher_settings(self, build: Build) -> dict[str, object]:
        return self.member_settings(build)

    def subscriber_settings(self, build: Build) -> dict[str, object]:
        return self.member_settings(build)

    def members(self, pair: Pair) -> list[Server]:
        return [pair.publisher, pair.subscriber]

    def prepare(self, pair: Pair) -> None:
        for server in self.members(pair):
            server.execute("CREATE EXTENSION weft")

    def connect(self, pair: Pair) -> None:
        """A node joins with empty tables, so the rows are copied once more."""
        first, *others = self.members(pair)
        self.create_node(first)
        first.execute(f"SELECT weft.create_node_group('{GROUP}')")
        for server in others:
            server.execute(f"TRUNCATE {', '.join(pair.contents.all_tables)}")
            self.create_node(server)
            server.execute("SELECT weft.join_node_group(%s, %s)", [first.remote_conninfo, GROUP])
            server.execute("SELECT weft.wait_for_join_completion(%s)", [JOIN_TIMEOUT])
        if self.synchronous_commit:
            for server in self.members(pair):
                for (name,) in server.execute("SELECT subname FROM pg_subscription"):
                    server.execute(f"ALTER SUBSCRIPTION {name} SET (synchronous_commit = on)")

    def release_wal(self, pair: Pair) -> None:
        """A slot keeps the WAL of the copy with which a node has joined, at first.  A subscriber
        without a slot has recycled its WAL by now, and need not make new files."""
        for server in self.members(pair)[1:]:
            end = server.value("SELECT pg_current_wal_insert_lsn()::text")
            server.execute("CHECKPOINT")
            wait_until(partial(server.value, SLOTS_AT, [end]), "the slot of a member keeps old WAL")
            server.execute("CHECKPOINT")

    def create_node(self, server: Server) -> None:
        server.execute("SELECT weft.create_node(%s, %s)", [server.name, server.remote_conninfo])


class WeftGroup3(WeftGroup):
    """Three members, all of which are written to, each in branches of its own."""

    name = "weft-group-3"
    remote = False
    synchronous_name = None
    sources = {**WeftGroup.sources, "third": "subscriber"}  # noqa: RUF012

    def refusal(self, scenario: str) -> str | None:
        return None if scenario == "sustained" else "all of its members are written to"

    def refusal_of(self, options: Options) -> str | None:
        if options.load != "tpcb":
            return "only pgbench's own load is divided among members"
        return super().refusal_of(options)

    def members(self, pair: Pair) -> list[Server]:
        return [pair.publisher, pair.subscriber, pair.third]

    def start(self, pair: Pair, publisher: dict, subscriber: dict) -> None:
        super().start(pair, publisher, subscriber)
        pair.third.start({**subscriber, **self.subscriber_settings(pair.build)})
        pair.written = tuple(self.members(pair))
