"""weft doctor, and what others may have prepared for whoever runs it: nothing of theirs is run,
nobody gets rights or passwords by it, and no fix takes what belongs to somebody else."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from conftest import PASSWORD, Weft
from doctor_scenarios import drop_table
from doctor_site import SLOT, N, P, Site, T
from weft_cli.doctor import sequences
from weft_cli.exit_code import ExitCode
from weft_cli.quoting import identifier

pytest_plugins = ["doctor_fixtures"]


def promotes(result: str) -> str:
    """A function's body that gives its owner all rights, if somebody with rights runs it."""
    return f"LANGUAGE plpgsql AS $$BEGIN ALTER ROLE mallory SUPERUSER; RETURN {result}; END$$"


@contextmanager
def mallory(site: Site) -> Iterator[None]:
    """An ordinary role that may create schemas and subscriptions."""
    database = site.sub.database
    site.sub.query("CREATE ROLE mallory LOGIN; GRANT pg_create_subscription TO mallory")
    site.sub.query(f"GRANT CREATE ON DATABASE {database} TO mallory")
    try:
        yield
        assert not site.sub.value("SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'")
    finally:
        site.sub.database = database
        site.sub.query("DROP OWNED BY mallory CASCADE; DROP ROLE mallory")


def indexes(site: Site) -> set[tuple[str, bool]]:
    found = site.sub.query(
        "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " WHERE i.indrelid = %s::regclass AND NOT i.indisprimary",
        T,
    )
    return {(name, is_valid) for name, is_valid in found}


def test_unique_index_that_fails(site: Site) -> None:
    """An index that cannot be completed is dropped; another one of its name is not."""
    site.pub.query(f'CREATE UNIQUE INDEX "un""i" ON {T} (n)')
    site.sub.query(f"INSERT INTO {T} (id, n) VALUES (-1, 1), (-2, 1)")
    mine = {('un"i', True)}
    try:
        for _ in range(2):
            assert site.doctor("--fix", "--yes", "--only", "W074").fixes == {"W074": "failed"}
            assert indexes(site) == set()
        site.sub.query(f'CREATE INDEX "un""i" ON {T} (mood)')
        assert site.doctor("--fix", "--yes", "--only", "W074").fixes == {"W074": "failed"}
        assert indexes(site) == mine
        site.sub.query(f"DELETE FROM {T} WHERE id < 0")
        assert site.doctor("--fix", "--yes", "--only", "W074").fixes == {"W074": "fixed"}
        assert indexes(site) == mine | {('un"i_1', True)}
    finally:
        site.sub.query(f"DELETE FROM {T} WHERE id < 0")
        site.pub.query(f'DROP INDEX {N}."un""i"')
        for index, _ in indexes(site):
            site.sub.query(f"DROP INDEX {N}.{identifier(index)}")


def test_name_that_forges_a_line(site: Site, weft: Weft) -> None:
    """It is shown on one line, and the statement that is shown is right."""
    table = 't"\nAll 62 checks are OK.\x9b2J'
    quoted = '"' + table.replace('"', '""') + '"'
    for server in (site.pub, site.sub):
        server.query(f"CREATE TABLE {N}.{quoted} (id integer PRIMARY KEY)")
    site.refresh()
    try:
        site.sub.query(f"ALTER TABLE {N}.{quoted} SET UNLOGGED")
        done = weft("doctor", server=site.sub)
        assert "W078" in done.stdout
        assert done.stdout.replace("\n", "").isprintable()
        assert not [line for line in done.stdout.splitlines() if line.startswith("All ")]
        (statement,) = (line for line in done.stdout.splitlines() if "SET LOGGED" in line)
        site.sub.query(statement)
        assert site.doctor().ids == set()
    finally:
        drop_table(site, f"{N}.{quoted}")


