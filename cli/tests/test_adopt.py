"""weft adopt: nothing is lost, repeated or copied again, whatever is killed at any moment."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conftest import CLI, Pair, Weft, clean_environment, drop_subscriptions
from servers import Server, created
from weft_cli.exit_code import ExitCode

# More than an adoption has.
MOST_STATEMENTS = 20


def allow_plugin(pair: Pair, allowed: bool = True) -> None:
    """In this database only, since other tests use the same servers."""
    libraries = "pgoutput, test_decoding, weft" if allowed else "pgoutput, test_decoding"
    pair.publisher.query(
        f"ALTER DATABASE {pair.publisher.database} SET output_plugin_libraries = {libraries}"
    )


def subscribe(pair: Pair, options: str = "streaming = parallel") -> None:
    """Some tables, and a subscription "s" that uses pgoutput."""
    for server in (pair.publisher, pair.subscriber):
        server.query("CREATE TABLE history (client int, number int, filler text)")
        server.query("CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)")
    # So that open transactions are streamed.
    pair.publisher.query(
        f"ALTER DATABASE {pair.publisher.database} SET logical_decoding_work_mem = '64kB'"
    )
    allow_plugin(pair, False)
    pair.publisher.query("INSERT INTO account SELECT g, 0 FROM generate_series(1, 100) g")
    pair.publisher.query("CREATE PUBLICATION p FOR ALL TABLES")
    slot = f"slot_{pair.publisher.database}"
    pair.subscriber.query(
        f"CREATE SUBSCRIPTION s CONNECTION '{pair.publisher.conninfo}' PUBLICATION p"
        f" WITH (slot_name = {slot}, {options})"
    )
    catch_up(pair)
    allow_plugin(pair)


def catch_up(pair: Pair) -> None:
    pair.subscriber.query("SELECT weft.wait_for_subscription('s', '60 s')")


def slots(pair: Pair) -> list[tuple[str, str]]:
    return [
        (row.slot_name, row.plugin)
        for row in pair.publisher.query(
            "SELECT slot_name, plugin::text FROM pg_replication_slots"
            " WHERE database = current_database() AND slot_name !~ '_sync_' ORDER BY 1"
        )
    ]


def contents(server: Server) -> dict[str, Any]:
    return {
        table: server.query(f"SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {table} t")[0]
        for table in ("history", "account")
    }


def copies(pair: Pair) -> Any:
    """What would be different if a table were copied again."""
    return (
        pair.subscriber.query(
            "SELECT srrelid, srsubstate::text, srsublsn::text, pg_relation_filenode(srrelid)"
            " FROM pg_subscription_rel JOIN pg_subscription s ON s.oid = srsubid"
            " JOIN pg_database d ON d.oid = s.subdbid"
            " WHERE d.datname = current_database() ORDER BY 1"
        ),
        pair.subscriber.log.read_text(errors="replace").count("table synchronization worker"),
    )


@contextmanager
def load(server: Server) -> Iterator[None]:
    """Short transactions, and long ones that are open while others commit."""
    stop = threading.Event()

    def client(number: int) -> None:
        count = 0
        while not stop.is_set():
            # The server may have been killed.
            with suppress(psycopg.Error), server.connect(autocommit=False) as connection:
                while not stop.is_set():
                    count += 1
                    connection.execute("INSERT INTO history VALUES (%s, %s, 'x')", [number, count])
                    connection.execute(
                        "UPDATE account SET balance = balance + 1 WHERE id = %s",
                        [number * 10 + count % 10],
                    )
                    if number == 0:
                        connection.execute(
                            "INSERT INTO history SELECT 0, g, repeat('y', 200)"
                            " FROM generate_series(1, 1000) g"
                        )
                        stop.wait(0.7)
                    connection.commit()
                    stop.wait(0.005)
            stop.wait(0.05)

    threads = [threading.Thread(target=client, args=[number]) for number in range(1, 4)]
    threads.append(threading.Thread(target=client, args=[0]))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def interrupted(pair: Pair, number: int, how: str, *arguments: str) -> subprocess.Popen[str]:
    stop = {"WEFT_STOP_AT": str(number), "WEFT_STOP_HOW": how}
    return subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("interrupted.py")),
            *arguments,
            "-d",
            pair.subscriber.conninfo,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean_environment() | stop | {"PYTHONPATH": str(CLI)},
    )


def adopt_fully(pair: Pair, weft: Weft, plugin: str) -> None:
    done = weft("adopt", "s", "--plugin", plugin, "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
    found = slots(pair)
    assert [each for _, each in found] == [plugin], done.stdout + done.stderr
    assert pair.subscriber.query("SELECT subenabled, subslotname FROM pg_subscription")[0] == (
        True,
        found[0][0],
    )


def check_equal(pair: Pair, copied: Any) -> None:
    catch_up(pair)
    assert contents(pair.subscriber) == contents(pair.publisher)
    assert contents(pair.subscriber)["history"].count > 1000
    assert copies(pair) == copied


def test_adopts_under_load(pair: Pair, weft: Weft) -> None:
    subscribe(pair)
    assert [plugin for _, plugin in slots(pair)] == ["pgoutput"]
    copied = copies(pair)
    with load(pair.publisher):
        adopt_fully(pair, weft, "weft")
        plugin = pair.subscriber.value("SELECT output_plugin FROM weft.stat_subscription")
        assert plugin == "weft"
        time.sleep(2)  # so that the comparison below has something to find
        adopt_fully(pair, weft, "pgoutput")
        adopt_fully(pair, weft, "weft")
    check_equal(pair, copied)


@pytest.mark.parametrize("how", ["during", "after"])
def test_killed_at_every_statement(pair: Pair, weft: Weft, how: str) -> None:
    subscribe(pair)
    copied = copies(pair)
    plugin = "pgoutput"
    kills = 0
    with load(pair.publisher):
        for number in range(1, MOST_STATEMENTS):
            plugin = "weft" if plugin == "pgoutput" else "pgoutput"
            process = interrupted(pair, number, how, "adopt", "s", "--plugin", plugin, "--yes")
            output, _ = process.communicate(timeout=60)
            killed = process.returncode < 0
            assert killed or process.returncode == ExitCode.FINE, output
            kills += killed
            adopt_fully(pair, weft, plugin)
            if not killed:
                break
    # trial copy, its drop, stop, copy, start, drop
    assert kills == 6
    check_equal(pair, copied)


@pytest.mark.parametrize("victim", ["publisher", "subscriber"])
def test_server_killed_at_every_statement(pair: Pair, weft: Weft, victim: str) -> None:
    subscribe(pair)
    copied = copies(pair)[0]
    server: Server = getattr(pair, victim)
    plugin = "pgoutput"
    kills = 0
    with load(pair.publisher):
        for number in range(1, MOST_STATEMENTS):
            plugin = "weft" if plugin == "pgoutput" else "pgoutput"
            process = interrupted(pair, number, "pause", "adopt", "s", "--plugin", plugin, "--yes")
            assert process.stdout is not None
            line = process.stdout.readline()
            while line not in ("", "paused\n"):
                line = process.stdout.readline()
            if line:
                server.kill()
                server.start()
                kills += 1
            output, _ = process.communicate("\n", timeout=60)
            expected = (ExitCode.UNREACHABLE, ExitCode.REFUSED) if line else (ExitCode.FINE,)
            assert process.returncode in expected, output
            adopt_fully(pair, weft, plugin)
            if not line:
                break
    assert kills == 6
    catch_up(pair)
    assert contents(pair.subscriber) == contents(pair.publisher)
    assert copies(pair)[0] == copied


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


def refused(pair: Pair, weft: Weft, *arguments: str) -> str:
    before = slots(pair)
    done = weft("adopt", "s", "--yes", "--timeout", "3", *arguments, server=pair.subscriber)
    assert done.returncode == ExitCode.REFUSED, done.stdout + done.stderr
    assert slots(pair) == before
    return done.stdout + done.stderr


def test_refuses(pair: Pair, weft: Weft) -> None:
    subscribe(pair)
    allow_plugin(pair, False)
    assert "does not allow the output plugin" in refused(pair, weft)
    allow_plugin(pair)
    pair.subscriber.query("ALTER SUBSCRIPTION s DISABLE")
    assert "is disabled" in refused(pair, weft)
    assert not pair.subscriber.value("SELECT subenabled FROM pg_subscription WHERE subname = 's'")
    pair.subscriber.query("ALTER SUBSCRIPTION s ENABLE")
    done = weft("adopt", "other", "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.REFUSED
    assert 'there is no subscription "other"' in done.stderr


def test_refuses_two_phase(pair: Pair, weft: Weft) -> None:
    subscribe(pair, "two_phase = on")
    assert "two_phase" in refused(pair, weft)


def test_refuses_tables_that_are_copied(pair: Pair, weft: Weft) -> None:
    subscribe(pair)
    pair.publisher.query("CREATE TABLE more (id int PRIMARY KEY)")
    # It does not exist here in that form, so its copy fails.
    pair.subscriber.query("CREATE TABLE more (id int PRIMARY KEY CHECK (id < 0))")
    pair.publisher.query("INSERT INTO more VALUES (1)")
    pair.subscriber.query("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    assert "1 tables are being copied" in refused(pair, weft)


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
                    "--timeout", "50", server=pair.subscriber,
                )  # fmt: skip
            assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
            assert [plugin for _, plugin in slots(own)] == ["weft"]
            catch_up(own)
            primary.query("SELECT pg_log_standby_snapshot()")
            end = primary.value("SELECT pg_current_wal_flush_lsn()")
            standby.wait_until(f"SELECT pg_last_wal_replay_lsn() >= '{end}'")
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
