"""Output for people and for programs."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from rich.console import Console

from weft_cli.context import Context
from weft_cli.escape import escape
from weft_cli.redact import redact

# What stands in a table for a value that is not known.
UNKNOWN = "-"


def emit(
    context: Context,
    schema: int,
    kind: str,
    data: Mapping[str, Any],
    render: Callable[[Console], None],
) -> None:
    """Writes the data as JSON if the user wants that; otherwise calls the renderer.

    "schema" increases if a key is removed or changes its meaning, not if one is added.
    With --watch, each JSON document is on a line of its own.
    """
    if context.options.output == "json":
        document = plain_data({"schema": schema, "kind": kind, **data})
        indent = None if context.options.watch else 2
        # Not through rich, which would wrap lines.  In ASCII, because a terminal obeys control
        # characters beyond it as well.
        context.console.file.write(json.dumps(document, indent=indent) + "\n")
        context.console.file.flush()
    else:
        render(context.console)


def plain_data(value: Any) -> Any:
    """As JSON has it: seconds for intervals, ISO 8601 for times; no password in any string."""
    if isinstance(value, Enum):
        return plain_data(value.value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, Mapping):
        return {str(key): plain_data(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_data(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return plain_data(asdict(value))
    return redact(str(value))


def printable(value: object) -> str:
    """Text from a server for a terminal: one line, no control characters, no passwords."""
    return escape(redact(str(value)))


def size(count: float | None) -> str:
    """Bytes as pg_size_pretty() writes them, with one decimal below 100."""
    if count is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1024 or unit == "TB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 100 else f"{count:.1f} {unit}"


def number(count: float | None) -> str:
    """A count with a suffix from a million on, so that a column stays narrow."""
    if count is None:
        return UNKNOWN
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(count) >= limit:
            return f"{count / limit:.1f}{unit}"
    return f"{count:,.0f}"


def rate(per_second: float | None, unit: str = "") -> str:
    if per_second is None:
        return UNKNOWN
    digits = 1 if 0 < abs(per_second) < 10 else 0
    return f"{per_second:,.{digits}f}{' ' if unit else ''}{unit}/s"


def duration(seconds: float | timedelta | None) -> str:
    """Two units at most: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None:
        return UNKNOWN
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for length, unit, smaller, smaller_unit in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= length:
            rest = whole % length // smaller
            return f"{whole // length} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{whole} s"
