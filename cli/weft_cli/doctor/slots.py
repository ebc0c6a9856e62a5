"""Checks of slots: the subscription's own, those that nobody uses, and what holds WAL back."""

import re
import time
from collections.abc import Iterator

from weft_cli.doctor.case import SLOTS, Case
from weft_cli.doctor.itself import slot_of, subject
from weft_cli.doctor.reading import Row
from weft_cli.doctor.registry import Group, Hit, Needs, check
from weft_cli.doctor.sql_text import RELOAD, alter_system, literal, name
from weft_cli.doctor.subscriptions import doubt_about_slot, terminate
from weft_cli.output import duration, size

# A slot is in danger if less than this part of max_slot_wal_keep_size is left.
SAFE_PART = 0.2
# Seconds.
DROP_TIME = 1.0


@check(
    "W050",
    Group.SLOT,
    Needs.BOTH,
    "publisher",
    "error",
    "the subscription's slot exists",
    "The slot that the subscription names does not exist on the publisher: it was dropped, or the "
    "publisher was restored or failed over to a server without it. The position is lost, so "
    "nobody knows which changes are missing.",
    "Create the subscription anew: ALTER SUBSCRIPTION ... DISABLE, SET (slot_name = NONE), DROP "
    "SUBSCRIPTION, empty the tables, CREATE SUBSCRIPTION. Or create it with copy_data = off, and "
    "then let weft compare and weft repair find and mend the differences.",
)
def missing(case: Case) -> Iterator[Hit]:
    assert case.subscription is not None
    if case.subscription["slot"] is not None and case.slot is None:
        yield Hit(slot_of(case), f'the slot of subscription "{case.name}" does not exist')


@check(
    "W051",
    Group.SLOT,
    Needs.BOTH,
    "publisher",
    "error",
    "the subscription's slot is valid",
    "The publisher has removed WAL that the slot needs (max_slot_wal_keep_size), or has "
    "invalidated the slot for another reason. It can never be used again, and changes are "
    "missing.",
    "As for W050. Then increase max_slot_wal_keep_size, or find out why the subscription has "
    "fallen so far behind.",
)
def invalid(case: Case) -> Iterator[Hit]:
    slot = case.slot
    if slot and (slot["wal_status"] == "lost" or slot["invalidation_reason"]):
        reason = slot["invalidation_reason"] or "wal_removed"
        yield Hit(slot_of(case), f"the slot has been invalidated: {reason}")


@check(
    "W052",
    Group.SLOT,
    Needs.BOTH,
    "publisher",
    "error",
    "the subscription's slot is not about to be lost",
    "The slot keeps nearly as much WAL as max_slot_wal_keep_size allows. Once it keeps more, the "
    "next checkpoint invalidates it, and the subscription must be created anew.",
    "Increase max_slot_wal_keep_size, which takes effect at once, if the publisher's disk has the "
    "room. Then find out what holds the subscription up: weft status.",
)
def in_danger(case: Case) -> Iterator[Hit]:
    slot = case.slot
    if slot is None or slot["wal_status"] == "lost" or slot["safe_wal_size"] is None:
        return
    limit = case.settings_there.number("max_slot_wal_keep_size")  # MB
    left = slot["safe_wal_size"]
    if slot["wal_status"] == "unreserved" or left < SAFE_PART * (limit << 20):
        kept = (slot["kept_bytes"] or 0) >> 20
        yield Hit(
            slot_of(case),
            f"it keeps {size(slot['kept_bytes'])} of WAL; {size(max(0, left))} more lose it",
            (alter_system("max_slot_wal_keep_size", f"'{2 * max(limit, kept)}MB'"), RELOAD),
        )


OWN_SLOTS = """
    SELECT s.oid::bigint AS oid, s.subslotname AS slot, (SELECT array_agg(r.srrelid::bigint)
        FROM pg_catalog.pg_subscription_rel r
        WHERE r.srsubid = s.oid AND r.srsubstate <> 'r') AS copying,
        s.subdbid = (SELECT d.oid FROM pg_catalog.pg_database d
            WHERE d.datname = current_database()) AS is_here
    FROM pg_catalog.pg_subscription s"""


def idle_slots(case: Case) -> list[Row]:
    """Logical slots of the publisher that nobody reads from and no subscription here uses."""
    own = {row["slot"] for row in case.subscriber.rows(OWN_SLOTS)}
    return [
        slot
        for slot in case.slots
        if slot["type"] == "logical"
        and not slot["active"]
        and not slot["temporary"]
        and slot["name"] not in own
    ]


def made_by_copies(case: Case, slots: list[Row]) -> dict[str, bool]:
    """Slots that table copies of this very server have made, and whether they still need them."""
    system = case.subscriber.value(
        "SELECT system_identifier::text FROM pg_catalog.pg_control_system()"
    )
    result = {}
    for slot in slots:
        match = re.fullmatch(r"pg_(\d+)_sync_(\d+)_(\d+)", slot["name"])
        if match and match[3] == system:
            # Tables of subscriptions in other databases are not visible here.
            result[slot["name"]] = any(
                row["oid"] == int(match[1])
                and (not row["is_here"] or int(match[2]) in (row["copying"] or []))
                for row in case.subscriber.rows(OWN_SLOTS)
            )
    return result


