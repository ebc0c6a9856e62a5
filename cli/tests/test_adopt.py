"""weft adopt: what it does, refuses, and takes back."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adopting import (
    adopt_fully,
    allow_plugin,
    catch_up,
    check_equal,
    contents,
    copies,
    interrupted,
    load,
    slots,
    subscribe,
)
from conftest import Pair, Weft, drop_subscriptions
from servers import Server, created
from weft_cli.adoption import Adoption, run
from weft_cli.adoption_state import Step
from weft_cli.errors import Refused
from weft_cli.exit_code import ExitCode
from weft_cli.server import Server as Connected


def test_adopts_under_load(pair: Pair, weft: Weft) -> None:
    subscribe(pair)
    assert [plugin for _, plugin in slots(pair)] == ["pgoutput"]
    copied = copies(pair)
    with load(pair.publisher):
        adopt_fully(pair, weft, "weft")
        plugin = pair.subscriber.value("SELECT output_plugin FROM weft.stat_subscription")
        assert plugin == "weft"
        # So that the comparison below has something to find.
        pair.subscriber.wait_until("SELECT transactions > 100 FROM weft.stat_subscription")
        adopt_fully(pair, weft, "pgoutput")
        adopt_fully(pair, weft, "weft")
    check_equal(pair, copied)


def test_json_and_dry_run(pair: Pair, weft: Weft) -> None:
    subscribe(pair)
    before = slots(pair)
    done = weft("adopt", "s", "--dry-run", "-o", "json", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE, done.stderr
    plan = json.loads(done.stdout)
    assert [step["step"] for step in plan["steps"]] == [
        "stop", "wait", "copy", "start", "settle", "drop",
    ]  # fmt: skip
    assert slots(pair) == before

    done = weft("adopt", "s", server=pair.subscriber)
    assert done.returncode == ExitCode.USAGE
    assert "--yes" in done.stderr
    assert slots(pair) == before

    done = weft("adopt", "s", "--yes", "-o", "json", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE, done.stderr
    result = json.loads(done.stdout)
    assert result["schema"] == 1
    assert result["slot"] == slots(pair)[0][0]
    assert result["old_slot"] is None

    done = weft("adopt", "s", "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE
    assert "nothing to do" in done.stdout


def refused_output(pair: Pair, weft: Weft, *arguments: str) -> str:
    before = slots(pair)
    done = weft("adopt", "s", "--yes", "--timeout", "3", *arguments, server=pair.subscriber)
    assert done.returncode == ExitCode.REFUSED, done.stdout + done.stderr
    assert slots(pair) == before
    return done.stdout + done.stderr


def test_refuses(pair: Pair, weft: Weft) -> None:
    subscribe(pair)
    allow_plugin(pair, False)
    assert "does not allow the output plugin" in refused_output(pair, weft)
    allow_plugin(pair)
    pair.subscriber.query("ALTER SUBSCRIPTION s DISABLE")
    assert "is disabled" in refused_output(pair, weft)
    assert not pair.subscriber.value("SELECT subenabled FROM pg_subscription WHERE subname = 's'")
    pair.subscriber.query("ALTER SUBSCRIPTION s ENABLE")
    done = weft("adopt", "other", "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.REFUSED
    assert 'there is no subscription "other"' in done.stderr


def test_renamed_meanwhile(pair: Pair, weft: Weft) -> None:
    """Whoever renames the subscription is told how to continue."""
    subscribe(pair)

    def begin(step: Step) -> None:
        if step is Step.START:
            pair.subscriber.query('ALTER SUBSCRIPTION s RENAME TO "new s"')

    with (
        Connected(pair.subscriber.conninfo, "test") as subscriber,
        Connected(pair.publisher.conninfo, "test") as publisher,
        pytest.raises(Refused) as refused,
    ):
        run(Adoption(subscriber, publisher, "s", "weft", 10, []), begin, lambda _step, _time: None)
    hint = "To continue: weft adopt 'new s' The subscription may be disabled until then."
    assert refused.value.hint == f'It is called "new s" now. {hint}'
    assert "run this with its new name" in refused_output(pair, weft)
    done = weft("adopt", "new s", "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
    assert [plugin for _, plugin in slots(pair)] == ["weft"]


def test_refuses_two_phase(pair: Pair, weft: Weft) -> None:
    subscribe(pair, "two_phase = on")
    assert "two_phase" in refused_output(pair, weft)


def test_refuses_tables_that_are_copied(pair: Pair, weft: Weft) -> None:
    subscribe(pair)
    pair.publisher.query("CREATE TABLE more (id int PRIMARY KEY)")
    # It does not exist here in that form, so its copy fails.
    pair.subscriber.query("CREATE TABLE more (id int PRIMARY KEY CHECK (id < 0))")
    pair.publisher.query("INSERT INTO more VALUES (1)")
    pair.subscriber.query("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    assert "tables are being copied: 1" in refused_output(pair, weft)


@contextmanager
def plugin_allowed_on_server(pair: Pair) -> Iterator[None]:
    """So that open sessions notice the end of it."""
    server = pair.publisher
    server.query(f"ALTER DATABASE {server.database} RESET output_plugin_libraries")
    server.query("ALTER SYSTEM SET output_plugin_libraries = pgoutput, test_decoding, weft")
    server.query("SELECT pg_reload_conf()")
    server.wait_until("SELECT current_setting('output_plugin_libraries') LIKE '%weft%'")
    try:
        yield
    finally:
        server.query("ALTER SYSTEM RESET output_plugin_libraries")
        server.query("SELECT pg_reload_conf()")
        server.wait_until("SELECT current_setting('output_plugin_libraries') NOT LIKE '%weft%'")


def test_goes_back_if_the_copy_fails(pair: Pair, weft: Weft) -> None:
    """The publisher is reconfigured between the trial and the copy."""
    subscribe(pair)
    before = slots(pair)
    with plugin_allowed_on_server(pair):
        # the copy is the fourth statement
        process = interrupted(pair, 4, "pause", "adopt", "s", "--yes")
        assert process.stdout is not None
        while process.stdout.readline() != "paused\n":
            pass
        assert pair.subscriber.query("SELECT 1 FROM pg_subscription WHERE NOT subenabled")
    output, _ = process.communicate("\n", timeout=60)
    assert process.returncode == ExitCode.REFUSED, output
    assert "has its old slot again, and is enabled" in output
    assert slots(pair) == before
    pair.publisher.query("INSERT INTO history VALUES (0, 0, 'after')")
    catch_up(pair)
    assert contents(pair.subscriber) == contents(pair.publisher)


def test_goes_back_if_it_cannot_be_continued(pair: Pair, weft: Weft) -> None:
    """Killed when the subscription is stopped; then the publisher is reconfigured."""
    subscribe(pair)
    before = slots(pair)
    process = interrupted(pair, 3, "after", "adopt", "s", "--yes")
    output, _ = process.communicate(timeout=60)
    assert process.returncode < 0, output
    assert pair.subscriber.query("SELECT 1 FROM pg_subscription WHERE NOT subenabled")
    allow_plugin(pair, False)
    assert "has its old slot again, and is enabled" in refused_output(pair, weft)
    assert slots(pair) == before
    pair.publisher.query("INSERT INTO history VALUES (0, 0, 'after')")
    catch_up(pair)
    assert contents(pair.subscriber) == contents(pair.publisher)


def test_publisher_has_lost_weft(pair: Pair, weft: Weft) -> None:
    """The way back works although the slot's plugin cannot be used any more."""
    subscribe(pair)
    adopt_fully(pair, weft, "weft")
    allow_plugin(pair, False)
    pair.publisher.query(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
        " WHERE database = current_database()"
    )
    pair.publisher.query("INSERT INTO history VALUES (0, 0, 'meanwhile')")
    adopt_fully(pair, weft, "pgoutput")
    catch_up(pair)
    assert contents(pair.subscriber) == contents(pair.publisher)