@pytest.mark.parametrize("command", ["doctor", "status", "adopt"])
def test_schema_of_somebody_else(site: Site, weft: Weft, command: str) -> None:
    """In a database without the extension, a schema weft and its functions are anybody's."""
    site.sub.use_new_database(f"without_extension_{command}")
    with mallory(site):
        site.sub.query(
            "SET ROLE mallory; CREATE SCHEMA weft;"
            f" CREATE FUNCTION weft.library_version() RETURNS text {promotes('1::text')};"
            " CREATE FUNCTION weft.health(a interval = NULL, b interval = NULL,"
            " OUT id text, OUT severity text, OUT object text, OUT problem text, OUT remedy text)"
            f" RETURNS SETOF record {promotes('')}"
        )
        weft(command, *(["s"] if command == "adopt" else []), server=site.sub)


def test_view_in_place_of_a_table(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is looked up, and replaced before it is read."""
    original = sequences.largest_value
    table = f"{N}.seq_here"

    def replaced(server: Any, row: Any) -> int | None:
        site.sub.query(
            f"ALTER TABLE {table} RENAME TO real; GRANT ALL ON SCHEMA {N} TO mallory;"
            " SET ROLE mallory;"
            f" CREATE FUNCTION {N}.trap() RETURNS integer {promotes('1')};"
            f" CREATE VIEW {table} AS SELECT {N}.trap() AS id"
        )
        try:
            return original(server, row)
        finally:
            site.sub.query(f"DROP VIEW {table}; ALTER TABLE {N}.real RENAME TO seq_here")

    with mallory(site):
        monkeypatch.setattr(sequences, "largest_value", replaced)
        outcome = site.doctor("--only", "W091")
        assert [each["id"] for each in outcome.document["not_checked"]] == ["W091"]
        monkeypatch.undo()


def test_rights_are_not_given_away(site: Site) -> None:
    """The owner of a subscription chooses its tables; that makes it no superuser."""
    with mallory(site):
        site.pub.query(f"CREATE TABLE {N}.mine (id integer PRIMARY KEY)")
        site.sub.query(f"CREATE TABLE {N}.mine (id integer PRIMARY KEY)")
        site.refresh()
        site.subscription("SET (password_required = false)")
        site.subscription("OWNER TO mallory")
        try:
            outcome = site.doctor("--fix", "--yes")
            (finding,) = outcome.findings("W004")
            assert finding["fix_sql"] == [], finding
            # Of an ordinary role, whoever runs this may decide.
            site.sub.query("CREATE ROLE plain")
            for row in site.sub.query("SELECT srrelid::regclass::text FROM pg_subscription_rel"):
                site.sub.query(f"ALTER TABLE {row[0]} OWNER TO plain")
            outcome = site.doctor("--fix", "--yes")
            assert outcome.findings("W004")[0]["fix_sql"] == ['GRANT "plain" TO "mallory";']
            assert outcome.fixes == {"W004": "declined"}
        finally:
            site.subscription("OWNER TO postgres")
            site.subscription("SET (password_required = true)")
            site.sub.query("REASSIGN OWNED BY plain TO postgres; DROP ROLE plain")
            for server in (site.pub, site.sub):
                server.query(f"DROP TABLE {N}.mine")
            site.refresh()


@contextmanager
def listener() -> Iterator[tuple[int, bytearray]]:
    """Something that asks for passwords where the publisher should be."""
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(2)
                    connection.recv(1000)  # SSLRequest, or the startup packet
                    # AuthenticationCleartextPassword
                    connection.sendall(b"R\0\0\0\x08\0\0\0\x03")
                    heard.extend(connection.recv(1000))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], heard
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_environment_is_the_subscribers(site: Site, weft: Weft) -> None:
    """PGPASSWORD is not sent to wherever a subscription points; PGPORT is not its publisher's."""
    site.sub.use_new_database("environment")
    with listener() as (port, heard):
        site.sub.query(
            f"CREATE SUBSCRIPTION env CONNECTION 'host=127.0.0.1 port={port} dbname=x user=x"
            " sslmode=disable gssencmode=disable' PUBLICATION p"
            " WITH (connect = false, slot_name = NONE)"
        )
        done = weft("doctor", server=site.sub, environment={"PGPASSWORD": PASSWORD})
        assert done.returncode == ExitCode.FINDINGS, done.stderr
        assert PASSWORD.encode() not in heard
    # Without a database of its own, not that of the subscriber.
    site.sub.query(f"ALTER SUBSCRIPTION env CONNECTION 'host={site.pub.directory} user=postgres'")
    done = weft("doctor", server=site.sub, environment={"PGDATABASE": "doctor", "PGPORT": "1"})
    assert f"{site.pub.directory}:5432/postgres" in done.stdout, done.stdout
    site.sub.query("DROP SUBSCRIPTION env")


def test_restored_dump(site: Site) -> None:
    """A subscription that is restored from a dump names the slot of the original."""
    site.sub.use_new_database("restored")
    site.sub.query("CREATE EXTENSION weft")
    site.sub.query(
        f"CREATE SUBSCRIPTION restored CONNECTION '{site.pub.conninfo}' PUBLICATION {P}"
        f" WITH (connect = false, slot_name = {SLOT})"
    )
    site.pub.query("SELECT pg_create_logical_replication_slot('restored', 'pgoutput')")
    try:
        for id in ("W040", "W055"):
            outcome = site.doctor("--fix", "--yes", "--only", id)
            assert outcome.ids == {id}, outcome.document
            assert not outcome.fixes, outcome.document
            # Next, one that has lost its slot, while there is one of its name.
            site.sub.query("ALTER SUBSCRIPTION restored SET (slot_name = NONE)")
    finally:
        site.sub.query("DROP SUBSCRIPTION restored")
        site.pub.query("SELECT pg_drop_replication_slot('restored')")


def test_slot_in_use(site: Site) -> None:
    """A disabled subscription whose slot somebody else uses."""
    site.subscription("DISABLE")
    site.pub.wait_until(f"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
    site.sub.use_new_database("thief")
    site.sub.query(
        f"CREATE SUBSCRIPTION thief CONNECTION '{site.pub.conninfo}' PUBLICATION nothing"
        f" WITH (connect = false, slot_name = {SLOT})"
    )
    site.sub.query("ALTER SUBSCRIPTION thief ENABLE")
    site.pub.wait_until(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
    site.sub.database = "doctor"
    try:
        outcome = site.doctor("--fix", "--yes", "--only", "W040")
        (finding,) = outcome.findings("W040")
        assert "somebody else" in finding["problem"]
        assert not outcome.fixes
    finally:
        site.sub.database = "thief"
        site.sub.query("ALTER SUBSCRIPTION thief DISABLE")
        site.sub.query("ALTER SUBSCRIPTION thief SET (slot_name = NONE)")
        site.sub.query("DROP SUBSCRIPTION thief")
        site.sub.database = "doctor"
        site.subscription("ENABLE")


def test_sequences_are_not_set_back(site: Site) -> None:
    """The statement may be run long after it was made."""
    site.pub.query(f"INSERT INTO {N}.seq_there VALUES (5)")
    (finding,) = site.doctor().findings("W090")
    for _ in range(10):
        site.pub.query(f"SELECT nextval('{N}.seq_there_id_seq')")
    site.pub.query(finding["fix_sql"][0])
    assert site.pub.value(f"SELECT nextval('{N}.seq_there_id_seq')") == 11
    site.pub.query(f"DELETE FROM {N}.seq_there")
    site.pub.query(f"ALTER SEQUENCE {N}.seq_there_id_seq RESTART")


def test_rows_are_not_copied_twice(site: Site) -> None:
    """A table that is published now, and has its rows on both sides already."""
    for server in (site.pub, site.sub):
        server.query(f"CREATE TABLE {N}.both AS SELECT 1 AS id")
    try:
        outcome = site.doctor("--fix", "--yes", "--only", "W061")
        (finding,) = outcome.findings("W061")
        assert "it has rows here" in finding["problem"]
        assert finding["fix_sql"] == []
        assert site.sub.value(f"SELECT count(*) FROM {N}.both") == 1
    finally:
        for server in (site.pub, site.sub):
            server.query(f"DROP TABLE {N}.both")
