"""Real servers for the tests, and the command as a user starts it."""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from servers import Server, created, own_programs, wait_for
from weft_cli import main
from weft_cli.exit_code import ExitCode

CLI = Path(__file__).resolve().parent.parent

# Reaches the test if the command ever shows it.
PASSWORD = "hush-hush"

# Each test has databases of its own, whose files would have to be flushed.
QUICK = "fsync = off\n"


def pytest_configure() -> None:
    # What ends the tests ends their servers, too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: pytest.exit("ended", 128 + number))
    for name in set(os.environ) - set(clean_environment()):
        del os.environ[name]


@dataclass
class Pair:
    """A publisher and a subscriber, both with Weft loaded, and nothing else yet."""

    publisher: Server
    subscriber: Server

    def new_database(self, name: str) -> None:
        """Both sides continue in a database of this name, so that tests share servers."""
        for server in (self.publisher, self.subscriber):
            server.use_new_database(name)
        self.subscriber.query("CREATE EXTENSION weft")

    def subscribe(self, name: str = "shop", conninfo: str = "", options: str = "") -> None:
        """Replicates table t, in publication p, and waits until it is copied."""
        for server in (self.publisher, self.subscriber):
            server.query("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY, v text)")
        if not self.publisher.query("SELECT 1 FROM pg_publication WHERE pubname = 'p'"):
            self.publisher.query("CREATE PUBLICATION p FOR TABLE t")
        target = (conninfo or self.publisher.conninfo) + f" password={PASSWORD}"
        # Slots are the whole server's.
        slot = f"slot_{next_number()}"
        self.subscriber.query(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{target}' PUBLICATION p"
            f" WITH (slot_name = {slot}{options})"
        )
        self.subscriber.wait_until(
            "SELECT NOT EXISTS (SELECT FROM pg_subscription_rel r JOIN pg_subscription s"
            f" ON s.oid = r.srsubid WHERE s.subname = '{name}' AND r.srsubstate <> 'r')"
        )

    def wait_for_apply(self, name: str = "shop") -> None:
        self.subscriber.query(f"SELECT weft.wait_for_subscription('{name}', '1 min')")


@pytest.fixture(scope="session")
def directory() -> Iterator[Path]:
    # pytest's own are too long for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="weft-cli-") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def servers_of_session(directory: Path) -> Iterator[Pair]:
    programs = own_programs()
    pair = Pair(
        Server(directory / "pub", programs, QUICK, weft=True),
        # which the detection of conflicts needs
        Server(directory / "sub", programs, f"{QUICK}track_commit_timestamp = on\n", weft=True),
    )
    with created(pair.publisher, pair.subscriber):
        yield pair


@pytest.fixture
def pair(servers_of_session: Pair, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """The session's two servers, in an empty database named after the test."""
    name = request.node.name.partition("[")[0].removeprefix("test_")[:50]
    servers_of_session.new_database(f"{name}_{next_number()}")
    yield servers_of_session
    drop_subscriptions(servers_of_session)


@pytest.fixture(scope="session")
def bare(directory: Path) -> Iterator[Server]:
    """A server that has not loaded Weft."""
    server = Server(directory / "bare", own_programs(), QUICK)
    with created(server):
        yield server


def drop_subscriptions(pair: Pair) -> None:
    """Also their slots, for which the publisher must be running."""
    for (name,) in pair.subscriber.query(
        "SELECT subname FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid"
        " WHERE d.datname = current_database()"
    ):
        pair.subscriber.query(f'DROP SUBSCRIPTION "{name}"')


_numbers = iter(range(1, 1_000_000))


def next_number() -> int:
    return next(_numbers)


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "weft_cli", *arguments]


Weft = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def weft() -> Weft:
    """Runs the command, with its output in pipes, as in a script."""

    def run(
        *arguments: str,
        server: Server | None = None,
        environment: dict[str, str] | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        target = ["-d", server.conninfo] if server else []
        done = subprocess.run(
            command_line(*arguments, *target),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=clean_environment() | (environment or {}),
            timeout=timeout,
        )
        assert PASSWORD not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


def clean_environment() -> dict[str, str]:
    """Without what the caller has set for libpq and for terminals."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PG") and name not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")
    }
    return inherited | {"PYTHONPATH": str(CLI), "PYTHONDONTWRITEBYTECODE": "1"}


def watching(server: Server) -> subprocess.Popen[str]:
    """Shows the status as JSON ten times a second, until it is ended."""
    return subprocess.Popen(
        command_line("status", "--watch", "0.1", "-o", "json", "-d", server.conninfo),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        text=True,
    )


def run_here(*arguments: str, server: Server) -> tuple[int, str]:
    """The same without a process of its own, which takes much less time; for tests that poll."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = main.run([*arguments, "-d", server.conninfo])
    assert PASSWORD not in output.getvalue() + errors.getvalue()
    assert code in (ExitCode.FINE, ExitCode.FINDINGS), errors.getvalue()
    return code, output.getvalue()


def status_of(server: Server, *arguments: str) -> dict[str, Any]:
    """What "weft status" tells a program."""
    code, output = run_here("status", "-o", "json", *arguments, server=server)
    document: dict[str, Any] = json.loads(output)
    assert code == (ExitCode.FINE if document["verdict"] == "ok" else ExitCode.FINDINGS)
    return document


def wait_for_status(
    server: Server, condition: Callable[[dict[str, Any]], Any], *arguments: str
) -> dict[str, Any]:
    """Asks again until the condition is true."""
    seen: list[dict[str, Any]] = []

    def asked() -> bool:
        seen.append(status_of(server, *arguments))
        return bool(condition(seen[-1]))

    wait_for(asked, lambda: f"a certain status; the last one was {json.dumps(seen[-1], indent=1)}")
    return seen[-1]
