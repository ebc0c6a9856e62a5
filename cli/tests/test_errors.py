"""Each way in which a command cannot begin: its message, and its exit status."""

import signal
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.waiting import Ready

from conftest import PASSWORD, Pair, Weft, watching
from servers import Server
from weft_cli.exit_code import ExitCode
from weft_cli.server import Server as Connected


def check(
    done: subprocess.CompletedProcess[str], code: ExitCode, message: str, hint: str = ""
) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    if hint:
        assert "\nhint: " in done.stderr
        assert hint in done.stderr


def test_fine(pair: Pair, weft: Weft) -> None:
    done = weft("status", server=pair.subscriber)
    assert (done.returncode, done.stderr) == (ExitCode.FINE, "")
    assert done.stdout.startswith("OK  no subscriptions\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--no-such-option"],
        ["no-such-command"],
        ["status", "-o", "xml"],
        ["status", "--timeout", "0"],
        ["status", "--watch", "soon"],
        ["status", "--warning-bytes", "much"],
    ],
)
def test_usage(weft: Weft, arguments: list[str]) -> None:
    done = weft(*arguments)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr.startswith("Usage: weft ")


@pytest.mark.parametrize("conninfo", ["dbname=a b", f"host=a password={PASSWORD} secret"])
def test_bad_connection_string(weft: Weft, conninfo: str) -> None:
    done = weft("status", "-d", conninfo)
    check(done, ExitCode.USAGE, "the connection string is not valid")
    assert ("b" in done.stderr.split("valid")[1]) == ("password" not in conninfo)
    assert "secret" not in done.stderr


