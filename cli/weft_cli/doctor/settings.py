"""Checks of parameters: what replication needs of both servers, and what breaks it later."""

import re
from collections.abc import Iterator

from weft_cli.doctor.case import Case, Settings, parse_label
from weft_cli.doctor.reading import Row
from weft_cli.doctor.registry import Group, Hit, Needs, check
from weft_cli.doctor.sql_text import RELOAD, alter_system, literals, name
from weft_cli.output import duration, size
from weft_cli.server import Server

# How many more a fix allows than are needed, so that the next restart is not soon.
SPARE = 4
# Shorter time-outs end connections that work: a busy server or network may pause for seconds.
SHORTEST_TIMEOUT_MS = 10_000
DEFAULT_TIMEOUT = "'60s'"


# The first version whose wal_level need not be logical.
LOGS_ON_DEMAND = 190000


@check(
    "W010",
    Group.SETTINGS,
    Needs.PUBLISHER,
    "publisher",
    "error",
    "wal_level of the publisher",
    "Without wal_level = logical, the WAL does not contain what logical decoding needs, and no "
    "logical slot can be created or used. From PostgreSQL 19 on, wal_level = replica is enough: "
    "the server logs more as soon as there is a logical slot.",
    "Set wal_level to logical, and restart the publisher. On managed services this is a parameter "
    "of the service.",
)
def wal_level(case: Case) -> Iterator[Hit]:
    setting = case.settings_there.text("wal_level")
    enough = ("replica", "logical") if case.there.version >= LOGS_ON_DEMAND else ("logical",)
    if setting not in enough:
        yield Hit(
            "wal_level",
            f"wal_level is {setting}, not logical",
            (alter_system("wal_level", "'logical'"),),
            restart=True,
        )


def shortage(parameter: str, maximum: int, used: int, needed: int, what: str) -> Iterator[Hit]:
    """Too few of something of which the server has a fixed number.

    One is always to be free: a broken connection occupies its own until the server notices.
    """
    free = maximum - used
    if free >= max(1, needed):
        return
    problem = f"{used} of {maximum} {what} are in use"
    if needed:
        problem += f", and this subscription needs {needed} more"
    yield Hit(
        parameter,
        problem,
        (alter_system(parameter, str(used + max(1, needed) + SPARE)),),
        severity="error" if free < needed else "warning",
        restart=True,
    )


@check(
    "W011",
    Group.SETTINGS,
    Needs.PUBLISHER,
    "publisher",
    "error",
    "free WAL senders of the publisher",
    "The subscription, and each table that is being copied, occupies one of max_wal_senders. If "
    "none is left, the connection is refused, and the apply worker restarts again and again.",
    "Increase max_wal_senders, and restart the publisher; or end connections that nobody needs.",
)
def wal_senders(case: Case) -> Iterator[Hit]:
    used = case.there.rows("SELECT count(*) AS n FROM pg_catalog.pg_stat_get_wal_senders()")
    slot = case.slot if case.subscription else None
    needed = case.copies + (0 if slot and slot["active"] else 1)
    if case.subscription and not case.subscription["enabled"]:
        needed = 0
    yield from shortage(
        "max_wal_senders",
        case.settings_there.number("max_wal_senders"),
        used[0]["n"],
        needed,
        "WAL senders",
    )


@check(
    "W012",
    Group.SETTINGS,
    Needs.PUBLISHER,
    "publisher",
    "error",
    "free replication slots of the publisher",
    "The subscription has a slot on the publisher, and each table has one while it is copied. If "
    "none is left, no table can be copied, and no further subscription be created.",
    "Drop slots that nobody uses (W053, W054), or increase max_replication_slots and restart the "
    "publisher.",
)
def replication_slots(case: Case) -> Iterator[Hit]:
    yield from shortage(
        "max_replication_slots",
        case.settings_there.number("max_replication_slots"),
        len(case.slots),
        case.copies + (0 if case.subscription else 1),
        "replication slots",
    )


