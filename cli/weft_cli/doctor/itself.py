"""Checks of Weft itself: loaded, installed, of one version, and in use."""

from collections.abc import Iterator

from weft_cli.doctor.case import Case
from weft_cli.doctor.reading import NotChecked
from weft_cli.doctor.registry import Group, Hit, Needs, check
from weft_cli.doctor.settings import offers_plugin
from weft_cli.doctor.sql_text import alter_system, literals, name
from weft_cli.quoting import word
from weft_cli.server import Server


@check(
    "W033",
    Group.WEFT,
    Needs.SUBSCRIBER,
    "subscriber",
    "error",
    "Weft is loaded on the subscriber",
    "Without Weft in shared_preload_libraries, all subscriptions are applied natively, with one "
    "process each, and their options num_writers and detect_conflicts have no effect.",
    "Add weft to shared_preload_libraries, and restart the subscriber.",
)
def loaded(case: Case) -> Iterator[Hit]:
    if case.weft_loaded:
        return
    yield Hit(
        "shared_preload_libraries",
        "the server has not loaded Weft",
        preload(case.settings.names("shared_preload_libraries")),
        restart=True,
    )


def has_extension(server: Server) -> bool:
    """Asked anew each time: a fix may just have created it."""
    return bool(server.rows("SELECT 1 FROM pg_catalog.pg_extension WHERE extname = 'weft'"))


def preload(before: list[str]) -> tuple[str, ...]:
    return (alter_system("shared_preload_libraries", literals([*before, "weft"])),)


@check(
    "W034",
    Group.WEFT,
    Needs.SUBSCRIBER,
    "subscriber",
    "warning",
    "the extension exists in the subscription's database",
    "The library applies subscriptions of every database, but the views and functions that show "
    "what it does, and conflict detection, need the extension in the subscription's database.",
    "Run CREATE EXTENSION weft in this database, as a superuser.",
)
def extension(case: Case) -> Iterator[Hit]:
    if case.weft_loaded and not has_extension(case.subscriber):
        database = case.subscriber.connection.info.dbname
        yield Hit(
            f'database "{database}"',
            "the database does not have the extension weft",
            ("CREATE EXTENSION weft;",),
        )


@check(
    "W035",
    Group.WEFT,
    Needs.SUBSCRIBER,
    "subscriber",
    "error",
    "library and extension are of the same version",
    "After an update of Weft's package and a restart, the views and functions in each database "
    "are still those of the old version until ALTER EXTENSION weft UPDATE. Functions that have "
    "changed then fail, or are missing.",
    "Run ALTER EXTENSION weft UPDATE in each database that has the extension. If the library is "
    "the older of the two, restart the server.",
)
def versions(case: Case) -> Iterator[Hit]:
    yield from version_of(case.subscriber, "subscriber")
    if case.publisher is not None:
        yield from version_of(case.publisher, "publisher")
    case.require_publisher()


def version_of(server: Server, side: str) -> Iterator[Hit]:
    found = server.rows(
        "SELECT e.extversion AS installed, a.default_version AS available"
        " FROM pg_catalog.pg_extension e"
        " JOIN pg_catalog.pg_available_extensions a ON a.name = e.extname"
        " WHERE e.extname = 'weft'",
    )
    for row in found:
        library = server.weft_library
        # An old library cannot tell its version; the files that came with it can.
        told = server.has_function("weft.library_version()")
        wanted = library if library and told else row["available"]
        if row["installed"] != wanted:
            yield Hit(
                "extension weft",
                f"the extension is of version {row['installed']}, the library of version {wanted}",
                ("ALTER EXTENSION weft UPDATE;",) if wanted == row["available"] else (),
                side=side,
                restart=wanted != row["available"],
            )