@pytest.fixture
def ordinary_owner(pair: Pair) -> Iterator[str]:
    """The subscription belongs to an ordinary role; returns how that reaches the publisher."""
    hba = pair.publisher.data / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text(f"local all adopter scram-sha-256\n{before}")
    pair.publisher.query("SELECT pg_reload_conf()")
    pair.publisher.query("CREATE ROLE adopter LOGIN REPLICATION PASSWORD 'topsecret'")
    pair.subscriber.query("CREATE ROLE adopter LOGIN")
    subscribe(pair)
    pair.publisher.query("GRANT SELECT ON ALL TABLES IN SCHEMA public TO adopter")
    connection = f"{pair.publisher.conninfo} user=adopter password=topsecret"
    for statement in (
        f"GRANT CREATE ON DATABASE {pair.subscriber.database} TO adopter",
        "GRANT pg_create_subscription TO adopter",
        "ALTER TABLE history OWNER TO adopter",
        "ALTER TABLE account OWNER TO adopter",
        f"ALTER SUBSCRIPTION s CONNECTION '{connection}'",
        "ALTER SUBSCRIPTION s OWNER TO adopter",
    ):
        pair.subscriber.query(statement)
    pair.publisher.query("INSERT INTO history VALUES (0, 0, 'as the new owner')")
    catch_up(pair)
    yield connection
    drop_subscriptions(pair)
    hba.write_text(before)
    for server in (pair.publisher, pair.subscriber):
        server.query("DROP OWNED BY adopter CASCADE")
        server.query("DROP ROLE adopter")


