"""How weft status looks on a terminal: the verdict first, then what to do, then all figures."""

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from weft_cli.assessment import Assessment
from weft_cli.copies import copies_view
from weft_cli.errors import WeftError
from weft_cli.finding import SEVERITY_STYLES, Finding
from weft_cli.members import members_view
from weft_cli.output import UNKNOWN, duration, number, printable, rate, size

if TYPE_CHECKING:
    from weft_cli.status import Status

# From this width on, a line has room for more columns.
WIDE = 120

# Below, columns are closer to each other, so that long names fit.
COMFORTABLE = 100

# These tell who the culprit is.
CULPRIT_FINDINGS = {"far-behind", "apply-blocked"}

STATE_STYLES = {
    "streaming": "green",
    "catching up": "cyan",
    "copying": "cyan",
    "blocked": "bold yellow",
    "disabled": "bold yellow",
    "down": "bold red",
    "failing": "bold red",
}
VERDICT_STYLES = {"ok": "bold green", "warning": "bold yellow", "error": "bold red"}


def status_view(status: "Status", width: int) -> RenderableType:
    wrong = [finding for finding in status.findings if finding.severity != "info"]
    notes = [finding for finding in status.findings if finding.severity == "info"]
    parts: list[RenderableType] = [_verdict(status, wrong)]
    if wrong:
        parts.append(findings_view(wrong))
    if status.assessments:
        parts += [Text(""), subscriptions_view(status.assessments, width)]
    told = {finding.object for finding in wrong if finding.id in CULPRIT_FINDINGS}
    causes = [
        _cause(each)
        for each in status.assessments
        if each.culprit and each.subscription.name not in told
    ]
    if causes:
        parts += [Text(""), _listed(causes)]
    if status.copies:
        parts += [Text(""), copies_view(status.copies)]
    if status.members:
        parts += [Text(""), members_view(status.members)]
    if notes:
        parts += [Text(""), findings_view(notes)]
    server = status.server
    parts += [
        Text(""),
        Text(
            f"{server['name']}, PostgreSQL {server['version']}, Weft {server['weft_extension']}",
            style="dim",
        ),
    ]
    return Group(*parts)


def unreachable_view(error: WeftError) -> RenderableType:
    return Group(
        Text.assemble(("UNREACHABLE  ", "bold red"), printable(error)), Text("Trying again.")
    )


def _verdict(status: "Status", wrong: list[Finding]) -> Text:
    verdict = Text.assemble((status.verdict.upper(), VERDICT_STYLES[status.verdict]), "  ")
    if wrong:
        verdict.append(f"{len(wrong)} problem{'' if len(wrong) == 1 else 's'}, ", "bold")
    count = len(status.assessments)
    verdict.append(f"{count or 'no'} subscription{'' if count == 1 else 's'}")
    states = Counter(each.state for each in status.assessments)
    if set(states) == {"streaming"}:
        verdict.append(", up to date")
    elif not wrong:
        for state, number_of in states.most_common():
            verdict.append(f", {number_of} {state}")
    return verdict


Entry = tuple[Text, list[RenderableType]]


def _listed(entries: list[Entry]) -> RenderableType:
    """Labels in a column of their own, so that texts are aligned, however long they are."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column()
    for label, lines in entries:
        table.add_row(label, Group(*lines))
    return table


def findings_view(findings: list[Finding]) -> RenderableType:
    """The problems, and below each what to do, with SQL on lines of its own."""
    return _listed([_finding(finding) for finding in findings])


def _finding(finding: Finding) -> Entry:
    label = "note" if finding.severity == "info" else finding.severity
    text = Text()
    if finding.object:
        text.append(f"{printable(finding.object)}: ", "bold")
    text.append(printable(finding.problem))
    if finding.id[-3:].isdigit():
        text.append(f" [{finding.id}]", "dim")
    return Text(label, style=SEVERITY_STYLES[finding.severity]), [
        text,
        *_remedy(finding.remedy, finding.fix_sql),
    ]


def _remedy(remedy: str, sql: tuple[str, ...]) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(printable(remedy), style="italic")] if remedy else []
    return lines + [Padding(Text(printable(each), style="bold"), (0, 0, 0, 2)) for each in sql]


def _cause(assessment: Assessment) -> Entry:
    culprit = assessment.culprit
    assert culprit is not None
    text = Text.assemble((f"{printable(assessment.subscription.name)}: ", "bold"))
    text.append(printable(culprit.text))
    return Text("cause", style="cyan"), [
        text,
        *_remedy(culprit.remedy, (culprit.sql,) if culprit.sql else ()),
    ]


def subscriptions_view(assessments: list[Assessment], width: int) -> RenderableType:
    wide = width >= WIDE
    gap = 2 if width >= COMFORTABLE else 1
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    databases = len({each.subscription.database for each in assessments}) > 1
    table.add_column("subscription", overflow="fold")
    if databases:
        table.add_column("database", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ["behind", "time", "rate", "left"]:
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        for name in ["WAL applied", "WAL written", "slot keeps"]:
            table.add_column(name, justify="right", no_wrap=True)
    table.add_column("busy", justify="right", no_wrap=True)
    table.add_column("plugin", no_wrap=True)
    if wide:
        table.add_column("transactions", justify="right", no_wrap=True)
        table.add_column("errors", justify="right", no_wrap=True)
    for each in assessments:
        subscription = each.subscription
        cells: list[RenderableType] = [printable(subscription.name)]
        if databases:
            cells.append(printable(subscription.database))
        cells.append(Text(each.state, style=STATE_STYLES.get(each.state, "")))
        cells += [
            _distance(each),
            duration(each.behind_seconds),
            rate(each.rate),
            "never" if each.never else duration(each.seconds_left),
        ]
        if wide:
            keeps = each.slot.retained_bytes if each.slot else None
            cells += [_per_second(each.rate_bytes), _per_second(each.growth_bytes), size(keeps)]
        cells += [_writers(each), subscription.output_plugin or UNKNOWN]
        if wide:
            cells += [number(subscription.transactions), number(subscription.error_count)]
        table.add_row(*cells)
    return table


def _distance(assessment: Assessment) -> str:
    if assessment.behind_bytes is None:
        return UNKNOWN
    return f"{'' if assessment.behind_is_all else '>= '}{size(assessment.behind_bytes)}"


def _per_second(count: float | None) -> str:
    return UNKNOWN if count is None else f"{size(count)}/s"


def _writers(assessment: Assessment) -> str:
    subscription = assessment.subscription
    if subscription.native:
        return "native"
    if not subscription.num_writers:
        return UNKNOWN
    return f"{subscription.busy_writers or 0} of {subscription.num_writers}"