def offers_plugin(case: Case) -> bool:
    """Has the publisher loaded Weft?  Its output plugin may still be forbidden."""
    return case.settings_there.has("weft.ring_size")


@check(
    "W013",
    Group.SETTINGS,
    Needs.PUBLISHER,
    "publisher",
    "warning",
    "output_plugin_libraries of the publisher",
    "The publisher has loaded Weft, but output_plugin_libraries (17.11, 18.6 and later) does not "
    "allow its output plugin. Subscriptions that are created use pgoutput, which costs both "
    "servers more.",
    "Add weft to output_plugin_libraries, and reload. Existing subscriptions keep their plugin: "
    "see W016.",
)
def plugin_libraries(case: Case) -> Iterator[Hit]:
    parameter = "output_plugin_libraries"
    if not offers_plugin(case) or not knows_plugin_libraries(case.there.version):
        return
    allowed = case.settings_there.names(parameter)
    # An empty list allows every plugin.
    if allowed and "weft" not in allowed:
        yield Hit(
            parameter,
            f"{parameter} is {', '.join(allowed)}: it does not allow the output plugin weft",
            (alter_system(parameter, literals([*allowed, "weft"])), RELOAD),
        )


def knows_plugin_libraries(version: int) -> bool:
    major, minor = divmod(version, 10000)
    first = {17: 11, 18: 6}
    return major > max(first) or minor >= first.get(major, 1 << 30)


@check(
    "W014",
    Group.SETTINGS,
    Needs.PUBLISHER,
    "publisher",
    "warning",
    "right to read output_plugin_libraries",
    "The publisher has loaded Weft, but the role in the connection string may not read "
    "output_plugin_libraries. The subscriber cannot find out whether the output plugin weft is "
    "allowed, and creates its slot with pgoutput.",
    "Grant the role pg_read_all_settings on the publisher, as a superuser.",
)
def right_to_settings(case: Case) -> Iterator[Hit]:
    if not offers_plugin(case) or not knows_plugin_libraries(case.there.version):
        return
    for row in case.there.rows(
        "SELECT current_user AS role WHERE NOT pg_has_role('pg_read_all_settings', 'USAGE')",
    ):
        yield Hit(
            f'role "{row["role"]}"',
            "the role may not read output_plugin_libraries",
            (f"GRANT pg_read_all_settings TO {name(row['role'])};",),
        )


@check(
    "W015",
    Group.SETTINGS,
    Needs.PUBLISHER,
    "publisher",
    "warning",
    "max_slot_wal_keep_size of the publisher",
    "max_slot_wal_keep_size limits the WAL that slots keep. If it is smaller than max_wal_size, a "
    "subscriber that is away or behind for less than the time between two checkpoints can lose "
    "its slot, and the subscription must be created anew, with a copy of all tables.",
    "Increase max_slot_wal_keep_size to what the publisher's disk can hold. With -1, a slot is "
    "never lost, but can fill the disk: monitor the slots.",
)
def slot_keep_size(case: Case) -> Iterator[Hit]:
    settings = case.settings_there
    limit = settings.number("max_slot_wal_keep_size")  # MB, as max_wal_size
    wal = settings.number("max_wal_size")
    if 0 <= limit < wal:
        yield Hit(
            "max_slot_wal_keep_size",
            f"it is {size(limit << 20)}, less than max_wal_size ({size(wal << 20)})",
            (alter_system("max_slot_wal_keep_size", f"'{2 * wal}MB'"), RELOAD),
        )


@check(
    "W017",
    Group.SETTINGS,
    Needs.PUBLISHER,
    "publisher",
    "warning",
    "idle_replication_slot_timeout of the publisher",
    "From PostgreSQL 18 on, idle_replication_slot_timeout invalidates slots that have been "
    "inactive for that long, for example because the subscriber is down. The subscription must "
    "then be created anew.",
    "Set it to 0, and limit the WAL that slots keep with max_slot_wal_keep_size instead.",
)
def idle_slot_timeout(case: Case) -> Iterator[Hit]:
    parameter = "idle_replication_slot_timeout"
    if case.there.version < 180000:
        return
    seconds = case.settings_there.number(parameter)
    if seconds > 0:
        yield Hit(
            parameter,
            f"slots that are inactive for {duration(seconds)} are invalidated",
            (alter_system(parameter, "0"), RELOAD),
        )