def test_ordinary_role(pair: Pair, weft: Weft, ordinary_owner: str) -> None:
    own = pair.subscriber.conninfo.replace("user=postgres", "user=adopter")
    done = weft("adopt", "s", "--yes", "-d", own)
    assert done.returncode == ExitCode.REFUSED
    assert "--publisher" in done.stderr
    done = weft("adopt", "s", "--yes", "-d", own, "--publisher", ordinary_owner)
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
    assert [plugin for _, plugin in slots(pair)] == ["weft"]
    assert "topsecret" not in done.stdout + done.stderr


def test_failover_flag(pair: Pair, weft: Weft) -> None:
    subscribe(pair, "failover = true")
    old = slots(pair)[0][0]
    done = weft("adopt", "s", "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.FINDINGS, done.stdout + done.stderr
    assert f"SELECT pg_drop_replication_slot('{old}')" in done.stdout
    found = pair.publisher.query(
        "SELECT plugin::text, failover, active FROM pg_replication_slots"
        " WHERE database = current_database() ORDER BY plugin"
    )
    assert [tuple(row) for row in found] == [("pgoutput", True, False), ("weft", True, True)]
    pair.publisher.query("SELECT pg_drop_replication_slot(%s)", old)
    done = weft("adopt", "s", "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE


def make_standby(primary: Server, directory: Path) -> Server:
    """It synchronizes the slots that are marked for failover."""
    primary.query("SELECT pg_create_physical_replication_slot('standby')")
    standby = Server(directory, primary.programs, weft=True)
    directory.mkdir()
    standby.run(
        "pg_basebackup", "-d", primary.conninfo, "-D", str(standby.data), "--checkpoint=fast",
        "--write-recovery-conf", "--slot=standby",
    )  # fmt: skip
    with (standby.data / "postgresql.conf").open("a") as file:
        file.write(
            f"unix_socket_directories = '{directory}'\n"
            "hot_standby_feedback = on\n"
            "sync_replication_slots = on\n"
            f"primary_conninfo = '{primary.conninfo}'\n"
        )
    standby.start()
    return standby


def test_failover_to_a_standby(pair: Pair, weft: Weft, directory: Path) -> None:
    """The old slot goes when the standby has the new one; the standby then takes over."""
    primary = Server(
        directory / "primary",
        pair.publisher.programs,
        "output_plugin_libraries = 'pgoutput, test_decoding, weft'\n",
        weft=True,
    )
    with created(primary):
        primary.use_new_database("failover")
        own = Pair(primary, pair.subscriber)
        subscribe(own, "failover = true")
        standby = make_standby(primary, directory / "standby")
        try:
            with load(primary):
                done = weft(
                    "adopt", "s", "--yes", "--standby", f"{standby.conninfo} dbname=failover",
                    "--timeout", "100", server=pair.subscriber,
                )  # fmt: skip
            assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
            assert [plugin for _, plugin in slots(own)] == ["weft"]
            catch_up(own)
            primary.query("SELECT pg_log_standby_snapshot()")
            end = primary.value("SELECT pg_current_wal_flush_lsn()")
            standby.wait_until(f"SELECT pg_last_wal_replay_lsn() >= '{end}'")
            # The standby's copy of the old slot goes with its next synchronization.
            standby.wait_until(
                "SELECT NOT EXISTS (SELECT FROM pg_replication_slots WHERE plugin = 'pgoutput')"
            )
            primary.kill()
            standby.database = "failover"
            standby.query("SELECT pg_promote()")
            pair.subscriber.query(f"ALTER SUBSCRIPTION s CONNECTION '{standby.conninfo}'")
            standby.query("INSERT INTO history VALUES (0, 0, 'after the failover')")
            own.publisher = standby
            catch_up(own)
            assert contents(pair.subscriber) == contents(standby)
            assert [plugin for _, plugin in slots(own)] == ["weft"]
            drop_subscriptions(own)
        finally:
            standby.stop()
