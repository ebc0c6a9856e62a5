"""weft doctor: checks that need servers, or databases, of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from doctor_scenarios import SCENARIOS
from doctor_site import Captured, S, Site, expect, repaired, repaired_by_restart
from servers import Server, created, programs_of
from weft_cli.doctor.registry import CHECKS
from weft_cli.exit_code import ExitCode
from weft_cli.main import run

pytest_plugins = ["doctor_fixtures"]

# Checks that are tested below: id, server, parameter, and a value that is too small.
RESTARTED = [
    ("W010", "pub", "wal_level", "replica"),
    ("W011", "pub", "max_wal_senders", "1"),
    ("W012", "pub", "max_replication_slots", "1"),
    ("W030", "sub", "max_logical_replication_workers", "1"),
    ("W031", "sub", "max_worker_processes", "6"),
    ("W032", "sub", "origins", "1"),
    ("W033", "sub", "shared_preload_libraries", "'plpgsql'"),
]


@pytest.fixture
def spare(servers: list[Server], captured: Captured) -> Iterator[tuple[Site, Site]]:
    """The spare server as the publisher, and as the subscriber, of a subscription to be created."""
    publisher, subscriber, spare = servers
    for server in servers:
        server.database = "postgres"
    for server in (subscriber, spare):
        server.query("CREATE EXTENSION IF NOT EXISTS weft")
    yield Site(spare, subscriber, captured), Site(publisher, spare, captured)


@pytest.mark.parametrize(("id", "role", "parameter", "value"), RESTARTED)
def test_before_subscription(
    spare: tuple[Site, Site], id: str, role: str, parameter: str, value: str
) -> None:
    site = spare[0] if role == "pub" else spare[1]
    server = site.pub if role == "pub" else site.sub
    if parameter == "origins":
        is_new = server.major >= 18
        parameter = "max_active_replication_origins" if is_new else "max_replication_slots"
    arguments = ("--publisher", site.pub.conninfo)
    assert site.doctor(*arguments).code == ExitCode.FINE
    site.restart(server, parameter, value)
    outcome = site.doctor(*arguments)
    expect(outcome, id)
    assert outcome.code == ExitCode.FINDINGS
    assert site.doctor(*arguments, "--fix", "--yes").fixes == {id: "restart"}
    site.restart(server)
    assert site.doctor(*arguments).code == ExitCode.FINE
    server.query(f"ALTER SYSTEM RESET {parameter}")
    site.restart(server)


def test_encodings(site: Site) -> None:
    site.sub.database = "postgres"
    site.sub.query("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1'")
    site.sub.database = "latin"
    site.sub.query("CREATE EXTENSION weft")
    site.pub.query("CREATE PUBLICATION nothing")
    site.sub.query(
        f"CREATE SUBSCRIPTION latin CONNECTION '{site.pub.conninfo}' PUBLICATION nothing"
    )
    expect(site.doctor(), "W100")
    site.sub.query("DROP SUBSCRIPTION latin")
    site.pub.query("DROP PUBLICATION nothing")
    site.sub.database = "postgres"
    site.sub.query("DROP DATABASE latin")


@pytest.fixture
def conflicts(site: Site) -> Iterator[Site]:
    """A subscription that detects conflicts, in a database of its own."""
    site.pub.use_new_database("conflicts")
    site.sub.use_new_database("conflicts")
    for server in (site.pub, site.sub):
        server.query("CREATE EXTENSION weft")
        server.query('CREATE TABLE public."t""1" (id integer PRIMARY KEY, v text)')
        server.query("""SELECT weft.track_deletes('public."t""1"')""")
    site.pub.query("CREATE PUBLICATION p FOR ALL TABLES")
    site.sub.query(
        f"CREATE SUBSCRIPTION c CONNECTION '{site.pub.conninfo}' PUBLICATION p"
        " WITH (detect_conflicts = on)"
    )
    site.synchronize()
    yield site
    if site.sub.value("SELECT subenabled FROM pg_subscription WHERE subname = 'c'"):
        site.sub.query("ALTER SUBSCRIPTION c DISABLE")
    site.sub.query("DROP SUBSCRIPTION c")
    for server in (site.pub, site.sub):
        server.database = "postgres"
        server.query("DROP DATABASE conflicts WITH (FORCE)")


def test_conflicts(conflicts: Site) -> None:
    """The checks that are about conflict detection, one after the other."""
    site = conflicts
    outcome = site.doctor()
    assert outcome.document["findings"] == outcome.document["not_checked"] == []

    site.pub.query(
        """INSERT INTO public."t""1" SELECT 1, string_agg(sha512(g::text::bytea)::text, '')
        FROM generate_series(1, 100) g"""
    )
    expect(site.doctor(), "W121")
    repaired(site)

    site.sub.query("""SELECT weft.track_deletes('public."t""1"', false)""")
    expect(site.doctor(), "W122")
    repaired(site)

    site.sub.query("""ALTER TABLE public."t""1" DROP CONSTRAINT "t""1_pkey" """)
    expect(site.doctor(), "W123")
    site.sub.query("""ALTER TABLE public."t""1" ADD PRIMARY KEY (id)""")

    site.restart(site.sub, "track_commit_timestamp", "off")
    # The apply worker fails.
    expect(site.doctor(), "W120", frozenset({"W041"}))
    repaired_by_restart(site, "W120")
    site.sub.query("ALTER SYSTEM RESET track_commit_timestamp")


def test_old_publisher(servers: list[Server], directory: Path, captured: Captured) -> None:
    """Every check can be made with the oldest publisher that is tested, and finds nothing."""
    programs = programs_of(15)
    if programs is None:
        pytest.skip("there is no PostgreSQL 15")
    publisher, subscriber = Server(directory / "old", programs), servers[1]
    site = Site(publisher, subscriber, captured)
    with created(publisher):
        site.create("old")
        document = site.doctor().document
        assert document["findings"] == document["not_checked"] == []
        assert set(document["ok"]) == set(CHECKS)
        # This is not where the doctor is to be called.
        assert run(["doctor", "-d", publisher.conninfo]) == ExitCode.REFUSED
        site.sub.query(f"DROP SUBSCRIPTION {S}")


def test_plugin_needs_right(site: Site) -> None:
    """What W014 says: without the right to read a parameter, a slot gets pgoutput."""
    if not site.pub.value("SELECT 1 FROM pg_settings WHERE name = 'output_plugin_libraries'"):
        pytest.skip("this server does not have output_plugin_libraries")
    site.pub.query("CREATE ROLE replicator LOGIN REPLICATION")
    site.pub.query("CREATE PUBLICATION nothing")
    conninfo = site.pub.conninfo.replace("user=postgres", "user=replicator")
    for plugin in ("pgoutput", "weft"):
        site.sub.query(
            f"CREATE SUBSCRIPTION r CONNECTION '{conninfo}' PUBLICATION nothing"
            " WITH (enabled = false)"
        )
        query = "SELECT plugin FROM pg_replication_slots WHERE slot_name = 'r'"
        assert site.pub.value(query) == plugin
        site.sub.query("DROP SUBSCRIPTION r")
        site.pub.query("GRANT pg_read_all_settings TO replicator")
    site.pub.query("DROP PUBLICATION nothing")
    site.pub.query("DROP ROLE replicator")


def test_every_check_has_a_test() -> None:
    tested = {scenario.id for scenario in SCENARIOS}
    tested |= {id for id, *_ in RESTARTED}
    tested |= {"W100", "W120", "W121", "W122", "W123"}
    assert tested == set(CHECKS)