@pytest.mark.parametrize("sent", [False, True])
def test_interrupted_statement(pair: Pair, monkeypatch: pytest.MonkeyPatch, sent: bool) -> None:
    """Whoever cleans up after an interrupt needs the connection."""

    def interrupt(generator: Generator[Any, Any, Any], *_: Any, **__: Any) -> None:
        monkeypatch.undo()
        next(generator)
        if sent:
            generator.send(Ready.W)
        generator.throw(KeyboardInterrupt)

    with Connected(pair.subscriber.conninfo, "test") as server:
        monkeypatch.setattr(psycopg.waiting, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            server.value("SELECT pg_sleep(60)")
        assert server.value("SELECT 1") == 1


def test_unreachable(weft: Weft, directory: Path) -> None:
    check(weft("status", "-h", str(directory / "nobody")), ExitCode.UNREACHABLE, "cannot connect")


def test_no_answer(pair: Pair, weft: Weft) -> None:
    """A statement that waits is given up after the time limit."""
    with pair.subscriber.connect(autocommit=False) as connection:
        connection.execute("LOCK TABLE pg_subscription")
        done = weft("status", "--timeout", "0.3", server=pair.subscriber)
    check(done, ExitCode.UNREACHABLE, "did not answer", "--timeout")


@contextmanager
def password_role(server: Server) -> Iterator[str]:
    """A role that must give a password."""
    server.query(f"CREATE ROLE secretive LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    hba = server.data / "pg_hba.conf"
    saved = hba.read_text()
    hba.write_text(f"local all secretive scram-sha-256\n{saved}")
    server.query("SELECT pg_reload_conf()")
    try:
        yield server.conninfo.replace("user=postgres", "user=secretive")
    finally:
        hba.write_text(saved)
        server.query("SELECT pg_reload_conf()")
        server.query("DROP ROLE secretive")


def test_passwords(pair: Pair, weft: Weft, tmp_path: Path) -> None:
    server = pair.subscriber
    passfile = tmp_path / "pgpass"
    with password_role(server) as conninfo:
        check(weft("status", "-d", conninfo), ExitCode.UNREACHABLE, "cannot connect", "PGPASSWORD")

        wrong = weft("status", "-d", conninfo, environment={"PGPASSWORD": f"not {PASSWORD}"})
        check(wrong, ExitCode.UNREACHABLE, "password authentication failed")
        for good in (
            weft("status", "-d", conninfo, environment={"PGPASSWORD": PASSWORD}),
            weft("status", "-d", f"{conninfo} password={PASSWORD}"),
            weft("-d", f"{conninfo} password={PASSWORD}", "status"),
        ):
            assert good.returncode == ExitCode.FINE, good.stderr

        passfile.write_text(f"*:*:*:secretive:{PASSWORD}\n")
        passfile.chmod(0o600)
        good = weft("status", "-d", conninfo, environment={"PGPASSFILE": str(passfile)})
        assert good.returncode == ExitCode.FINE, good.stderr


def test_ways_to_connect(pair: Pair, weft: Weft, tmp_path: Path) -> None:
    server = pair.subscriber
    service = tmp_path / "pg_service.conf"
    service.write_text(
        f"[here]\nhost={server.directory}\nuser=postgres\ndbname={server.database}\n"
    )
    host = str(server.directory)
    uri = f"postgresql://postgres@/{server.database}?host={host.replace('/', '%2F')}"
    for arguments, environment in (
        (["-h", host, "-p", "5432", "-U", "postgres", "-d", server.database], {}),
        ([], {"PGHOST": host, "PGUSER": "postgres", "PGDATABASE": server.database}),
        (["-d", uri], {}),
        # as in psql, a connection string overrides the options
        (["-h", "/nowhere", "-U", "nobody", "-d", server.conninfo], {}),
        ([], {"PGSERVICE": "here", "PGSERVICEFILE": str(service)}),
        (["-d", "service=here"], {"PGSERVICEFILE": str(service)}),
    ):
        done = weft("status", *arguments, environment=environment)
        assert done.returncode == ExitCode.FINE, (arguments, done.stderr)
        assert f"{host}:5432/{server.database}," in done.stdout


def test_no_database(pair: Pair, weft: Weft) -> None:
    done = weft("status", "-h", str(pair.subscriber.directory), "-U", "postgres", "-d", "nothing")
    check(done, ExitCode.UNREACHABLE, 'database "nothing" does not exist')


def test_server_without_weft(bare: Server, weft: Weft) -> None:
    check(weft("status", server=bare), ExitCode.REFUSED, "Weft is not loaded", "CREATE EXTENSION")


def test_no_extension(pair: Pair, weft: Weft) -> None:
    pair.subscriber.query("DROP EXTENSION weft")
    done = weft("status", server=pair.subscriber)
    check(done, ExitCode.REFUSED, "this database does not have the extension", "CREATE EXTENSION")


def test_library_not_loaded(bare: Server, weft: Weft) -> None:
    """The extension is there, but a restart without the library has made it useless."""
    for command in ("SET shared_preload_libraries = 'weft'", "RESET shared_preload_libraries"):
        bare.query(f"ALTER SYSTEM {command}")
        bare.run("pg_ctl", "restart", "-D", str(bare.data), "-l", str(bare.log))
        if command.startswith("SET"):
            bare.query("CREATE EXTENSION weft")
    done = weft("status", server=bare)
    bare.query("DROP EXTENSION weft")
    check(done, ExitCode.REFUSED, "has not loaded the library", "shared_preload_libraries")


def test_missing_privileges(pair: Pair, weft: Weft) -> None:
    server = pair.subscriber
    server.query("CREATE ROLE nobody LOGIN")
    try:
        server.query("REVOKE USAGE ON SCHEMA weft FROM PUBLIC")
        done = weft("status", "-d", server.conninfo.replace("user=postgres", "user=nobody"))
        check(done, ExitCode.REFUSED, "permission denied for schema weft")
    finally:
        server.query("DROP ROLE nobody")


def test_extension_too_old(pair: Pair, weft: Weft) -> None:
    pair.subscriber.query("ALTER VIEW weft.copy_progress RENAME TO not_yet")
    done = weft("status", server=pair.subscriber)
    check(done, ExitCode.REFUSED, "weft.copy_progress", "ALTER EXTENSION weft UPDATE")


def test_closed_pipe(pair: Pair) -> None:
    """As in "weft status | head -0"."""
    process = watching(pair.subscriber)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.wait(60) == -signal.SIGPIPE
    assert process.stderr.read() == ""
    process.stderr.close()
