"""Runs the statements of findings, one finding after the other, and looks whether they helped."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import click

from weft_cli.context import Context
from weft_cli.doctor.case import Case
from weft_cli.doctor.registry import CHECKS, Check
from weft_cli.doctor.run import Found, Report, again, close, examine, examine_all, limit_waiting
from weft_cli.doctor.show import show_fix, show_result
from weft_cli.doctor.sql_text import name
from weft_cli.errors import BadUsage, Refused, WeftError
from weft_cli.server import Server

# Fixes may uncover further findings: a table that is published now is not subscribed to yet.
MOST_ROUNDS = 5
# Seconds until a reloaded parameter, or a worker that is started, shows.
EFFECT_TIME = 15.0
STEP = 0.2
DUPLICATE_RELATION = "42P07"
# Seconds until a subscription's worker has released its slot.
RELEASE_TIME = 30.0

UNFINISHED_INDEX = """
    SELECT true FROM pg_catalog.pg_index i
        JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s AND NOT i.indisvalid"""


@dataclass(frozen=True)
class Attempt:
    """ "status": fixed, restart (needed to take effect), ineffective, failed, declined, shown."""

    found: Found
    status: str
    message: str = ""


class Fixer:
    def __init__(
        self, context: Context, cases: list[Case], checks: Sequence[Check], publisher: str | None
    ):
        self.context = context
        self.cases = cases
        self.checks = checks
        self.publisher = publisher
        self.attempts: list[Attempt] = []

    def require_answers(self) -> None:
        options = self.context.options
        if not options.yes and not options.dry_run and not sys.stdin.isatty():
            raise BadUsage(
                "--fix asks before each change, but there is nobody to answer",
                "Use --dry-run to see the changes, and --yes to make them all.",
            )

    def fix(self, report: Report) -> Report:
        """Offers each fix once; returns the findings afterwards."""
        offered: set[tuple[str, str, str]] = set()
        for _ in range(MOST_ROUNDS):
            new = [
                each
                for each in report.found
                if each.finding.fix_sql
                and (each.finding.id, each.finding.object, each.server) not in offered
            ]
            if not new:
                break
            for found in new:
                offered.add((found.finding.id, found.finding.object, found.server))
                attempt = self.try_one(found)
                self.attempts.append(attempt)
                show_result(self.context, attempt.status, attempt.message)
            if self.context.options.dry_run:
                break
            self.renew()
            report = examine_all(self.cases, self.checks)
        return report

    def renew(self) -> None:
        fresh = [again(case, self.publisher) for case in self.cases]
        close(self.cases)
        # The caller closes what is in its list.
        self.cases[:] = fresh

    def case_of(self, found: Found) -> Case:
        return next(
            case
            for case in self.cases
            if found.subscription == (case.name if case.subscription else None)
        )

    def try_one(self, found: Found) -> Attempt:
        finding = found.finding
        show_fix(self.context, found)
        if self.context.options.dry_run:
            return Attempt(found, "shown")
        if not self.context.options.yes and not click.confirm(
            f"Run this on the {finding.fix_side}?", default=False, err=True
        ):
            return Attempt(found, "declined")
        if self.context.options.yes and any(map(grants, finding.fix_sql)):
            return Attempt(found, "declined", "rights are not granted without a question")
        case = self.case_of(found)
        server = case.subscriber if finding.fix_side == "subscriber" else case.publisher
        assert server is not None
        try:
            run_statements(self.context, server, finding.fix_sql)
        except WeftError as error:
            return Attempt(found, "failed", f"{error}{self.clean_up(server, found, error)}")
        except KeyboardInterrupt:
            left = self.clean_up(server, found)
            show_result(self.context, "failed", f"interrupted{left}")
            raise
        if finding.restart:
            return Attempt(found, "restart")
        return self.verify(found, case)

    def clean_up(self, server: Server, found: Found, error: WeftError | None = None) -> str:
        """Drops the index that a CREATE INDEX CONCURRENTLY has left unfinished.

        It is of no use, but costs time whenever its table is changed.  Returns what is to be added
        to the message.
        """
        # Somebody else's index of this name may still be built.
        exists = isinstance(error, Refused) and error.sqlstate == DUPLICATE_RELATION
        if found.new_index is None or exists:
            return ""
        drop = f"DROP INDEX CONCURRENTLY {name(*found.new_index)};"
        try:
            if server.value(UNFINISHED_INDEX, *found.new_index):
                run_statements(self.context, server, [drop])
        except WeftError as further:
            return f"; it may have left an unfinished index ({further}): {drop}"
        return ""

    def verify(self, found: Found, case: Case) -> Attempt:
        """Makes the check again until it does not find this any more."""
        deadline = time.monotonic() + EFFECT_TIME
        while True:
            fresh = again(case, self.publisher)
            try:
                report = examine(fresh, [CHECKS[found.finding.id]])
            finally:
                close([fresh])
            same = [each for each in report.found if each.finding.object == found.finding.object]
            if not same and not report.not_made:
                return Attempt(found, "fixed")
            if time.monotonic() > deadline:
                reason = report.not_made[0].reason if report.not_made else same[0].finding.problem
                return Attempt(found, "ineffective", reason)
            time.sleep(STEP)


def grants(statement: str) -> bool:
    """Whoever owns a subscription chooses its tables, and so what is granted."""
    return statement.startswith("GRANT ")


def run_statements(context: Context, server: Server, statements: Sequence[str]) -> None:
    """Runs them one by one, each in a transaction of its own.

    If one fails, the following are not run, except for the one that enables a subscription that
    the first has disabled.
    """
    before = server.value("SHOW statement_timeout")
    server.execute("RESET lock_timeout")
    if context.options.timeout is None:
        # Time limits are for looking; a fix may build an index.
        server.execute("SELECT set_config('statement_timeout', '0', false)")
    try:
        for place, statement in enumerate(statements):
            try:
                run_statement(server, statement)
            except WeftError:
                disabled = place > 0 and statements[0].endswith(" DISABLE;")
                if disabled and statements[-1].endswith(" ENABLE;"):
                    server.execute(statements[-1])
                raise
    finally:
        if not server.connection.closed:
            server.execute("SELECT set_config('statement_timeout', %s, false)", before)
            limit_waiting(server)


def run_statement(server: Server, statement: str) -> None:
    deadline = time.monotonic() + RELEASE_TIME
    while True:
        try:
            server.execute(statement)
            return
        except WeftError as error:
            # The worker of a subscription that has just been disabled still has the slot.
            if "is active for PID" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(STEP)
