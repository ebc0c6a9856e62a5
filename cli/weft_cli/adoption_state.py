"""Where an adoption is: what both servers say, and which step comes next (see adoption.py)."""

import hashlib
import re
from dataclasses import dataclass
from enum import Enum

from weft_cli.errors import Refused
from weft_cli.lsn import parse
from weft_cli.quoting import word
from weft_cli.server import Server

WEFT = "weft"
PGOUTPUT = "pgoutput"

MAX_NAME = 63


class Step(Enum):
    CLEAN = "clean"
    STOP = "stop"
    WAIT = "wait"
    COPY = "copy"
    FAILOVER = "failover"
    START = "start"
    SETTLE = "settle"
    STANDBY = "standby"
    DROP = "drop"


STOPPED_STEPS = (Step.WAIT, Step.COPY, Step.FAILOVER, Step.START)


def lsn(text: str | None) -> int:
    """A position that can be compared with others: the lowest for none."""
    return parse(text) or 0


@dataclass(frozen=True)
class Slot:
    name: str
    plugin: str
    here: bool  # in the database that this program is connected to
    active: bool
    temporary: bool
    failover: bool
    confirmed: int
    lost: str | None  # why it is not usable


@dataclass(frozen=True)
class State:
    """What both servers say now."""

    subid: int
    subscription: str
    enabled: bool
    slot_name: str | None
    failover: bool
    two_phase: bool
    unready_tables: int
    system_identifier: int
    # what the apply worker says, if it is Weft's
    plugin_in_use: str | None
    native_reason: str | None
    slots: dict[str, Slot]

    def new_name(self, old: str, plugin: str) -> str:
        """A name that tells the old one, and cannot be anybody else's."""
        identity = f"{self.system_identifier}/{self.subid}/{plugin}/{old}"
        suffix = f"_{plugin}_{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
        base = re.sub(r"_(weft|pgoutput)_[0-9a-f]{8}$", "", old)
        return base[: MAX_NAME - len(suffix)] + suffix

    def predecessor(self, new: str, plugin: str) -> Slot | None:
        for slot in self.slots.values():
            if slot.name != new and self.new_name(slot.name, plugin) == new:
                return slot
        return None


@dataclass(frozen=True)
class Pair:
    """The slots of an adoption, as far as they exist."""

    old_name: str | None
    new_name: str
    old: Slot | None
    new: Slot | None
    # the subscription has the new one
    changed: bool


def find_pair(state: State, plugin: str) -> Pair:
    """Raises Refused if the subscription's slot is unknown on the publisher."""
    name = state.slot_name
    assert name is not None
    current = state.slots.get(name)
    other = PGOUTPUT if plugin == WEFT else WEFT
    if state.predecessor(name, other) is not None:
        raise Refused(
            f"the subscription is being moved to plugin {other}",
            f"Finish that first: weft adopt --plugin {other} {word(state.subscription)}",
        )
    old = state.predecessor(name, plugin)
    if old is not None or (current is not None and current.plugin == plugin):
        return Pair(old.name if old else None, name, old, current, True)
    if current is None:
        raise Refused(
            f'the publisher has no slot "{name}"',
            "If that is another server, name the right one with --publisher.",
        )
    new = state.new_name(name, plugin)
    return Pair(name, new, current, state.slots.get(new), False)


def next_step(state: State, plugin: str, standbys_have_it: bool) -> Step | None:
    """The step that the table above has for the state; None if there is nothing left to do."""
    pair = find_pair(state, plugin)
    if not pair.changed:
        return Step.CLEAN if pair.new else Step.STOP
    if pair.new is None:
        if state.enabled:
            return Step.STOP
        assert pair.old is not None
        return Step.WAIT if pair.old.active else Step.COPY
    if pair.old is None:
        return None
    if not state.enabled:
        return Step.FAILOVER if state.failover and not pair.new.failover else Step.START
    if not settled(state, pair.new, plugin):
        return Step.SETTLE
    if state.failover and not standbys_have_it:
        return Step.STANDBY
    return Step.DROP


def settled(state: State, new: Slot, plugin: str) -> bool:
    """Does the publisher stream from the new slot, and does the subscriber know its plugin?"""
    if not new.active:
        return False
    if plugin != WEFT or state.native_reason:
        return True
    return (state.plugin_in_use or "").startswith(WEFT)


def remaining_steps(state: State, plugin: str) -> list[Step]:
    """What is left to do, for showing it."""
    first = next_step(state, plugin, False)
    if first is None:
        return []
    pair = find_pair(state, plugin)
    steps = list(Step)
    steps = steps[steps.index(first) :]
    if not state.failover:
        steps = [step for step in steps if step not in (Step.FAILOVER, Step.STANDBY)]
    if pair.changed and pair.new is not None and state.enabled:
        steps = [step for step in steps if step not in STOPPED_STEPS]
    return steps


def slots_of(server: Server) -> dict[str, Slot]:
    return {
        row["slot_name"]: Slot(
            name=row["slot_name"],
            plugin=row["plugin"],
            here=row["here"],
            active=row["active"],
            temporary=row["temporary"],
            failover=row["failover"],
            confirmed=lsn(row["confirmed_flush_lsn"]),
            lost=row["invalidation_reason"] or ("wal_removed" if row["lost"] else None),
        )
        for row in server.rows(
            "SELECT slot_name, plugin::text, database = current_database() AS here, active,"
            " temporary, failover, confirmed_flush_lsn::text, invalidation_reason,"
            " wal_status = 'lost' AS lost"
            " FROM pg_replication_slots WHERE slot_type = 'logical'"
        )
    }
