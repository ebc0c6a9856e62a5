"""What the observations mean: the state of each subscription, and what is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from weft_cli import lsn
from weft_cli.culprit import Culprit, behind_bytes, find_culprit, has_backlog
from weft_cli.finding import Finding, Severity
from weft_cli.observer import Look
from weft_cli.output import duration, size
from weft_cli.publisher import Slot
from weft_cli.quoting import identifier
from weft_cli.subscriber import Subscription

# An apply worker that ended with an error is started again within seconds; an error that is
# older than this is not why there is no worker.
RECENT_ERROR = 300.0
# Part of max_slot_wal_keep_size below which a slot is in danger.
SAFE_SHARE = 0.25
# ... and, if that is not known, bytes.
SAFE_BYTES = 1024**3

# How the server says that this is what the user has set.
NO_WRITERS_WANTED = "the number of writers is 0"

MINUTE = 60.0
GIGABYTE = 1024**3


@dataclass(frozen=True)
class Limits:
    """How far a subscription may be behind."""

    warning_seconds: float = MINUTE
    critical_seconds: float = 10 * MINUTE
    warning_bytes: int = GIGABYTE
    critical_bytes: int = 16 * GIGABYTE

    def severity(self, seconds: float | None, count: int | None) -> Severity | None:
        if (seconds or 0) >= self.critical_seconds or (count or 0) >= self.critical_bytes:
            return "error"
        if (seconds or 0) >= self.warning_seconds or (count or 0) >= self.warning_bytes:
            return "warning"
        return None


@dataclass
class Assessment:
    """One subscription, as far as it matters to its administrator."""

    subscription: Subscription
    slot: Slot | None
    state: str
    behind_bytes: int | None
    # False: what has not been received is not known, and comes on top
    behind_is_all: bool
    behind_seconds: float | None
    rate: float | None
    rate_bytes: float | None
    # of the publisher's WAL
    growth_bytes: float | None
    seconds_left: float | None
    # it is behind, and will not catch up at this rate
    never: bool
    culprit: Culprit | None

    def as_json(self) -> dict[str, Any]:
        subscription = self.subscription
        slot = self.slot
        return {
            "name": subscription.name,
            "database": subscription.database,
            "state": self.state,
            "enabled": subscription.enabled,
            "behind_bytes": self.behind_bytes,
            "behind_is_all": self.behind_is_all,
            "behind_seconds": self.behind_seconds,
            "apply_lag_bytes": subscription.apply_lag_bytes,
            "transactions_per_second": self.rate,
            "bytes_per_second": self.rate_bytes,
            "publisher_bytes_per_second": self.growth_bytes,
            "seconds_left": self.seconds_left,
            "never_catches_up": self.never,
            "writers": subscription.num_writers,
            "busy_writers": subscription.busy_writers,
            "native": subscription.native,
            "native_reason": subscription.native_reason,
            "output_plugin": subscription.output_plugin,
            "received_lsn": lsn.text(subscription.received_lsn),
            "applied_lsn": lsn.text(subscription.applied_lsn),
            "transactions": subscription.transactions,
            "native_transactions": subscription.native_transactions,
            "changes": subscription.changes,
            "tables_not_ready": subscription.tables_not_ready,
            "error_count": subscription.error_count,
            "last_error": subscription.last_error,
            "last_error_time": subscription.last_error_time,
            "culprit": self.culprit,
            "publisher": None
            if slot is None
            else {
                "slot": subscription.slot,
                "slot_exists": slot.exists,
                "slot_active": slot.active,
                "plugin": slot.plugin,
                "wal_end": lsn.text(slot.wal_end),
                "sent_lsn": lsn.text(slot.sent_lsn),
                "wal_status": slot.wal_status,
                "safe_wal_size": slot.safe_wal_size,
                "retained_bytes": slot.retained_bytes,
                "sender_state": slot.sender_state,
            },
        }


def assess(looks: Sequence[Look], oid: int, position_age: float | None = None) -> Assessment:
    """Judges by looks of about a second; position_age is the age of what has been applied last."""
    last = looks[-1]
    subscription = last.subscriptions[oid]
    slot = last.slots.get(oid)
    count, is_all = behind_bytes(subscription, slot)
    rates = _Rates.between(looks, oid)
    culprit = find_culprit(looks, oid)
    backlog = has_backlog(subscription, slot)

    seconds = subscription.apply_lag_time if subscription.apply_pid else None
    if position_age is not None and backlog:
        seconds = max(seconds or 0.0, position_age)
    elif backlog and not subscription.apply_lag_time:
        # Everything received is applied, so its time tells nothing.
        seconds = None

    if culprit and culprit.seconds:
        seconds = max(seconds or 0.0, culprit.seconds)

    left = subscription.catch_up_time
    rate_bytes = _first(subscription.apply_rate_bytes, rates.bytes)
    closing = None
    if rate_bytes is not None and rates.growth is not None:
        closing = rate_bytes - rates.growth
    if left is None and backlog and closing is not None and closing > 0 and count:
        left = count / closing
    return Assessment(
        subscription=subscription,
        slot=slot,
        state=_state(subscription, culprit, backlog),
        behind_bytes=count,
        behind_is_all=is_all,
        behind_seconds=seconds,
        rate=_first(subscription.apply_rate, rates.transactions),
        rate_bytes=rate_bytes,
        growth_bytes=rates.growth,
        # Nobody knows when a lock will be released.
        seconds_left=left if backlog and not (culprit and culprit.kind == "lock") else None,
        # A second is too short to tell; the server's own average is not.
        never=bool(
            backlog
            and left is None
            and subscription.apply_rate_bytes is not None
            and closing is not None
            and closing <= 0
        ),
        culprit=culprit,
    )


@dataclass
class _Rates:
    transactions: float | None = None
    bytes: float | None = None
    growth: float | None = None

    @staticmethod
    def between(looks: Sequence[Look], oid: int) -> "_Rates":
        """From the first to the last look at the same apply worker, if they are not too close."""
        last = looks[-1]
        now = last.subscriptions[oid]
        same = [
            look
            for look in looks
            if oid in look.subscriptions and look.subscriptions[oid].apply_pid == now.apply_pid
        ]
        first = same[0]
        then = first.subscriptions[oid]
        seconds = last.time - first.time
        if seconds < 0.5:
            return _Rates()

        def per_second(new: int | None, old: int | None) -> float | None:
            return None if new is None or old is None else max(new - old, 0) / seconds

        growth = None
        if oid in first.slots and oid in last.slots:
            growth = per_second(last.slots[oid].wal_end, first.slots[oid].wal_end)
        return _Rates(
            per_second(now.transactions, then.transactions),
            per_second(now.applied_lsn, then.applied_lsn),
            growth,
        )


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _state(subscription: Subscription, culprit: Culprit | None, backlog: bool) -> str:
    if not subscription.enabled:
        return "disabled"
    if subscription.apply_pid is None:
        return "failing" if _failed_recently(subscription) else "down"
    if culprit and culprit.kind == "lock":
        return "blocked"
    if subscription.tables_not_ready:
        return "copying"
    return "catching up" if backlog else "streaming"


def _failed_recently(subscription: Subscription) -> bool:
    when = subscription.last_error_time
    return when is not None and (datetime.now(UTC) - when).total_seconds() < RECENT_ERROR


def findings_about(assessment: Assessment, limits: Limits) -> list[Finding]:
    """What is wrong with a subscription, most important first."""
    worker = _about_worker(assessment)
    if worker:
        # That it is not applied is why it is behind.
        distance = [_with_distance(finding, assessment, limits) for finding in worker]
    else:
        distance = _about_distance(assessment, limits)
    return [*distance, *_about_slot(assessment), *_about_native(assessment)]


def _with_distance(finding: Finding, assessment: Assessment, limits: Limits) -> Finding:
    severity = limits.severity(assessment.behind_seconds, assessment.behind_bytes)
    if severity is None:
        return finding
    return replace(
        finding,
        severity="error" if severity == "error" else finding.severity,
        problem=f"{_behind(assessment)}; {finding.problem}",
    )


def _behind(assessment: Assessment) -> str:
    distance = [size(assessment.behind_bytes)] if assessment.behind_bytes else []
    if assessment.behind_seconds:
        distance.append(duration(assessment.behind_seconds))
    return f"{' and '.join(distance)} behind" if distance else "behind"


def _about_worker(assessment: Assessment) -> list[Finding]:
    subscription = assessment.subscription
    name = identifier(subscription.name)
    error = None if subscription.error_overcome else subscription.last_error
    told = f": {error}" if error else ""
    if assessment.state == "disabled":
        return [
            Finding(
                "subscription-disabled",
                "error" if subscription.disabled_by_error else "warning",
                "subscriber",
                subscription.name,
                f"disabled{'; its last error' + told if error else ''}",
                "Remove the cause of the error, then enable it:"
                if error or subscription.disabled_by_error
                else "To continue:",
                (f"ALTER SUBSCRIPTION {name} ENABLE;",),
                "subscriber",
            )
        ]
    if assessment.state == "failing":
        return [
            Finding(
                "apply-failing",
                "error",
                "subscriber",
                subscription.name,
                f"the apply worker fails again and again{told}",
                "Remove the cause of the error; the worker is restarted every few seconds.",
            )
        ]
    if assessment.state == "down":
        return [
            Finding(
                "apply-down",
                "error",
                "subscriber",
                subscription.name,
                f"there is no apply worker{'; its last error' + told if error else ''}",
                "Read the server's log; max_logical_replication_workers and max_worker_processes"
                " may be too small.",
            )
        ]
    return []


def _about_slot(assessment: Assessment) -> list[Finding]:
    slot = assessment.slot
    subscription = assessment.subscription
    if slot is None:
        return []

    def finding(id: str, severity: Severity, problem: str, remedy: str) -> list[Finding]:
        return [Finding(id, severity, "publisher", subscription.name, problem, remedy)]

    if not slot.exists:
        return finding(
            "slot-missing",
            "error",
            f'the publisher has no slot "{subscription.slot}"',
            "The changes since it was dropped are lost: create the subscription again, or make a"
            " slot and compare the tables.",
        )
    if slot.wal_status == "lost" or slot.invalidation_reason:
        reason = f" ({slot.invalidation_reason})" if slot.invalidation_reason else ""
        return finding(
            "slot-lost",
            "error",
            f'the publisher has invalidated slot "{subscription.slot}"{reason}',
            "Drop the subscription and create it again.",
        )
    if slot.wal_status == "unreserved":
        return finding(
            "slot-in-danger",
            "error",
            f'slot "{subscription.slot}" needs WAL that the publisher removes at its next'
            " checkpoint",
            "Raise max_slot_wal_keep_size on the publisher now, and reload.",
        )
    safe = slot.safe_wal_size
    if safe is not None and safe < (
        SAFE_SHARE * slot.max_keep_bytes if slot.max_keep_bytes else SAFE_BYTES
    ):
        return finding(
            "slot-in-danger",
            "warning",
            f'slot "{subscription.slot}" is lost after {size(max(safe, 0))} more of WAL',
            "Raise max_slot_wal_keep_size on the publisher, or let the subscriber catch up.",
        )
    return []


def _about_distance(assessment: Assessment, limits: Limits) -> list[Finding]:
    culprit = assessment.culprit
    severity = limits.severity(assessment.behind_seconds, assessment.behind_bytes)
    if severity is None and not (culprit and culprit.kind == "lock"):
        return []
    name = assessment.subscription.name
    behind = _behind(assessment)
    if culprit is None:
        return [
            Finding(
                "far-behind",
                severity or "warning",
                "subscriber",
                name,
                f"{behind}; within a second, no cause was found",
                "Watch it: weft top",
            )
        ]
    blocked = culprit.kind == "lock"
    return [
        Finding(
            "apply-blocked" if blocked else "far-behind",
            severity or "warning",
            "publisher" if culprit.kind == "publisher" else "subscriber",
            name,
            culprit.text if blocked and severity is None else f"{behind}; {culprit.text}",
            culprit.remedy,
            (culprit.sql,) if culprit.sql else (),
            "subscriber" if culprit.sql else None,
        )
    ]


def _about_native(assessment: Assessment) -> list[Finding]:
    subscription = assessment.subscription
    if not subscription.native_reason or not subscription.enabled:
        return []
    chosen = subscription.native_reason == NO_WRITERS_WANTED
    return [
        Finding(
            "applied-natively",
            "info" if chosen else "warning",
            "subscriber",
            subscription.name,
            f"one process applies everything: {subscription.native_reason}",
            "Remove that reason; the subscription continues with writers by itself.",
        )
    ]
