"""Shows a report to people."""

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from weft_cli.context import Context
from weft_cli.doctor.case import Case
from weft_cli.doctor.registry import CHECKS, Check, Group
from weft_cli.doctor.run import Found, NotMade, Report
from weft_cli.finding import SEVERITY_STYLES
from weft_cli.output import printable

INDENT = 9
# Longer lines are hard to read.
WIDEST = 110

RESULTS = {
    "fixed": ("fixed", "green"),
    "restart": ("done; it takes effect when that server is restarted", "yellow"),
    "ineffective": ("done, but the check still finds", "red"),
    "failed": ("failed", "red"),
    "declined": ("not run", "dim"),
    "shown": ("not run (--dry-run)", "dim"),
}


def show_report(console: Console, report: Report, cases: Sequence[Case], is_fixing: bool) -> None:
    show_cases(console, cases)
    for found in report.found:
        show_found(console, found, with_sql=not is_fixing)
    show_not_made(console, report.not_made)
    show_fine(console, report)
    console.print(summary(report))


def show_cases(console: Console, cases: Sequence[Case]) -> None:
    console.print(Text(f"subscriber {printable(cases[0].subscriber.name)}"), soft_wrap=True)
    for case in cases:
        publisher = (
            f"publisher {case.publisher.name}" if case.publisher else "publisher not reached"
        )
        if case.subscription:
            text = f'subscription "{case.name}", {publisher}'
        elif case.publisher:
            text = f"no subscription yet; {publisher}"
        else:
            text = "no subscription in this database; --publisher checks where one would come from"
        console.print(Text(printable(text)), soft_wrap=True)


def indented(console: Console, text: Text | str) -> None:
    console.print(
        Padding(text, (0, 0, 0, INDENT), expand=False),
        width=min(WIDEST, console.width),
        overflow="fold",
    )


def show_found(console: Console, found: Found, with_sql: bool) -> None:
    finding = found.finding
    console.print()
    head = Text.assemble(
        (f"{finding.severity:<{INDENT}}", SEVERITY_STYLES[finding.severity]),
        (finding.id, "bold"),
        f" {finding.side}: {printable(finding.object)}",
    )
    console.print(head, soft_wrap=True)
    indented(console, Text(sentence(printable(finding.problem))))
    indented(console, Text(printable(finding.remedy), style="dim"))
    if with_sql and finding.fix_sql:
        show_sql(console, found)


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def show_sql(console: Console, found: Found) -> None:
    """Not wrapped, so that it can be copied."""
    finding = found.finding
    after = ", then restart that server" if finding.restart else ""
    indented(console, Text(f"On the {finding.fix_side}{after}:"))
    for statement in finding.fix_sql:
        console.print(Text(" " * (INDENT + 2) + printable(statement), style="cyan"), soft_wrap=True)


def show_fix(context: Context, found: Found) -> None:
    """Before the user is asked; not among the output for programs."""
    console = context.errors if context.options.output == "json" else context.console
    finding = found.finding
    console.print()
    console.print(
        Text.assemble(
            (finding.id, "bold"), f" {printable(finding.object)}: {printable(finding.problem)}"
        ),
        soft_wrap=True,
    )
    show_sql(console, found)


def show_result(context: Context, status: str, message: str) -> None:
    console = context.errors if context.options.output == "json" else context.console
    text, style = RESULTS[status]
    detail = f": {printable(message)}" if message else ""
    indented(console, Text(text + detail, style=style))


def show_not_made(console: Console, not_made: Sequence[NotMade]) -> None:
    """One entry for each reason: a publisher that is down has many."""
    reasons: dict[tuple[str, str | None], list[str]] = {}
    for each in not_made:
        reasons.setdefault((each.reason, each.subscription), []).append(each.id)
    for (reason, subscription), ids in reasons.items():
        console.print()
        about = f' for subscription "{subscription}"' if subscription else ""
        console.print(
            Text.assemble((f"{'unknown':<{INDENT}}", "magenta"), f"Not checked{printable(about)}:"),
            soft_wrap=True,
        )
        indented(console, Text(sentence(printable(reason))))
        indented(console, Text(", ".join(ids), style="dim"))


def show_fine(console: Console, report: Report) -> None:
    console.print()
    fine = [CHECKS[id] for id in report.fine]
    for group in Group:
        count = sum(check.group is group for check in fine)
        if count:
            checks = f"{count} check{'s' if count > 1 else ''}"
            console.print(
                Text.assemble((f"{'OK':<{INDENT}}", "green"), f"{group.value} ({checks})")
            )


def summary(report: Report) -> Text:
    tried = len(report.tried)
    if not report.found and not report.not_made:
        return Text(f"All {tried} checks are OK.")
    parts = [f"{len(report.fine)} of {tried} checks are OK"]
    for severity in SEVERITY_STYLES:
        count = sum(each.finding.severity == severity for each in report.found)
        if count:
            plural = "" if severity == "info" or count == 1 else "s"
            parts.append(f"{count} {severity}{plural}")
    if report.not_made:
        parts.append(f"{len({each.id for each in report.not_made})} not checked")
    return Text(", ".join(parts) + ".")


def show_explanation(console: Console, check: Check) -> None:
    console.print(Text.assemble((check.id, "bold"), f" {check.title}"), soft_wrap=True)
    console.print(
        Text(f"{check.group.value}; {check.severity}; found on the {check.side}", style="dim")
    )
    console.print()
    width = min(WIDEST, console.width)
    console.print(Text(check.why), width=width)
    console.print()
    console.print(Text(check.remedy), width=width)


def show_list(console: Console, checks: Sequence[Check]) -> None:
    for group in Group:
        console.print(Text(group.value, style="bold"))
        for check in checks:
            if check.group is group:
                console.print(Text(f"  {check.id} {check.title}"), soft_wrap=True)
