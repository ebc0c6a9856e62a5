"""What the subscriber's own checks say (weft.health), where it has them."""

from collections.abc import Sequence
from typing import cast

from weft_cli.finding import Finding, Severity
from weft_cli.server import Server

# Checks that say the same as findings that are made here, with more to go by.
SAME = {
    "H002": {"applied-natively"},
    "H003": {"subscription-disabled"},
    "H004": {"apply-failing", "apply-down"},
    "H007": {"subscription-disabled", "apply-failing", "apply-down"},
    "H011": {"copy-failed"},
}


def read_health(server: Server, known: Sequence[Finding]) -> list[Finding]:
    """The findings of weft.health() that are not known already."""
    if not server.has_function("weft.health"):
        return []
    found = []
    for row in server.rows("SELECT id, severity, object, problem, remedy FROM weft.health()"):
        same = SAME.get(row["id"], set())
        if any(each.id in same and each.object == row["object"] for each in known):
            continue
        severity = row["severity"] if row["severity"] in ("error", "warning") else "info"
        found.append(
            Finding(
                row["id"],
                cast(Severity, severity),
                "subscriber",
                row["object"] or "",
                row["problem"] or "",
                row["remedy"] or "",
            )
        )
    return found
