"""Makes checks, and keeps what they have found and what could not be checked."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from weft_cli.doctor import (
    conflicts,
    connection,
    databases,
    failover,
    itself,
    publications,
    sequences,
    settings,
    slots,
    subscriptions,
    tables,
)
from weft_cli.doctor.case import SUBSCRIPTIONS, Case, Thresholds
from weft_cli.doctor.reading import NotChecked
from weft_cli.doctor.registry import CHECKS, Check, Hit, Needs
from weft_cli.errors import BadUsage, MissingRights, Refused, Unreachable, WeftError
from weft_cli.finding import Finding, Severity, Side
from weft_cli.server import Server

# Importing them has registered their checks.
MODULES = (
    conflicts, connection, databases, failover, itself, publications, sequences, settings, slots,
    subscriptions, tables,
)  # fmt: skip

FIRST_SUBSCRIBER = 170000

# The check is then reported as not made.
LOCK_TIMEOUT = "1s"

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Found:
    """A finding, and where it was found."""

    finding: Finding
    subscription: str | None
    server: str
    # the index that the fix creates: schema and name
    new_index: tuple[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            **self.finding.as_json(),
            "subscription": self.subscription,
            "server": self.server,
        }


@dataclass(frozen=True)
class NotMade:
    """A check that could not be made, or not completely."""

    id: str
    subscription: str | None
    reason: str


@dataclass
class Report:
    found: list[Found] = field(default_factory=list)
    not_made: list[NotMade] = field(default_factory=list)
    # all checks that there was something to check for
    tried: list[str] = field(default_factory=list)

    def add(self, other: "Report") -> None:
        """Findings about a publisher of several subscriptions are the same finding."""
        known = {(each.finding, each.server) for each in self.found}
        self.found += [each for each in other.found if (each.finding, each.server) not in known]
        self.not_made += [each for each in other.not_made if each not in self.not_made]
        self.tried += [each for each in other.tried if each not in self.tried]

    @property
    def fine(self) -> list[str]:
        bad = {each.finding.id for each in self.found} | {each.id for each in self.not_made}
        return [id for id in self.tried if id not in bad]

    @property
    def is_fine(self) -> bool:
        """What could not be checked is not fine; what is only worth knowing is."""
        return not self.not_made and all(each.finding.severity == "info" for each in self.found)

    def sort(self) -> None:
        order = {id: place for place, id in enumerate(self.tried)}
        self.found.sort(
            key=lambda each: (SEVERITIES.index(each.finding.severity), order[each.finding.id])
        )


def cases_of(
    subscriber: Server, names: Sequence[str], publisher: str | None, thresholds: Thresholds
) -> list[Case]:
    """The subscriptions to examine: all of the database, unless some are named."""
    if subscriber.version < FIRST_SUBSCRIBER:
        raise Refused(
            f"{subscriber.name} runs a version of PostgreSQL without Weft",
            "Connect to the subscriber; it must be PostgreSQL 17 or later.",
        )
    limit_waiting(subscriber)
    existing = {row["name"]: row for row in subscriber.rows(SUBSCRIPTIONS)}
    for name in names:
        if name not in existing:
            raise Refused(f'there is no subscription "{name}" in {subscriber.name}')
    wanted = [existing[name] for name in names] if names else list(existing.values())
    if publisher is not None and len(wanted) > 1:
        raise BadUsage(
            "--publisher is about one subscription, but the database has several",
            "Name the subscription.",
        )
    if not wanted:
        there = subscriber.other(publisher) if publisher is not None else None
        if there is not None:
            limit_waiting(there)
        return [Case(subscriber, None, there, thresholds)]
    return [case_of(subscriber, row, publisher, thresholds) for row in wanted]


def case_of(
    subscriber: Server, subscription: dict[str, Any], publisher: str | None, thresholds: Thresholds
) -> Case:
    case = Case(subscriber, subscription, None, thresholds)
    try:
        case.publisher = subscriber.publisher_of(subscription["name"], publisher)
        limit_waiting(case.publisher)
    except Unreachable as error:
        if subscriber.connection.closed:
            raise
        case.unreachable = str(error)
    except MissingRights as error:
        case.hidden = f"{error}; use --publisher"
    return case


def limit_waiting(server: Server) -> None:
    """Sizes and contents of a table are read under a lock, which somebody else may hold."""
    server.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")


def again(case: Case, publisher: str | None) -> Case:
    """The same case as it is now, seen through a new connection to the publisher."""
    cases = cases_of(
        case.subscriber, [case.name] if case.subscription else [], publisher, case.thresholds
    )
    return cases[0]


def close(cases: Iterable[Case]) -> None:
    for case in cases:
        if case.publisher is not None:
            case.publisher.close()


def applies(check: Check, case: Case) -> bool:
    """Is there anything that the check is about?"""
    if check.needs in (Needs.SUBSCRIPTION, Needs.BOTH) and case.subscription is None:
        return False
    return not (
        check.needs is Needs.PUBLISHER and case.subscription is None and case.publisher is None
    )


def examine(case: Case, checks: Iterable[Check]) -> Report:
    report = Report()
    subscription = case.name if case.subscription else None
    for check in checks:
        if not applies(check, case):
            continue
        report.tried.append(check.id)
        try:
            if check.needs in (Needs.PUBLISHER, Needs.BOTH) and case.publisher is None:
                raise NotChecked(case.why_no_publisher)
            for hit in check.function(case):
                report.found.append(found(case, check, hit, subscription))
        except NotChecked as reason:
            report.not_made.append(NotMade(check.id, subscription, str(reason)))
        except WeftError as error:
            # Without the subscriber, nothing can be checked.
            if case.subscriber.connection.closed:
                raise
            report.not_made.append(NotMade(check.id, subscription, str(error)))
    return report


def found(case: Case, check: Check, hit: Hit, subscription: str | None) -> Found:
    side = cast(Side, hit.side or check.side)
    finding = Finding(
        id=check.id,
        severity=cast(Severity, hit.severity or check.severity),
        side=side,
        object=hit.object,
        problem=hit.problem,
        remedy=hit.remedy or check.remedy,
    )
    if hit.fix_sql:
        fix_side = cast(Side, hit.fix_side or side)
        finding = replace(finding, fix_sql=hit.fix_sql, fix_side=fix_side, restart=hit.restart)
    server = case.publisher if side == "publisher" and case.publisher else case.subscriber
    return Found(finding, subscription, server.name, hit.new_index)


def examine_all(cases: Iterable[Case], checks: Sequence[Check]) -> Report:
    report = Report()
    for case in cases:
        report.add(examine(case, checks))
    report.sort()
    return report


def named_checks(ids: Iterable[str]) -> set[str]:
    """Ids as a user writes them: in any case, and several in one argument with commas."""
    result = {id.strip().upper() for each in ids for id in each.split(",") if id.strip()}
    for id in sorted(result):
        if id not in CHECKS:
            raise BadUsage(f'there is no check "{id}"', "weft doctor --list shows all of them.")
    return result
