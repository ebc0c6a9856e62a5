"""Who holds a subscription up: the publisher, the network, or apply.

Each moment is judged by itself, beginning at the walsender:

- It is working, neither waiting for the socket nor for more WAL: whatever it sends is taken from
  it at once, so the publisher is the slowest of all.
- It waits for the socket.  If the subscriber waits for data at the same time, it is the network;
  otherwise it is apply, which does not read.
- It has sent everything: what is left is apply's, or on its way.

If the publisher cannot be asked, only apply can be told from the other two.  The verdict is that
of most moments.  A lock is different: if apply has waited for a lock for a while, nothing else
matters.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from weft_cli.observer import Look
from weft_cli.output import duration, size
from weft_cli.publisher import Slot
from weft_cli.quoting import identifier
from weft_cli.subscriber import Blocker, Subscription, Wait

Kind = Literal["lock", "apply", "network", "publisher", "publisher or network"]

# Waiting for a lock for less time is usual.
LOCK_SECONDS = 1.0
# A backlog of less than this is nobody's fault: it is what is on its way.
SMALL_BACKLOG = 1024 * 1024
SMALL_LAG = 2.0

LEADER_HUNGRY = {"LogicalApplyMain", "WeftLeaderMain", "WeftLeaderCut"}
SENDER_BLOCKED = {"WalSenderWriteData"}
SENDER_IDLE = {"WalSenderMain", "WalSenderWaitForWal", "WalSenderWaitForWAL"}
# the ring is so full that the leader reads only as fast as writers apply
RING_FULL = 0.5

# weft.max_writers_per_subscription, if nobody has changed it
USUAL_MOST_WRITERS = 8

WRITER_WAITS = {
    "WeftWriterDependency": "changes of the same rows, one after the other",
    "WeftWriterCommitOrder": "an earlier transaction that is not finished",
    "WeftWriterData": "the rest of a transaction that has not arrived",
    "WalSync": "the disk (flushing WAL)",
    "WALSync": "the disk (flushing WAL)",
    "WalWrite": "the disk (writing WAL)",
    "WALWrite": "the disk (writing WAL)",
    "DataFileRead": "the disk (reading tables and indexes)",
    "DataFileExtend": "the disk (extending tables)",
    "WeftWriterMain": "work",
}


@dataclass(frozen=True)
class Culprit:
    kind: Kind
    text: str
    remedy: str = ""
    sql: str = ""
    seconds: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def behind_bytes(subscription: Subscription, slot: Slot | None) -> tuple[int | None, bool]:
    """How far apply is behind the end of the publisher's WAL; and is that all, or a part?"""
    if slot and slot.exists:
        reached = max(subscription.applied_lsn or 0, slot.confirmed_lsn or 0)
        if reached:
            return max(slot.wal_end - reached, 0), True
    if subscription.publisher_lag_bytes is not None:
        return subscription.publisher_lag_bytes, True
    return subscription.apply_lag_bytes, False


def has_backlog(subscription: Subscription, slot: Slot | None) -> bool:
    count, _ = behind_bytes(subscription, slot)
    return (count or 0) > SMALL_BACKLOG or (subscription.apply_lag_time or 0) > SMALL_LAG


def find_culprit(looks: Sequence[Look], oid: int) -> Culprit | None:
    """The one who holds a subscription up in most of these looks; None if nobody does."""
    looks = [look for look in looks if oid in look.subscriptions]
    if not looks:
        return None
    last = looks[-1]
    subscription = last.subscriptions[oid]
    if not subscription.enabled or subscription.apply_pid is None:
        return None
    if culprit := _lock(looks, oid):
        return culprit
    if not has_backlog(subscription, last.slots.get(oid)):
        return None
    kinds = Counter(_judge(look, oid) for look in looks)
    kind, _count = kinds.most_common(1)[0]
    if kind == "apply":
        return _apply(looks, oid)
    if kind == "network":
        return _network(subscription)
    if kind == "publisher":
        return _publisher(looks, oid)
    if kind == "publisher or network":
        return Culprit(
            "publisher or network",
            "apply waits for data: the publisher or the network is slower than this server",
            "To find out which, connect as a superuser, or give --publisher.",
        )
    return None


def _judge(look: Look, oid: int) -> Kind | None:
    subscription = look.subscriptions[oid]
    slot = look.slots.get(oid)
    hungry = _is_hungry(subscription, look.waits)
    if slot is None or not slot.sender_visible:
        if not hungry:
            return "apply"
        slow_elsewhere = (subscription.publisher_lag_bytes or 0) > SMALL_BACKLOG
        return "publisher or network" if slow_elsewhere else "apply"
    if slot.wait_event in SENDER_BLOCKED:
        return "network" if hungry else "apply"
    if slot.wait_event not in SENDER_IDLE:
        return "publisher"
    if (subscription.apply_lag_bytes or 0) > SMALL_BACKLOG:
        return "apply"
    in_flight = (slot.sent_lsn or 0) - (subscription.received_lsn or slot.sent_lsn or 0)
    return "network" if in_flight > SMALL_BACKLOG else None


def _is_hungry(subscription: Subscription, waits: dict[int, Wait]) -> bool:
    """Does apply wait for data, with nothing left to do?"""
    if subscription.ring_fill > RING_FULL:
        return False
    wait = waits.get(subscription.apply_pid or 0)
    if wait is None or not wait.visible:
        return (subscription.apply_lag_bytes or 0) < SMALL_BACKLOG
    return wait.event in LEADER_HUNGRY


