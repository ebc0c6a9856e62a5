"""Looks at a subscriber and its publishers, again and again."""

import time
from dataclasses import dataclass, field

from weft_cli.errors import MissingRights, Refused, Unreachable, WeftError
from weft_cli.publisher import Slot, read_slot
from weft_cli.server import Server
from weft_cli.subscriber import (
    Blocker,
    Subscription,
    Wait,
    read_blockers,
    read_subscriptions,
    read_waits,
)

# Seconds until a publisher is tried again that could not be reached.
RETRY_INTERVAL = 30.0


@dataclass
class Look:
    """Everything at one moment."""

    time: float  # monotonic
    subscriptions: dict[int, Subscription]
    waits: dict[int, Wait]
    # no entry: the publisher cannot be asked
    slots: dict[int, Slot] = field(default_factory=dict)
    # by subscription; only if it waits for a lock that no process of this subscription holds
    blockers: dict[int, list[Blocker]] = field(default_factory=dict)


@dataclass
class Publisher:
    """A connection to a subscription's publisher, or why there is none."""

    server: Server | None = None
    problem: WeftError | None = None
    retry_at: float = 0.0


class Observer:
    def __init__(
        self,
        server: Server,
        names: tuple[str, ...] = (),
        publisher: str | None = None,
        ask_publishers: bool = True,
    ):
        self.server = server
        self.names = names
        self.publisher_conninfo = publisher
        self.ask_publishers = ask_publishers
        self.publishers: dict[int, Publisher] = {}
        self._names: dict[int, str] = {}

    def close(self) -> None:
        for publisher in self.publishers.values():
            if publisher.server:
                publisher.server.close()
        self.server.close()

    def look(self) -> Look:
        found = {each.oid: each for each in read_subscriptions(self.server, self.names)}
        self._names = {oid: each.name for oid, each in found.items()}
        missing = set(self.names) - {each.name for each in found.values()}
        if missing:
            raise Refused(
                f'there is no subscription "{min(missing)}" in {self.server.name}',
                "weft status without an argument shows all subscriptions.",
            )
        pids = [pid for each in found.values() for pid in each.pids]
        look = Look(time.monotonic(), found, read_waits(self.server, pids))
        for each in found.values():
            waiting = [pid for pid in each.pids if pid in look.waits and look.waits[pid].on_lock]
            if waiting:
                blockers = read_blockers(self.server, waiting, set(each.pids))
                if blockers:
                    look.blockers[each.oid] = blockers
            if self.ask_publishers and each.slot:
                slot = self._ask(each)
                if slot:
                    look.slots[each.oid] = slot
        return look

    def publisher_problem(self, oid: int) -> WeftError | None:
        """Why the publisher of a subscription cannot be asked, if so."""
        publisher = self.publishers.get(oid)
        return publisher.problem if publisher else None

    def name_of(self, oid: int) -> str:
        return self._names.get(oid, str(oid))

    def _ask(self, subscription: Subscription) -> Slot | None:
        assert subscription.slot
        publisher = self.publishers.setdefault(subscription.oid, Publisher())
        if publisher.server is None and time.monotonic() < publisher.retry_at:
            return None
        try:
            if publisher.server is None:
                publisher.server = self._connect(subscription)
            slot = read_slot(publisher.server, subscription.slot)
        except (Unreachable, MissingRights, Refused) as error:
            if publisher.server:
                publisher.server.close()
            publisher.server = None
            publisher.problem = error
            publisher.retry_at = time.monotonic() + RETRY_INTERVAL
            return None
        publisher.problem = None
        if not slot.exists and subscription.apply_pid is not None:
            # Apply has a connection to that slot, so this is another server.
            publisher.problem = Refused(
                f"the server {publisher.server.name} has no slot"
                f' "{subscription.slot}", so it is not the publisher',
                "The connection string of the subscription is meant as seen from the subscriber; "
                "give the publisher's address as seen from here with --publisher.",
            )
            return None
        return slot

    def _connect(self, subscription: Subscription) -> Server:
        return self.server.publisher_of_oid(subscription.oid, self.publisher_conninfo)
