"""What the demos share: throwaway servers, start and end of a demo."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row
from rich.console import Console
from rich.text import Text

COMMON_SETTINGS = """
    listen_addresses = ''
    max_wal_size = 4GB
    shared_buffers = 256MB
    """

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

console = Console(highlight=False)


class DemoError(Exception):
    """Something that the demo should show is not true."""


def run(*command: str) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise DemoError(f"{command[0]} failed:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


class Server:
    """A server that is reached only through a socket in its own directory."""

    def __init__(self, directory: Path, settings: str):
        self.directory = directory
        self.data = directory / "data"
        self.log = directory / "log"
        self.socket_options = ("-h", str(directory), "-p", "5432", "-U", "postgres")
        self.conninfo = f"host={directory} port=5432 user=postgres dbname=postgres"
        self.settings = f"{COMMON_SETTINGS}{settings}\nunix_socket_directories = '{directory}'\n"

    @property
    def name(self) -> str:
        return self.directory.name

    def start(self) -> None:
        self.directory.mkdir()
        run("initdb", f"--pgdata={self.data}", "--username=postgres", "--auth=trust",
            "--encoding=UTF8", "--no-locale", "--no-sync")  # fmt: skip
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(self.settings)
        try:
            run("pg_ctl", "start", "-D", str(self.data), "-l", str(self.log))
        except DemoError as error:
            raise DemoError(f"{error}\n{self.log.read_text()}") from None

    def stop(self) -> None:
        for mode in ("fast", "immediate"):
            stop = ("pg_ctl", "stop", "-D", str(self.data), "-m", mode, "-t", "15")
            if subprocess.run(stop, capture_output=True).returncode == 0:
                break

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.conninfo, autocommit=True, row_factory=namedtuple_row)

    def complaints(self) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [line for line in lines if re.search(r"(ERROR|FATAL|PANIC|WARNING): ", line)][-10:]


def row_of(connection: psycopg.Connection[Any], query: str) -> Any:
    """The one row of a query."""
    row = connection.execute(query).fetchone()
    assert row is not None
    return row


@contextmanager
def step(what: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    console.print(f"[green]✓[/] {what} [dim]({time.monotonic() - start:.1f} s)[/]")


def fingerprint(server: Server, tables: Iterable[str]) -> dict:
    """Row count and a sum of row hashes of each table: no order, so no sort."""
    with server.connect() as connection:
        return {
            table: row_of(
                connection, f"SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {table} t"
            )
            for table in tables
        }


def keep(directory: Path, servers: list[Server]) -> None:
    psql = shutil.which("psql")
    print("The servers are kept.  To connect to them:")
    for server in servers:
        print(f"  {psql} {' '.join(server.socket_options)} postgres   # {server.name}")
    print("To stop and remove them:")
    print(f"  kill -INT $(head -qn 1 {directory}/*/data/postmaster.pid); sleep 3")
    print(f"  rm -r {directory}")


def on_signal(number: int, _frame: object) -> None:
    for again in STOP_SIGNALS:
        signal.signal(again, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main(make_servers: Callable[[Path], list[Server]], demo: Callable[..., None]) -> int:
    """Runs a demo on servers in a directory of its own; returns the exit code."""
    for number in STOP_SIGNALS:
        signal.signal(number, on_signal)
    # The caller's settings for libpq are not meant for these servers.
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]

    with ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="weft-demo-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        servers = make_servers(directory)
        for server in servers:
            cleanup.callback(server.stop)
        try:
            demo(*servers)
            failed = False
        except (DemoError, psycopg.Error) as error:
            failed = True
            console.print(Text.assemble(("failed: ", "bold red"), str(error)))
            for server in servers:
                for line in server.complaints():
                    print(f"  {server.name}:", line)
        if os.environ.get("KEEP"):
            cleanup.pop_all()
            keep(directory, servers)
    return 1 if failed else 0