def _lock(looks: Sequence[Look], oid: int) -> Culprit | None:
    last = looks[-1]
    subscription = last.subscriptions[oid]
    blockers = last.blockers.get(oid)
    waits = [last.waits[pid] for pid in subscription.pids if pid in last.waits]
    longest = max((w for w in waits if w.on_lock), key=lambda w: w.lock_seconds or 0, default=None)
    if not blockers or longest is None:
        return None
    waited = longest.lock_seconds or 0.0
    # An older transaction retries with a short time limit, so one wait may look short.
    applied = {look.subscriptions[oid].applied_lsn for look in looks if oid in look.subscriptions}
    stuck = len(applied) == 1 and looks[-1].time - looks[0].time >= LOCK_SECONDS * 0.8
    if waited < LOCK_SECONDS and not stuck:
        return None
    blocker = blockers[0]
    on = f" on {longest.lock_object}" if longest.lock_object else ""
    others = f", and {len(blockers) - 1} more" if len(blockers) > 1 else ""
    text = (
        f"apply has waited {duration(waited)} for a lock{on}, held by {describe(blocker)}{others}"
    )
    if blocker.pid == 0:
        remedy = "Commit or roll back the prepared transaction (pg_prepared_xacts)."
        return Culprit("lock", text, remedy, "", waited)
    sql = f"SELECT pg_terminate_backend({blocker.pid});"
    return Culprit("lock", text, "End that transaction, or terminate its session:", sql, waited)


def describe(blocker: Blocker) -> str:
    if blocker.pid == 0:
        return "a prepared transaction"
    if blocker.kind and blocker.kind != "client backend":
        return f"process {blocker.pid} ({blocker.kind})"
    facts = []
    if blocker.role:
        facts.append(blocker.role)
    if blocker.application:
        facts.append(blocker.application)
    if blocker.client:
        facts.append(f"from {blocker.client}")
    if blocker.state:
        facts.append(blocker.state)
    if blocker.transaction_seconds is not None:
        facts.append(f"transaction open for {duration(blocker.transaction_seconds)}")
    return f"process {blocker.pid}" + (f" ({', '.join(facts)})" if facts else "")


def _apply(looks: Sequence[Look], oid: int) -> Culprit:
    subscription = looks[-1].subscriptions[oid]
    lag = size(subscription.apply_lag_bytes)
    if subscription.native:
        reason = subscription.native_reason or "it has no writers"
        return Culprit(
            "apply",
            f"this server applies too slowly: one process does all of it, natively ({reason})",
            "Let Weft apply it:",
            f"ALTER SUBSCRIPTION {identifier(subscription.name)} SET (num_writers = 4);",
        )
    busy = f"{subscription.busy_writers} of {subscription.num_writers} writers are busy"
    wait = _main_wait(looks, oid)
    text = f"this server applies too slowly: {lag} received and not applied, {busy}{wait}"
    all_busy = (subscription.busy_writers or 0) >= (subscription.num_writers or 0)
    if not all_busy:
        return Culprit("apply", text, "See what the writers are doing: weft top")
    more = 2 * (subscription.num_writers or 2)
    if more > USUAL_MOST_WRITERS:
        return Culprit("apply", text, "See what the writers are doing: weft top")
    return Culprit(
        "apply",
        text,
        "Give it more writers:",
        f"ALTER SUBSCRIPTION {identifier(subscription.name)} SET (num_writers = {more});",
    )


def _main_wait(looks: Sequence[Look], oid: int) -> str:
    """What most writers wait for, or that they do not."""
    waits: Counter[str | None] = Counter()
    for look in looks:
        subscription = look.subscriptions[oid]
        for pid in subscription.other_pids:
            wait = look.waits.get(pid)
            if wait and wait.visible and wait.event != "WeftWriterMain":
                waits[wait.event] += 1
    if not waits:
        return ""
    event, _count = waits.most_common(1)[0]
    if event is None:
        return ", mostly computing"
    return f", mostly waiting for {WRITER_WAITS.get(event, event)}"


def _network(subscription: Subscription) -> Culprit:
    text = "the network is slow: the publisher waits to send while apply waits for data"
    plugin = subscription.output_plugin or ""
    remedy = "Check the network's bandwidth."
    sql = ""
    if plugin == "weft":
        remedy = "Let the publisher compress what it sends; on this server:"
        sql = "ALTER SYSTEM SET weft.compression = 'lz4'; SELECT pg_reload_conf();"
    elif plugin == "pgoutput":
        remedy += " With Weft's output plugin, the publisher can compress what it sends."
    return Culprit("network", text, remedy, sql)


def _publisher(looks: Sequence[Look], oid: int) -> Culprit:
    slot = looks[-1].slots[oid]
    unsent = size(slot.wal_end - slot.sent_lsn) if slot.sent_lsn else "WAL"
    events = Counter(look.slots[oid].wait_event for look in looks if oid in look.slots).most_common(
        1
    )[0][0]
    doing = "computing" if events is None else f"waiting for {events}"
    text = (
        f"the publisher is behind: its walsender (process {slot.sender_pid}) has {unsent} left"
        f" to decode, and is mostly {doing}"
    )
    remedy = "Nothing to do on this server; see what else the publisher is busy with."
    if slot.plugin == "pgoutput":
        remedy = "With Weft's output plugin, a walsender decodes faster: weft adopt."
    return Culprit("publisher", text, remedy)