def connection_timeout(settings: Settings, parameter: str, side: str) -> Iterator[Hit]:
    milliseconds = settings.number(parameter)
    if milliseconds >= SHORTEST_TIMEOUT_MS:
        return
    if milliseconds == 0:
        problem = "it is 0: this server does not notice that a connection is broken"
    else:
        problem = (
            f"it is {duration(milliseconds / 1000)}: a pause of that length ends the connection"
        )
    yield Hit(parameter, problem, (alter_system(parameter, DEFAULT_TIMEOUT), RELOAD), side=side)


@check(
    "W018",
    Group.SETTINGS,
    Needs.PUBLISHER,
    "publisher",
    "warning",
    "wal_sender_timeout, wal_receiver_timeout",
    "These time-outs end a replication connection on which nothing arrives. With 0, a connection "
    "that a firewall has dropped is used forever, and replication stands still without an error. "
    "With less than ten seconds, short pauses of a busy server or network end connections that "
    "work.",
    "Use 60 s, the default, for wal_sender_timeout on the publisher and wal_receiver_timeout on "
    "the subscriber.",
)
def connection_timeouts(case: Case) -> Iterator[Hit]:
    yield from connection_timeout(case.settings_there, "wal_sender_timeout", "publisher")
    yield from connection_timeout(case.settings, "wal_receiver_timeout", "subscriber")


# What a role's own settings, and those of the database, say: the most specific first.
ROLE_SETTINGS = """
    SELECT split_part(c.item, '=', 1) AS name, substr(c.item, strpos(c.item, '=') + 1) AS value
    FROM pg_catalog.pg_db_role_setting s, unnest(s.setconfig) c(item)
    WHERE s.setrole IN (0, %s::oid) AND s.setdatabase IN (0,
        (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database()))
    ORDER BY s.setrole = 0, s.setdatabase = 0"""


@check(
    "W019",
    Group.SETTINGS,
    Needs.BOTH,
    "publisher",
    "warning",
    "time-outs for statements and locks",
    "statement_timeout, transaction_timeout and idle_in_transaction_session_timeout of the role "
    "that the subscription uses on the publisher also end the initial copy of a large table, "
    "which then begins again. lock_timeout of the subscription's owner on the subscriber ends the "
    "apply worker whenever a row or table is locked for longer.",
    "Set them to 0 for these roles. Apply workers that run keep their setting until the "
    "subscription is disabled and enabled.",
)
def session_timeouts(case: Case) -> Iterator[Hit]:
    assert case.subscription is not None
    role = case.there.rows("SELECT current_user AS role")[0]["role"]
    for parameter in (
        "statement_timeout",
        "transaction_timeout",
        "idle_in_transaction_session_timeout",
    ):
        if case.settings_there.default(parameter) > 0:
            limit = duration(case.settings_there.default(parameter) / 1000)
            session = f"{name(role)} IN DATABASE {database(case.there)}"
            yield Hit(
                f'{parameter} of role "{role}"',
                f"it is {limit} for the role that the subscription uses",
                (f"ALTER ROLE {session} SET {parameter} = 0;",),
            )
    owner = case.subscription["owner"]
    own = case.subscriber.rows(ROLE_SETTINGS, case.subscription["owner_oid"])
    value = next((row["value"] for row in own if row["name"] == "lock_timeout"), None)
    if value is None:
        value = str(case.settings.default("lock_timeout"))
    unit = " ms" if value.isdigit() else ""
    if not re.fullmatch(r"0+\D*", value):
        yield Hit(
            f'lock_timeout of role "{owner}"',
            f"it is {value}{unit} for the owner of the subscription",
            (
                f"ALTER ROLE {name(owner)} IN DATABASE {database(case.subscriber)}"
                " SET lock_timeout = 0;",
            ),
            side="subscriber",
        )


