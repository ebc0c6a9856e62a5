"""Output for Nagios and its relatives, which have exit statuses of their own."""

import re
from enum import IntEnum
from typing import TYPE_CHECKING

import click

from weft_cli.errors import Unreachable, WeftError
from weft_cli.finding import Finding
from weft_cli.output import duration, printable, size

if TYPE_CHECKING:
    from weft_cli.assessment import Assessment, Limits
    from weft_cli.status import Status


class State(IntEnum):
    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes with a unit, as in postgresql.conf."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?B)?\s*", text, re.IGNORECASE)
    if not match:
        raise click.BadParameter(f"{text!r} is not a size such as 500MB")
    return int(float(match[1]) * UNITS[(match[2] or "").upper()])


def report(status: "Status", limits: "Limits") -> int:
    state = {"ok": State.OK, "warning": State.WARNING}.get(status.verdict, State.CRITICAL)
    wrong = [finding for finding in status.findings if finding.severity != "info"]
    if wrong:
        summary = _one_line(wrong[0])
        if len(wrong) > 1:
            summary += f" (and {len(wrong) - 1} more)"
    else:
        summary = _fine(status.assessments)
    values = " ".join(
        value for assessment in status.assessments for value in _values(assessment, limits)
    )
    print(f"WEFT {state.name} - {summary}" + (f" | {values}" if values else ""))
    for finding in wrong[1:]:
        print(_one_line(finding))
    return state


def report_error(error: WeftError) -> int:
    state = State.CRITICAL if isinstance(error, Unreachable) else State.UNKNOWN
    print(f"WEFT {state.name} - {_clean(str(error))}")
    return state


def _fine(assessments: "list[Assessment]") -> str:
    if not assessments:
        return "no subscriptions"
    farthest = max(assessment.behind_bytes or 0 for assessment in assessments)
    longest = max(assessment.behind_seconds or 0 for assessment in assessments)
    count = f"{len(assessments)} subscription{'s' if len(assessments) > 1 else ''}"
    return f"{count}, at most {size(farthest)} and {duration(longest)} behind"


def _one_line(finding: Finding) -> str:
    return _clean(f"{finding.object}: {finding.problem}")


def _clean(text: str) -> str:
    """A bar would begin the values, and a line break the rest."""
    return " ".join(printable(text).split()).replace("|", "/")


def _values(assessment: "Assessment", limits: "Limits") -> list[str]:
    name = re.sub(r"[^\w.-]", "_", assessment.subscription.name)
    values = []
    if assessment.behind_bytes is not None:
        values.append(
            f"'{name}_behind'={assessment.behind_bytes}B;"
            f"{limits.warning_bytes};{limits.critical_bytes};0"
        )
    if assessment.behind_seconds is not None:
        values.append(
            f"'{name}_time'={assessment.behind_seconds:.1f}s;"
            f"{limits.warning_seconds:g};{limits.critical_seconds:g};0"
        )
    if assessment.rate is not None:
        values.append(f"'{name}_rate'={assessment.rate:.1f};;;0")
    return values
