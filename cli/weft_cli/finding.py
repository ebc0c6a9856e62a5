"""What a check has found, and what to do about it."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
Side = Literal["subscriber", "publisher", "member"]

SEVERITY_STYLES: dict[str, str] = {"error": "bold red", "warning": "yellow", "info": "dim"}


@dataclass(frozen=True)
class Finding:
    id: str
    severity: Severity
    side: Side
    object: str
    problem: str
    remedy: str
    # complete statements, in order, to be run on fix_side
    fix_sql: tuple[str, ...] = ()
    fix_side: Side | None = None
    # the server must be restarted afterwards
    restart: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
