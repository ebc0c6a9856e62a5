"""weft doctor: its options, its output, and what it does if it may not or cannot."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from conftest import Weft, clean_environment
from doctor_scenarios import wait_until_connected
from doctor_site import N, S, Site, T, standby
from servers import wait_for
from weft_cli.doctor.page import page
from weft_cli.doctor.registry import CHECKS
from weft_cli.doctor.tables import holds_all, keeps_values
from weft_cli.exit_code import ExitCode

pytest_plugins = ["doctor_fixtures"]

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


def test_page_is_current() -> None:
    assert PAGE.read_text() == page(), "python -m weft_cli.doctor.page >docs/doctor.md"


def test_widening() -> None:
    """A subscriber's type that holds all of the publisher's values is no finding."""
    assert holds_all("bigint", "integer")
    assert holds_all("text", "character varying(10)")
    assert holds_all("character varying(20)", "character varying(10)")
    assert holds_all("numeric", "numeric(10,2)")
    assert not holds_all("integer", "bigint")
    assert not holds_all("character varying(10)", "character varying(20)")
    assert not holds_all("character varying(10)", "text")
    assert not holds_all("numeric(10,2)", "numeric")


def test_conversion_depends_on_time_zone() -> None:
    """A fix that moves each value by some hours is none."""
    assert not keeps_values("timestamp with time zone", "timestamp without time zone")
    assert not keeps_values("date", "timestamp(3) with time zone")
    assert keeps_values("timestamp(3) with time zone", "timestamp with time zone")
    assert keeps_values("integer", "bigint")
    assert keeps_values("text", "timestamp without time zone")


def test_without_rights(site: Site) -> None:
    """What may not be read is not checked, and never OK."""
    site.sub.query("CREATE ROLE reader LOGIN")
    try:
        conninfo = site.sub.conninfo.replace("user=postgres", "user=reader")
        outcome = site.doctor("-d", conninfo)
        assert outcome.code == ExitCode.FINDINGS
        assert outcome.ids == set(), outcome.document
        not_checked = {each["id"]: each["reason"] for each in outcome.document["not_checked"]}
        assert "--publisher" in not_checked["W070"]
        assert not not_checked.keys() & set(outcome.document["ok"])
        assert not_checked.keys() | set(outcome.document["ok"]) == set(CHECKS)
        # With another way to the publisher, more is checked.
        more = site.doctor("-d", conninfo, "--publisher", site.pub.conninfo)
        assert "W070" in more.document["ok"]
    finally:
        site.sub.query("DROP ROLE reader")


def test_publisher_down(site: Site) -> None:
    arguments = ("--publisher", f"host={site.pub.directory}/nowhere password=secret")
    outcome = site.doctor(*arguments)
    assert outcome.ids == {"W001"}
    assert "secret" not in str(outcome.document)
    not_checked = {each["id"] for each in outcome.document["not_checked"]}
    # Those that look at both sides have looked at one.
    assert {"W010", "W050", "W070", "W090", "W035", "W101"} <= not_checked
    assert "W040" in outcome.document["ok"]


def test_only_and_ignore(site: Site, weft: Weft) -> None:
    assert site.doctor("--only", "w040,W041").document["ok"] == ["W040", "W041"]
    assert "W040" not in site.doctor("--ignore", "W040").document["ok"]
    done = weft("doctor", "--only", "W999", server=site.sub)
    assert done.returncode == ExitCode.USAGE
    assert "W999" in done.stderr


def test_unknown_subscription(site: Site, weft: Weft) -> None:
    done = weft("doctor", "no such", server=site.sub)
    assert done.returncode == ExitCode.REFUSED
    assert "no such" in done.stderr


def test_text(site: Site, weft: Weft) -> None:
    """For people: whole statements on lines of their own, whatever the width."""
    done = weft("doctor", server=site.sub)
    assert done.returncode == ExitCode.FINE
    assert "checks are OK." in done.stdout
    assert "\x1b" not in done.stdout
    site.subscription("DISABLE")
    try:
        done = weft("doctor", server=site.sub, environment={"COLUMNS": "40"})
        assert done.returncode == ExitCode.FINDINGS
        assert f"ALTER SUBSCRIPTION {S} ENABLE;" in [
            line.strip() for line in done.stdout.splitlines()
        ]
        assert "W040" in done.stdout
        assert "1 error." in done.stdout
        again = weft("doctor", "--fix", "--dry-run", server=site.sub)
        assert "--dry-run" in again.stdout
        assert not site.sub.value("SELECT bool_or(subenabled) FROM pg_subscription")
    finally:
        site.subscription("ENABLE")
        wait_until_connected(site)


def test_explain(weft: Weft) -> None:
    done = weft("doctor", "--explain", "w012")
    assert done.returncode == ExitCode.FINE
    assert done.stdout.startswith("W012")
    assert CHECKS["W012"].title in done.stdout
    listed = weft("doctor", "--list")
    assert all(id in listed.stdout for id in CHECKS)


def test_nobody_to_ask(site: Site, weft: Weft) -> None:
    done = weft("doctor", "--fix", server=site.sub)
    assert done.returncode == ExitCode.USAGE
    assert "--yes" in done.stderr


def test_asks_before_each(site: Site) -> None:
    """The first is declined, the second confirmed."""
    site.sub.query(f'ALTER TABLE {T} ADD COLUMN "mu""st" integer NOT NULL')
    site.sub.query(f"ALTER TABLE {N}.big SET UNLOGGED")
    terminal, inner = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "weft_cli", "doctor", "--fix", "-d", site.sub.conninfo],
            stdin=inner, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=clean_environment(),
        )  # fmt: skip
        os.write(terminal, b"n\ny\n")
        output, _ = process.communicate(timeout=60)
    finally:
        os.close(terminal)
        os.close(inner)
    assert process.returncode == ExitCode.FINDINGS, output
    assert output.count("Run this on the subscriber?") == 2, output
    assert "not run" in output
    assert site.doctor().ids == {"W071"}
    site.sub.query(f'ALTER TABLE {T} DROP COLUMN "mu""st"')


def test_failed_fix_is_not_hidden(site: Site) -> None:
    """A fix that fails is reported, and leaves no subscription disabled."""
    with standby(site.pub, "stand_by", site.pub.directory / "received_3"):
        site.sub.query(
            "CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql AS"
            " $$BEGIN IF current_query() LIKE '%failover%' THEN RAISE 'no'; END IF; END$$;"
            "CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION public.refuse()"
        )
        outcome = site.doctor("--fix", "--yes", "--only", "W110")
        site.sub.query("DROP EVENT TRIGGER refuse; DROP FUNCTION public.refuse()")
        assert outcome.fixes == {"W110": "failed"}, outcome.document
        assert outcome.ids == {"W110"}
        assert site.sub.value("SELECT bool_and(subenabled) FROM pg_subscription")
    wait_for(lambda: site.doctor().code == ExitCode.FINE, "the subscription to continue")
