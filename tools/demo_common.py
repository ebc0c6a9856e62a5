"""What the demos share: throwaway servers, steps on the screen, start and end of a demo."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from demo_place import NoServerError, choose_server
from psycopg.rows import namedtuple_row
from rich.console import Console
from rich.text import Text

# fsync stays on.  Autovacuum would slow down one part of a comparison and not the other.
COMMON_SETTINGS = """
    listen_addresses = ''
    max_wal_size = 4GB
    shared_buffers = 256MB
    autovacuum = off
    """

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

console = Console(highlight=False)


class DemoError(Exception):
    """Something that the demo should show is not true."""


def run(*command: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        env=os.environ | (environment or {}),
    )  # fmt: skip
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
        self.environment: dict[str, str] = {}

    @property
    def name(self) -> str:
        return self.directory.name

    def create(self) -> None:
        self.directory.mkdir()
        run("initdb", f"--pgdata={self.data}", "--username=postgres", "--auth=trust",
            "--encoding=UTF8", "--no-locale", "--no-sync")  # fmt: skip
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("include 'demo.conf'\n")
        self.configure()

    def configure(self) -> None:
        (self.data / "demo.conf").write_text(self.settings)

    def create_from(self, other: "Server") -> None:
        """Copies another server, which has been shut down, but not its settings."""
        self.directory.mkdir()
        shutil.copytree(other.data, self.data)
        self.configure()

    def start(self) -> None:
        try:
            run("pg_ctl", "start", "-D", str(self.data), "-l", str(self.log),
                environment=self.environment)  # fmt: skip
        except DemoError as error:
            log = self.log.read_text() if self.log.exists() else ""
            raise DemoError(f"{error}\n{log}") from None

    def shut_down(self) -> None:
        run("pg_ctl", "stop", "-D", str(self.data), "-m", "fast")

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


def offer_plugin() -> str:
    """Newer minor releases require a list of the output plugins that may be used."""
    known = "\noutput_plugin_libraries\t" in run("postgres", "--describe-config")
    return "output_plugin_libraries = 'pgoutput, test_decoding, weft'" if known else ""


def row_of(connection: psycopg.Connection[Any], query: str, *parameters: object) -> Any:
    """The one row of a query."""
    row = connection.execute(query, parameters or None).fetchone()
    assert row is not None
    return row


def value_of(connection: psycopg.Connection[Any], query: str, *parameters: object) -> Any:
    return row_of(connection, query, *parameters)[0]


def readable(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def wait_until(what: str, condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise DemoError(f"waited {seconds} seconds in vain until {what}")
        time.sleep(0.02)


def heading(title: str, explanation: str = "") -> None:
    console.print(Text(f"\n{title}", "bold"))
    if explanation:
        paragraph(explanation)


def paragraph(text: str, style: str = "") -> None:
    """Lines that are not too long to be read, however wide the terminal is."""
    console.print(Text(text, style), width=min(console.width, 100))


@contextmanager
def step(what: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    console.print(f"[green]✓[/] {what} [dim]({time.monotonic() - start:.1f} s)[/]")


def fingerprint(server: Server, tables: Iterable[str]) -> dict[str, Any]:
    """Row count and a sum of row hashes of each table: no order, so no sort."""
    with server.connect() as connection:
        return {
            table: row_of(
                connection, f"SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {table} t"
            )
            for table in tables
        }


def compare(servers: Sequence[Server], tables: Iterable[str]) -> dict[str, int]:
    """Compares all servers with the first one; returns the number of rows of each table."""
    tables = list(tables)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        expected, *others = pool.map(lambda server: fingerprint(server, tables), servers)
    for server, found in zip(servers[1:], others, strict=True):
        for table in tables:
            if found[table] != expected[table]:
                raise DemoError(
                    f"{table} differs: {expected[table][0]} rows on {servers[0].name}, "
                    f"{found[table][0]} on {server.name}"
                )
    return {table: rows for table, (rows, _) in expected.items()}


def keep(directory: Path, servers: list[Server], to_try: Callable[[Path], str]) -> None:
    print("The servers are kept.  To connect to them:")
    print(f"  export PATH={Path(shutil.which('psql') or '').parent}:$PATH")
    for server in servers:
        print(f"  psql {' '.join(server.socket_options)} postgres   # {server.name}")
    print(to_try(directory))
    print("To stop and remove them:")
    print(f"  kill -INT $(head -qn 1 {directory}/*/data/postmaster.pid); sleep 3")
    print(f"  rm -r {directory}")
    print("And then:")


def on_signal(number: int, _frame: object) -> None:
    for again in STOP_SIGNALS:
        signal.signal(again, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main(
    make_servers: Callable[[Path], list[Server]],
    demo: Callable[..., None],
    to_try: Callable[[Path], str],
    to_type_next: Callable[[], str],
) -> int:
    """Runs a demo on servers in a directory of its own; returns the exit code."""
    for number in STOP_SIGNALS:
        signal.signal(number, on_signal)
    try:
        choose_server()
    except NoServerError as error:
        console.print(Text.assemble(("failed: ", "bold red"), str(error)))
        return 1
    next_steps = to_type_next()
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
        if not failed:
            heading("What to type next")
        if os.environ.get("KEEP"):
            cleanup.pop_all()
            keep(directory, servers, to_try)
        if not failed:
            print(next_steps)
    return 1 if failed else 0
