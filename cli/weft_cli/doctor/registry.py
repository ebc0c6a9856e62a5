"""The list of checks: ids, documentation, and the functions that make them.

An id is stable: it is never given to another check, even if its check is removed.  The texts here
are the only ones; docs/doctor.md is generated from them (page.py).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from weft_cli.doctor.case import Case


class Group(Enum):
    """Groups of checks, in the order in which they are made and documented."""

    CONNECTION = "Connection and rights"
    SETTINGS = "Settings"
    WEFT = "Weft itself"
    SUBSCRIPTION = "Subscription"
    SLOT = "Replication slots"
    PUBLICATION = "Publications"
    TABLES = "Tables"
    SEQUENCES = "Sequences"
    DATABASE = "Databases and servers"
    FAILOVER = "Failover of the publisher"
    CONFLICTS = "Conflict detection"


class Needs(Enum):
    """What a check cannot be made without."""

    SUBSCRIBER = "the subscriber"
    PUBLISHER = "the publisher"
    SUBSCRIPTION = "a subscription"
    BOTH = "a subscription and its publisher"


@dataclass(frozen=True)
class Hit:
    """What a check has found; the runner makes a Finding of it.

    What is None is as the check's documentation says.
    """

    object: str
    problem: str
    fix_sql: tuple[str, ...] = ()
    severity: str | None = None
    remedy: str | None = None
    side: str | None = None
    fix_side: str | None = None
    restart: bool = False
    # the index that the fix creates: schema and name
    new_index: tuple[str, str] | None = None


Function = Callable[[Case], Iterable[Hit]]


@dataclass(frozen=True)
class Check:
    id: str
    group: Group
    needs: Needs
    side: str
    severity: str
    title: str
    why: str
    remedy: str
    function: Function


CHECKS: dict[str, Check] = {}


def check(
    id: str,
    group: Group,
    needs: Needs,
    side: str,
    severity: str,
    title: str,
    why: str,
    remedy: str,
) -> Callable[[Function], Function]:
    """Registers a function as the check of that id."""

    def register(function: Function) -> Function:
        assert id not in CHECKS, f"two checks have the id {id}"
        CHECKS[id] = Check(id, group, needs, side, severity, title, why, remedy, function)
        return function

    return register


def in_order() -> list[Check]:
    groups = list(Group)
    return sorted(CHECKS.values(), key=lambda each: (groups.index(each.group), each.id))
