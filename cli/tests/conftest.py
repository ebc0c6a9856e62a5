"""Real servers for the tests, and the command as a user starts it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from servers import Server, created, own_programs

CLI = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    # What ends the tests ends their servers, too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: pytest.exit("ended", 128 + number))


@dataclass
class Pair:
    """A publisher and a subscriber, both with Weft loaded, and nothing else yet."""

    publisher: Server
    subscriber: Server

    def new_database(self, name: str, extension: bool = True) -> None:
        """Both sides continue in a database of this name, so that tests share servers."""
        for server in (self.publisher, self.subscriber):
            server.use_new_database(name)
        if extension:
            self.subscriber.query("CREATE EXTENSION weft")


@pytest.fixture(scope="session")
def directory() -> Iterator[Path]:
    # pytest's own are too long for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="weft-cli-") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def servers_of_session(directory: Path) -> Iterator[Pair]:
    programs = own_programs()
    pair = Pair(
        Server(directory / "pub", programs, weft=True),
        Server(directory / "sub", programs, weft=True),
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
        return subprocess.run(
            [sys.executable, "-m", "weft_cli", *arguments, *target],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=clean_environment() | (environment or {}),
            timeout=timeout,
        )

    return run


def clean_environment() -> dict[str, str]:
    """Without what the caller has set for libpq and for terminals."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PG") and name not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")
    }
    return inherited | {"PYTHONPATH": str(CLI), "PYTHONDONTWRITEBYTECODE": "1"}