@check(
    "W053",
    Group.SLOT,
    Needs.BOTH,
    "publisher",
    "warning",
    "slots that copies have left behind",
    "A copy of a table by this subscriber has left its slot on the publisher, and nothing needs "
    "it any more. It keeps WAL for ever, and prevents VACUUM from removing rows of catalogs.",
    "Drop the slot.",
)
def left_over(case: Case) -> Iterator[Hit]:
    idle = idle_slots(case)
    needed = made_by_copies(case, idle)
    suspects = [slot for slot in idle if needed.get(slot["name"]) is False]
    if not suspects:
        return
    # A copy that has just finished is about to drop its slot.
    time.sleep(DROP_TIME)
    remaining = {slot["name"] for slot in case.there.rows(SLOTS) if not slot["active"]}
    for slot in suspects:
        if slot["name"] in remaining:
            yield Hit(
                f'slot "{slot["name"]}"',
                f"a finished copy has left the slot, which keeps {size(slot['kept_bytes'])} of WAL",
                (f"SELECT pg_drop_replication_slot({literal(slot['name'])});",),
            )


@check(
    "W054",
    Group.SLOT,
    Needs.BOTH,
    "publisher",
    "warning",
    "slots without a subscription",
    "A logical slot of the publisher is not active, and belongs to no subscription of this "
    "subscriber. If no other server uses it, it keeps WAL until the publisher's disk is full, or "
    "it is lost.",
    "Find out whose it is: another subscriber may be down. If it is nobody's, drop it on the "
    "publisher with pg_drop_replication_slot. This command does not do that: it cannot know.",
)
def without_subscription(case: Case) -> Iterator[Hit]:
    idle = idle_slots(case)
    copies = made_by_copies(case, idle)
    for slot in idle:
        if slot["name"] not in copies:
            yield Hit(
                f'slot "{slot["name"]}"',
                "the slot is not active, and no subscription of this server uses it; it keeps "
                f"{size(slot['kept_bytes'])} of WAL",
            )


@check(
    "W055",
    Group.SLOT,
    Needs.SUBSCRIPTION,
    "subscriber",
    "error",
    "the subscription has a slot",
    "The subscription has been separated from its slot (slot_name = NONE), or was created without "
    "one, so it cannot be enabled. If its slot still exists on the publisher, that keeps WAL.",
    "Give the subscription its slot back, and enable it. If that does not exist any more, drop "
    "the subscription and create it anew.",
)
def without_slot(case: Case) -> Iterator[Hit]:
    assert case.subscription is not None
    if case.subscription["slot"] is not None:
        return
    fix: tuple[str, ...] = ()
    if (
        case.publisher is not None
        and any(slot["name"] == case.name and slot["is_here"] for slot in case.slots)
        and not doubt_about_slot(case, case.name)
    ):
        subscription = name(case.name)
        fix = (
            f"ALTER SUBSCRIPTION {subscription} SET (slot_name = {literal(case.name)});",
            f"ALTER SUBSCRIPTION {subscription} ENABLE;",
        )
    yield Hit(subject(case), "the subscription has no slot", fix)


OLD_TRANSACTIONS = """
    SELECT pid, usename AS role, application_name AS application, state,
        backend_start::text, extract(epoch FROM clock_timestamp() - xact_start)::float AS age
    FROM pg_catalog.pg_stat_activity
    WHERE backend_xid IS NOT NULL AND backend_type = 'client backend'
        AND xact_start < clock_timestamp() - %s::float * interval '1 s'
    ORDER BY xact_start"""

OLD_PREPARED = """
    SELECT gid, database, extract(epoch FROM clock_timestamp() - prepared)::float AS age
    FROM pg_catalog.pg_prepared_xacts
    WHERE prepared < clock_timestamp() - %s::float * interval '1 s' ORDER BY prepared"""


@check(
    "W056",
    Group.SLOT,
    Needs.PUBLISHER,
    "publisher",
    "warning",
    "long transactions on the publisher",
    "A transaction that has written something and is still open (or prepared) holds every slot of "
    "the server back: WAL is kept from its beginning on, and decoding begins there again after "
    "each reconnection. New slots, and copies of tables, wait for its end.",
    "Let the session end its transaction, or end the session. Set "
    "idle_in_transaction_session_timeout for roles that forget to. --transaction-age sets from "
    "which age on transactions are reported (300 s).",
)
def old_transactions(case: Case) -> Iterator[Hit]:
    case.require_statistics(case.there)
    limit = case.thresholds.transaction_age
    for row in case.there.rows(OLD_TRANSACTIONS, limit):
        yield Hit(
            f"session {row['pid']}",
            f'a transaction of role "{row["role"]}" has been open for {duration(row["age"])}'
            f" ({row['state']}{', ' if row['application'] else ''}{row['application']})",
            (terminate(row),),
        )
    for row in case.there.rows(OLD_PREPARED, limit):
        yield Hit(
            f'prepared transaction "{row["gid"]}"',
            f'it was prepared in database "{row["database"]}" {duration(row["age"])} ago',
            remedy="Finish it with COMMIT PREPARED or ROLLBACK PREPARED, in its database.",
        )
