"""Checks of what is needed to follow the publisher to one of its standbys."""

from collections.abc import Iterator

from weft_cli.doctor.case import Case
from weft_cli.doctor.itself import slot_of, subject
from weft_cli.doctor.reading import Row
from weft_cli.doctor.registry import Group, Hit, Needs, check
from weft_cli.doctor.sql_text import RELOAD, alter_system, literals, name

# Standbys that stream; backups and logical receivers are no standbys.
STANDBYS = """
    SELECT r.application_name AS name, s.slot_name AS slot
    FROM pg_catalog.pg_stat_replication r
        LEFT JOIN pg_catalog.pg_replication_slots s ON s.active_pid = r.pid
    WHERE r.state IN ('catchup', 'streaming') AND coalesce(s.slot_type, 'physical') = 'physical'
    ORDER BY 1"""

FIRST_WITH_SYNCHRONIZED_SLOTS = 170000


def standbys(case: Case) -> list[Row]:
    if case.there.version < FIRST_WITH_SYNCHRONIZED_SLOTS:
        return []
    case.require_statistics(case.there)
    return case.there.rows(STANDBYS)


@check(
    "W110",
    Group.FAILOVER,
    Needs.BOTH,
    "subscriber",
    "warning",
    "the subscription's slot follows a failover",
    "The publisher has a standby, but the subscription's slot is not synchronized to it (failover "
    "= false). If the standby is promoted, the slot is gone, and the subscription must be created "
    "anew.",
    "Set failover = true, for which the subscription must be disabled for a moment. The standby "
    "needs sync_replication_slots = on, hot_standby_feedback = on, primary_slot_name, a dbname in "
    "primary_conninfo, and Weft, if the slot uses its plugin. Tools that create slots on each "
    "member themselves (Patroni's permanent slots) do not need this: use --ignore W110.",
)
def failover(case: Case) -> Iterator[Hit]:
    assert case.subscription is not None
    if case.subscription["failover"] or case.slot is None:
        return
    found = standbys(case)
    if not found:
        return
    subscription = name(case.name)
    enable = (f"ALTER SUBSCRIPTION {subscription} ENABLE;",) if case.subscription["enabled"] else ()
    yield Hit(
        subject(case),
        "the publisher has a standby, but failover is false",
        (
            f"ALTER SUBSCRIPTION {subscription} DISABLE;",
            f"ALTER SUBSCRIPTION {subscription} SET (failover = true);",
            *enable,
        ),
    )


@check(
    "W111",
    Group.FAILOVER,
    Needs.BOTH,
    "publisher",
    "warning",
    "synchronized_standby_slots of the publisher",
    "The slot is synchronized to standbys (failover = true), but synchronized_standby_slots does "
    "not name a slot of any standby that is connected. The subscriber can then be ahead of the "
    "standby, and has changes that are lost on the publisher after a failover.",
    "Name the physical slots of the standbys to which you fail over in "
    "synchronized_standby_slots. The publisher then sends nothing that these standbys do not "
    "have; so a standby that is down holds replication up.",
)
def standby_slots(case: Case) -> Iterator[Hit]:
    assert case.subscription is not None
    if not case.subscription["failover"] or case.slot is None:
        return
    named = set(case.settings_there.names("synchronized_standby_slots")) if standbys(case) else None
    if named is None:
        return
    slots = [row["slot"] for row in standbys(case) if row["slot"] is not None]
    if named & set(slots):
        return
    yield Hit(
        slot_of(case),
        "synchronized_standby_slots names no slot of the standbys that are connected"
        if slots
        else "no standby uses a slot that synchronized_standby_slots could name",
        (alter_system("synchronized_standby_slots", literals([*sorted(named), *slots])), RELOAD)
        if slots
        else (),
    )
