"""weft doctor: what is wrong on either side, and the SQL that fixes it."""

import click
from rich.console import Console

from weft_cli.context import LOOK_TIMEOUT, Context
from weft_cli.doctor.case import Thresholds
from weft_cli.doctor.fix import Fixer
from weft_cli.doctor.registry import CHECKS, Check, in_order
from weft_cli.doctor.run import Report, cases_of, close, examine_all, named_checks
from weft_cli.doctor.show import show_explanation, show_list, show_report, summary
from weft_cli.exit_code import ExitCode
from weft_cli.options import HELP_NAMES, change_options, common_options, publisher_option
from weft_cli.output import emit

SCHEMA = 1


@click.command("doctor", context_settings={"help_option_names": HELP_NAMES})
@click.argument("subscriptions", nargs=-1, metavar="[SUBSCRIPTION]...")
@common_options
@publisher_option
@click.option("--fix", is_flag=True, help="Run the SQL of findings; asks before each.")
@change_options
@click.option("--only", multiple=True, metavar="ID", help="Make only these checks.")
@click.option("--ignore", multiple=True, metavar="ID", help="Do not make these checks.")
@click.option(
    "--transaction-age",
    type=click.FloatRange(min=0),
    default=Thresholds.transaction_age,
    show_default=True,
    metavar="SECONDS",
    help="Report transactions that are open for longer.",
)
@click.option(
    "--clock-skew",
    type=click.FloatRange(min=0),
    default=Thresholds.clock_skew,
    show_default=True,
    metavar="SECONDS",
    help="Report clocks that differ by more.",
)
@click.option("--explain", metavar="ID", help="Say what a check is about, and why it matters.")
@click.option("--list", "list_checks", is_flag=True, help="List all checks.")
@click.pass_obj
def command(
    context: Context,
    subscriptions: tuple[str, ...],
    publisher: str | None,
    fix: bool,
    only: tuple[str, ...],
    ignore: tuple[str, ...],
    transaction_age: float,
    clock_skew: float,
    explain: str | None,
    list_checks: bool,
) -> ExitCode:
    """Checks both servers of every subscription of the database, and says how to fix what is wrong.

    Without a subscription, --publisher checks whether one can be created.

    Exit status 1: there are errors or warnings, or something could not be checked.
    """  # fmt: skip
    if explain is not None or list_checks:
        return describe(context, explain)
    checks = selected(only, ignore)
    thresholds = Thresholds(transaction_age, clock_skew)
    with context.connect(LOOK_TIMEOUT) as subscriber:
        cases = cases_of(subscriber, subscriptions, publisher, thresholds)
        fixer = Fixer(context, cases, checks, publisher)
        if fix:
            fixer.require_answers()
        try:
            report = examine_all(cases, checks)
            is_table = context.options.output == "table"
            if is_table:
                show_report(context.console, report, cases, is_fixing=fix)
            if fix:
                report = fixer.fix(report)
                if is_table and fixer.attempts:
                    context.console.print()
                    context.console.print(summary(report))
            if not is_table:
                emit_report(context, report, fixer)
        finally:
            close(cases)
    return ExitCode.FINE if report.is_fine else ExitCode.FINDINGS


def selected(only: tuple[str, ...], ignore: tuple[str, ...]) -> list[Check]:
    wanted = named_checks(only) or set(CHECKS)
    wanted -= named_checks(ignore)
    return [check for check in in_order() if check.id in wanted]


def emit_report(context: Context, report: Report, fixer: Fixer) -> None:
    data = {
        "server": fixer.cases[0].subscriber.name,
        "subscriptions": [case.name for case in fixer.cases if case.subscription],
        "findings": [each.as_json() for each in report.found],
        "not_checked": report.not_made,
        "ok": report.fine,
        "fixes": [
            {
                "id": attempt.found.finding.id,
                "object": attempt.found.finding.object,
                "status": attempt.status,
                "message": attempt.message or None,
            }
            for attempt in fixer.attempts
        ],
    }
    emit(context, SCHEMA, "doctor", data, lambda _: None)


def describe(context: Context, explain: str | None) -> ExitCode:
    """The documentation of one check, or the list of all of them."""
    ids = named_checks([explain]) if explain else set(CHECKS)
    checks = [check for check in in_order() if check.id in ids]

    def render(console: Console) -> None:
        if explain:
            for check in checks:
                show_explanation(console, check)
        else:
            show_list(console, checks)

    data = {
        "checks": [
            {
                "id": check.id,
                "group": check.group.value,
                "severity": check.severity,
                "side": check.side,
                "title": check.title,
                "why": check.why,
                "remedy": check.remedy,
            }
            for check in checks
        ]
    }
    emit(context, SCHEMA, "doctor-checks", data, render)
    return ExitCode.FINE
