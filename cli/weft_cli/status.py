"""weft status: is replication fine, and if not, who holds it up."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import click
from rich.live import Live

from weft_cli import nagios
from weft_cli.assessment import Assessment, Limits, assess, findings_about
from weft_cli.context import LOOK_TIMEOUT, Context
from weft_cli.copies import Copy, read_copies
from weft_cli.culprit import has_backlog
from weft_cli.errors import Unreachable, WeftError
from weft_cli.exit_code import ExitCode
from weft_cli.finding import Finding
from weft_cli.health import read_health
from weft_cli.members import member_findings, read_members
from weft_cli.observer import Look, Observer
from weft_cli.options import HELP_NAMES, common_options, publisher_option, watch_option
from weft_cli.output import emit
from weft_cli.publisher import read_age_of
from weft_cli.status_view import status_view, unreachable_view

SCHEMA = 1

# If something is behind, looks for about a second show who holds it up.
LOOKS = 10
PAUSE = 0.1

SEVERITIES = {"error": 0, "warning": 1, "info": 2}


@dataclass
class Status:
    server: dict[str, Any]
    assessments: list[Assessment]
    findings: list[Finding]
    copies: list[Copy]
    members: dict[str, Any] | None
    time: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def verdict(self) -> str:
        return next((f.severity for f in self.findings if f.severity != "info"), "ok")

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.FINE if self.verdict == "ok" else ExitCode.FINDINGS

    def as_json(self) -> dict[str, Any]:
        return {
            "time": self.time,
            "verdict": self.verdict,
            "server": self.server,
            "findings": [finding.as_json() for finding in self.findings],
            "subscriptions": [assessment.as_json() for assessment in self.assessments],
            "copies": [copy.as_json() for copy in self.copies],
            "node_group": self.members,
        }


@click.command("status", context_settings={"help_option_names": HELP_NAMES})
@click.argument("subscription", nargs=-1)
@common_options
@watch_option
@publisher_option
@click.option("--no-publisher", is_flag=True, help="Do not connect to publishers.")
@click.option("--nagios", "as_plugin", is_flag=True, help="One line and an exit status for Nagios.")
@click.option(
    "--warning",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=60,
    show_default=True,
    help="From how far behind on there is a warning.",
)
@click.option(
    "--critical",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=600,
    show_default=True,
    help="From how far behind on there is an error.",
)
@click.option(
    "--warning-bytes",
    type=nagios.parse_size,
    metavar="SIZE",
    default="1GB",
    show_default=True,
    help="The same in WAL.",
)
@click.option(
    "--critical-bytes",
    type=nagios.parse_size,
    metavar="SIZE",
    default="16GB",
    show_default=True,
    help="The same in WAL.",
)
@click.pass_obj
def command(
    context: Context,
    subscription: tuple[str, ...],
    publisher: str | None,
    no_publisher: bool,
    as_plugin: bool,
    warning: float,
    critical: float,
    warning_bytes: int,
    critical_bytes: int,
) -> int:
    """Shows every subscription: state, distance, rate, time left, and who holds it up.

    If one is behind, the command watches for a second, and says whether the publisher, the
    network, a lock, or this server's own speed is the cause. For that, it also connects to the
    publisher, as the subscription does.
    """
    limits = Limits(warning, critical, warning_bytes, critical_bytes)

    def observe() -> Observer:
        server = context.connect(LOOK_TIMEOUT)
        server.require_weft()
        return Observer(server, subscription, publisher, not no_publisher)

    if as_plugin:
        return _run_as_plugin(observe, limits)
    if context.options.watch:
        return _watch(context, observe, limits, context.options.watch)
    observer = observe()
    try:
        status = take(observer, limits)
    finally:
        observer.close()
    _show(context, status)
    return status.exit_code


def take(observer: Observer, limits: Limits) -> Status:
    """Looks as often as necessary, and judges."""
    looks = look_for_a_while(observer)
    last = looks[-1]
    server = observer.server
    assessments = []
    for oid, subscription in last.subscriptions.items():
        age = None
        slot = last.slots.get(oid)
        publisher = observer.publishers.get(oid)
        if slot and publisher and publisher.server and has_backlog(subscription, slot):
            reached = max(subscription.applied_lsn or 0, slot.confirmed_lsn or 0)
            age = read_age_of(publisher.server, reached, slot) if reached else None
        assessments.append(assess(looks, oid, age))

    members = read_members(server)
    copies = [
        copy
        for copy in read_copies(server)
        if not observer.names or copy.subscription in observer.names
    ]
    findings = [each for a in assessments for each in findings_about(a, limits)]
    findings += _about_copies(copies)
    health = read_health(server, findings)
    if members and not any(finding.id == "H008" for finding in health):
        findings += member_findings(members)
    findings += health
    findings += _about_publishers(observer)
    findings.sort(key=lambda finding: SEVERITIES[finding.severity])
    return Status(
        server={
            "name": server.name,
            "version": server.connection.info.parameter_status("server_version"),
            "weft_library": server.weft_library,
            "weft_extension": server.weft_extension,
        },
        assessments=assessments,
        findings=findings,
        copies=copies,
        members=members,
    )


def look_for_a_while(observer: Observer) -> list[Look]:
    """One look if all is well; more if something is behind, or its rate is not known otherwise."""
    looks = [observer.look()]
    applied = [s for s in looks[0].subscriptions.values() if s.apply_pid is not None]
    if any(
        has_backlog(each, looks[0].slots.get(each.oid)) or each.oid in looks[0].blockers
        for each in applied
    ):
        for _ in range(LOOKS):
            time.sleep(PAUSE)
            looks.append(observer.look())
    elif any(each.apply_rate is None for each in applied):
        time.sleep(LOOKS * PAUSE)
        looks.append(observer.look())
    return looks


def _about_copies(copies: Sequence[Copy]) -> list[Finding]:
    return [
        Finding(
            "copy-failed",
            "warning",
            "subscriber",
            copy.table,
            f"its copy has failed, and is repeated: {copy.last_error}",
            "Remove the cause of the error; the copy is repeated until it succeeds.",
        )
        for copy in copies
        if copy.last_error
    ]


def _about_publishers(observer: Observer) -> list[Finding]:
    """One for each reason, not for each subscription."""
    problems: dict[str, WeftError] = {}
    names: dict[str, list[str]] = {}
    for oid in observer.publishers:
        problem = observer.publisher_problem(oid)
        if problem:
            problems[str(problem)] = problem
            names.setdefault(str(problem), []).append(observer.name_of(oid))
    return [
        Finding(
            "publisher-unknown",
            "info",
            "publisher",
            ", ".join(names[text]),
            f"the publisher was not asked: {text}",
            problem.hint,
        )
        for text, problem in problems.items()
    ]


def _show(context: Context, status: Status) -> None:
    emit(
        context,
        SCHEMA,
        "status",
        status.as_json(),
        lambda console: console.print(status_view(status, console.width)),
    )


def _watch(context: Context, observe: Callable[[], Observer], limits: Limits, pause: float) -> int:
    """Until interrupted.  A server that is restarted meanwhile is waited for."""
    observer: Observer | None = observe()
    live = None
    if context.options.output == "table" and context.console.is_terminal:
        live = Live(console=context.console, auto_refresh=False)
        live.start()
    try:
        while True:
            try:
                observer = observer or observe()
                status = take(observer, limits)
                if live:
                    live.update(status_view(status, context.console.width), refresh=True)
                else:
                    _show(context, status)
            except Unreachable as error:
                if observer:
                    observer.close()
                observer = None
                if live:
                    live.update(unreachable_view(error), refresh=True)
                else:
                    context.errors.print(unreachable_view(error))
            time.sleep(pause)
    finally:
        if live:
            live.stop()
        if observer:
            observer.close()


def _run_as_plugin(observe: Callable[[], Observer], limits: Limits) -> int:
    try:
        observer = observe()
        try:
            return nagios.report(take(observer, limits), limits)
        finally:
            observer.close()
    except WeftError as error:
        return nagios.report_error(error)