def database(server: Server) -> str:
    return name(server.connection.info.dbname)


# Of all databases: they share the workers.
ALL_SUBSCRIPTIONS = """
    SELECT s.subenabled AS enabled, coalesce(l.label, '') AS label
    FROM pg_catalog.pg_subscription s
        LEFT JOIN pg_catalog.pg_shseclabel l ON l.objoid = s.oid AND l.provider = 'weft'
            AND l.classoid = 'pg_catalog.pg_subscription'::regclass"""


def enabled_subscriptions(case: Case) -> list[Row]:
    return [row for row in case.subscriber.rows(ALL_SUBSCRIPTIONS) if row["enabled"]]


@check(
    "W030",
    Group.SETTINGS,
    Needs.SUBSCRIBER,
    "subscriber",
    "error",
    "max_logical_replication_workers of the subscriber",
    "Each enabled subscription of the server needs one of max_logical_replication_workers, and so "
    "does each table that is being copied (max_sync_workers_per_subscription). If there are too "
    "few, subscriptions wait without an error.",
    "Increase max_logical_replication_workers, and restart the subscriber.",
)
def logical_workers(case: Case) -> Iterator[Hit]:
    parameter = "max_logical_replication_workers"
    subscriptions = len(enabled_subscriptions(case)) + (0 if case.subscription else 1)
    maximum = case.settings.number(parameter)
    needed = subscriptions + case.settings.number("max_sync_workers_per_subscription")
    if maximum < needed:
        yield Hit(
            parameter,
            f"it is {maximum}, but {subscriptions} subscriptions and their copies need {needed}",
            (alter_system(parameter, str(needed + SPARE)),),
            severity="error" if maximum < subscriptions else "warning",
            restart=True,
        )


@check(
    "W031",
    Group.SETTINGS,
    Needs.SUBSCRIBER,
    "subscriber",
    "warning",
    "max_worker_processes of the subscriber",
    "The launcher, the apply worker of each enabled subscription, each of its writers, and each "
    "worker that copies a table take one of max_worker_processes. If there are too few, Weft uses "
    "fewer writers than configured, or applies natively. Parallel queries and other extensions "
    "use some, too.",
    "Increase max_worker_processes, and restart the subscriber.",
)
def worker_processes(case: Case) -> Iterator[Hit]:
    parameter = "max_worker_processes"
    settings = case.settings
    default = most = 0
    if settings.has("weft.writers_per_subscription"):
        default = settings.number("weft.writers_per_subscription")
        most = settings.number("weft.max_writers_per_subscription")
    labels = [parse_label(row["label"]) for row in enabled_subscriptions(case)]
    if case.subscription is None:
        labels.append({})
    writers = sum(min(most, int(label.get("num_writers", default))) for label in labels)
    maximum = settings.number(parameter)
    needed = 1 + len(labels) + writers + settings.number("max_sync_workers_per_subscription")
    if maximum < needed:
        yield Hit(
            parameter,
            f"it is {maximum}; {len(labels)} subscriptions with {writers} writers need {needed}",
            (alter_system(parameter, str(needed + SPARE)),),
            restart=True,
        )


@check(
    "W032",
    Group.SETTINGS,
    Needs.SUBSCRIBER,
    "subscriber",
    "error",
    "replication origins of the subscriber",
    "The subscriber remembers for each subscription, and for each table that is being copied, how "
    "far it has got: in a replication origin, of which max_active_replication_origins (18) or "
    "max_replication_slots (17) limits the number. If none is left, workers fail.",
    "Increase the parameter, and restart the subscriber.",
)
def origins(case: Case) -> Iterator[Hit]:
    parameter = (
        "max_active_replication_origins"
        if case.subscriber.version >= 180000
        else "max_replication_slots"
    )
    used = case.subscriber.rows("SELECT count(*) AS n FROM pg_catalog.pg_replication_origin")
    yield from shortage(
        parameter,
        case.settings.number(parameter),
        used[0]["n"],
        case.copies + (0 if case.subscription else 1),
        "replication origins",
    )