@check(
    "W036",
    Group.WEFT,
    Needs.SUBSCRIPTION,
    "subscriber",
    "warning",
    "the subscription is applied by writers",
    "Weft is loaded, but applies this subscription natively, with one process: it has no writers "
    "(num_writers = 0), or there were too few background workers when its apply worker started.",
    "Set num_writers, or increase max_worker_processes (W031).",
)
def native(case: Case) -> Iterator[Hit]:
    if not case.weft_loaded:
        return
    if not has_extension(case.subscriber):
        raise NotChecked("the extension is not in this database (W034)")
    reason = case.subscriber.rows(
        "SELECT native_reason FROM weft.stat_subscription WHERE subname = %s"
        " AND subid = %s::oid AND native_reason IS NOT NULL",
        case.name,
        case.subscription["oid"] if case.subscription else None,
    )
    for row in reason:
        fix = ""
        if case.label.get("num_writers") == "0":
            number = max(1, case.settings.number("weft.writers_per_subscription"))
            fix = f"ALTER SUBSCRIPTION {name(case.name)} SET (num_writers = {number});"
        yield Hit(
            subject(case),
            f"the subscription is applied natively: {row['native_reason']}",
            (fix,) if fix else (),
        )


def subject(case: Case) -> str:
    return f'subscription "{case.name}"'


# The other checks of weft.health() are made here as well, under ids of their own.
OTHER_HEALTH = ["H006", "H008", "H009", "H010", "H012", "H013", "H014", "H015", "H016"]


@check(
    "W021",
    Group.WEFT,
    Needs.SUBSCRIBER,
    "subscriber",
    "warning",
    "what weft.health() finds besides",
    "weft.health() makes checks that the server can make alone. Those that no other id here covers "
    "are reported under this one: links of a node group that are missing or down, a join that has "
    "failed, a full conflict history, slots of this very server that lose WAL, and old news of the "
    "publisher.",
    "As the finding says. docs/health.md explains the ids H006, H008, H009, H010, H012 to H016.",
)
def health(case: Case) -> Iterator[Hit]:
    if not case.weft_loaded:
        return
    if not case.subscriber.has_function("weft.health(interval, interval)"):
        raise NotChecked("the extension in this database has no weft.health() (W034, W035)")
    for row in case.subscriber.rows(
        "SELECT id, severity, object, problem, remedy FROM weft.health()"
        " WHERE id = ANY (%s) ORDER BY id, object",
        OTHER_HEALTH,
    ):
        yield Hit(
            f"{row['id']} {row['object']}",
            row["problem"],
            severity=row["severity"],
            remedy=row["remedy"],
        )


@check(
    "W016",
    Group.WEFT,
    Needs.BOTH,
    "publisher",
    "info",
    "output plugin of the slot",
    "The publisher has loaded Weft, but the subscription's slot uses pgoutput, because it was "
    "created before Weft was loaded or allowed there. With Weft's plugin, both servers have less "
    "to do.",
    "Run weft adopt, which moves the subscription to a slot with Weft's plugin without copying "
    "anything again.",
)
def plugin(case: Case) -> Iterator[Hit]:
    if offers_plugin(case) and case.slot and case.slot["plugin"] == "pgoutput":
        yield Hit(
            slot_of(case),
            "the slot uses pgoutput, although the publisher has Weft",
            remedy=f"Run: weft adopt {word(case.name)}",
        )


@check(
    "W020",
    Group.WEFT,
    Needs.BOTH,
    "publisher",
    "error",
    "Weft is loaded on a publisher whose slot uses its plugin",
    "The slot uses Weft's output plugin, but the publisher does not load Weft at start any more. "
    "Replication fails if the library is removed, and its parameters have no effect.",
    "Add weft to shared_preload_libraries of the publisher, and restart it. Before you remove Weft "
    "from a publisher, run weft adopt SUBSCRIPTION --plugin pgoutput.",
)
def plugin_loaded(case: Case) -> Iterator[Hit]:
    slot = case.slot
    if slot is None or slot["plugin"] != "weft":
        return
    libraries = case.settings_there.names("shared_preload_libraries")
    if "weft" not in libraries:
        yield Hit(
            slot_of(case),
            "the slot uses the output plugin weft, but the publisher has not loaded Weft",
            preload(libraries),
            restart=True,
        )


def slot_of(case: Case) -> str:
    assert case.subscription is not None
    return f'slot "{case.subscription["slot"]}"'
