"""Throwaway servers of any version, that can be killed, and a link that can be cut.

Servers listen only on a socket in a directory of their own, so no port is taken and nobody
else's server is reached.
"""

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

import psycopg
from psycopg.rows import namedtuple_row

SETTINGS = """
    listen_addresses = ''
    autovacuum = off
    deadlock_timeout = 50ms
    log_line_prefix = '%m [%p] '
    max_connections = 80
    max_logical_replication_workers = 20
    max_prepared_transactions = 10
    max_replication_slots = 20
    max_wal_senders = 20
    max_wal_size = 4GB
    max_worker_processes = 40
    shared_buffers = 256MB
    wal_level = logical
    wal_retrieve_retry_interval = 200ms
    """
WEFT_SETTINGS = """
    shared_preload_libraries = 'weft'
    """

# Seconds after which a server, or a condition, is assumed never to come.
TIME_LIMIT = float(os.environ.get("WEFT_LEDGER_TIMEOUT", "120"))


def wait_for(condition: Any, what: str | Callable[[], str], limit: float = TIME_LIMIT) -> Any:
    """Polls until a function returns something true, and returns that."""
    deadline = time.monotonic() + limit
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out waiting for {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.parent.name))
    return found


class Server:
    """A server from the programs in "programs", in a directory of its own."""

    def __init__(self, directory: Path, programs: Path, settings: str = "", weft: bool = False):
        self.directory = directory
        self.programs = programs
        self.data = directory / "data"
        self.log = directory / "log"
        self.settings = SETTINGS + (WEFT_SETTINGS if weft else "") + settings
        self.link = Link(directory / "link", directory / ".s.PGSQL.5432")
        self.database = "postgres"

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def conninfo(self) -> str:
        return f"host={self.directory} port=5432 user=postgres dbname={self.database}"

    @property
    def linked_conninfo(self) -> str:
        """Through the link, for the other server."""
        return f"host={self.link.directory} port=5432 user=postgres dbname={self.database}"

    def use_new_database(self, name: str) -> None:
        """Until something else is said, everything is done in this database."""
        self.database = "postgres"
        self.query(f"CREATE DATABASE {name} TEMPLATE template0")
        self.database = name

    @cached_property
    def major(self) -> int:
        text = subprocess.check_output([self.programs / "postgres", "--version"], text=True)
        return int(text.split()[2].split(".")[0])

    def run(self, program: str, *arguments: str) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        # a file, since a server that is started here keeps the output open
        with (self.directory / f"{program}.out").open("w+") as output:
            code = subprocess.run(
                [self.programs / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            ).returncode
            output.seek(0)
            text = output.read()
        if code != 0:
            raise RuntimeError(f"{program} on {self.name} failed:\n{text}")
        return text

    def create(self) -> None:
        self.directory.mkdir(parents=True)
        self.run(
            "initdb", f"--pgdata={self.data}", "--username=postgres", "--auth=trust",
            "--encoding=UTF8", "--no-locale", "--no-sync",
        )  # fmt: skip
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"{self.settings}\nunix_socket_directories = '{self.directory}'\n")
        self.start()
        self.link.open()

    def start(self) -> None:
        """Starts the server; waits for processes that a killed one has left."""

        def started() -> bool:
            try:
                self.run(
                    "pg_ctl", "start", "-w", "-t", str(int(TIME_LIMIT)),
                    "-D", str(self.data), "-l", str(self.log),
                )  # fmt: skip
            except RuntimeError:
                text = self.log.read_text(errors="replace").splitlines()[-5:]
                if any("still in use" in line or "lock file" in line for line in text):
                    return False
                raise
            return True

        wait_for(started, f"{self.name} to start")

    def stop(self) -> None:
        self.link.close()
        for mode in ("fast", "immediate"):
            with suppress(RuntimeError):
                self.run("pg_ctl", "stop", "-D", str(self.data), "-m", mode, "-t", "20")
                return

    def postmaster(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def kill(self, with_children: bool = True) -> None:
        """kill -9, as after a crash; or of the postmaster alone, whose children end by themselves.

        They notice it when they next wait, and may do something before.
        """
        postmaster = self.postmaster()
        if with_children:
            # a stopped postmaster cannot start others meanwhile
            os.kill(postmaster, signal.SIGSTOP)
        victims = children(postmaster)
        os.kill(postmaster, signal.SIGKILL)
        if with_children:
            for pid in victims:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not alive(postmaster), f"the postmaster of {self.name} to end")

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        options.setdefault("autocommit", True)
        options.setdefault("row_factory", namedtuple_row)
        return psycopg.connect(self.conninfo, **options)

    def query(self, sql: Any, *parameters: Any) -> list[Any]:
        with self.connect() as connection:
            cursor = connection.execute(sql, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, sql: Any, *parameters: Any) -> Any:
        rows = self.query(sql, *parameters)
        return rows[0][0] if rows else None

    def wait_until(self, sql: str, what: str = "", limit: float = TIME_LIMIT) -> Any:
        """Polls a query until its value is true; the server may be restarting meanwhile."""

        def condition() -> Any:
            try:
                return self.value(sql)
            except psycopg.OperationalError:
                return None

        return wait_for(condition, f"{what or sql} on {self.name}", limit)

    def complaints(self, most: int = 30) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        wanted = ("ERROR: ", "FATAL: ", "PANIC: ", "WARNING: ", "TRAP: ")
        expected = ("is fenced: ", "writes have moved")
        return [
            line
            for line in lines
            if any(word in line for word in wanted) and not any(word in line for word in expected)
        ][-most:]

    def crashed(self) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [line for line in lines if "PANIC: " in line or "TRAP: " in line]


class Link:
    """A socket that passes everything on to a server's, until it is cut.

    One thread for each direction of each connection; they end when either side closes.
    """

    def __init__(self, directory: Path, target: Path):
        self.directory = directory
        self.target = target
        self.lock = threading.Lock()
        self.listener: socket.socket | None = None
        self.open_sockets: set[socket.socket] = set()
        self.flowing = threading.Event()
        self.flowing.set()
        self.connections = 0

    @property
    def path(self) -> Path:
        return self.directory / ".s.PGSQL.5432"

    def open(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen(64)
        self.listener = listener
        threading.Thread(target=self._accept, args=[listener], daemon=True).start()

    def close(self) -> None:
        """Cuts all connections, and accepts none until open()."""
        with self.lock:
            listener, self.listener = self.listener, None
            if listener:
                with suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
                listener.close()
            self.path.unlink(missing_ok=True)
            for each in self.open_sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        self.flowing.set()

    def stall(self) -> None:
        """Nothing gets through, and nobody is told, until flow()."""
        self.flowing.clear()

    def flow(self) -> None:
        self.flowing.set()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self.target))
            except OSError:
                client.close()
                server.close()
                continue
            with self.lock:
                if self.listener is not listener:
                    client.close()
                    server.close()
                    return
                self.open_sockets |= {client, server}
                self.connections += 1
            ended = threading.Semaphore(2)
            for pair in ((client, server), (server, client)):
                ended.acquire()
                threading.Thread(target=self._pass_on, args=[*pair, ended], daemon=True).start()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, ended: threading.Semaphore
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 18):
                self.flowing.wait()
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        # the later of the two threads closes both
        with self.lock:
            ended.release()
            if ended._value == 2:
                self.open_sockets -= {source, target}
                source.close()
                target.close()


def programs_of(major: int) -> Optional[Path]:
    """Where the machine has the programs of another major version, if it has."""
    named = os.environ.get(f"WEFT_PG{major}_BINDIR")
    for directory in (named, f"/usr/lib/postgresql/{major}/bin"):
        if directory and (Path(directory) / "postgres").exists():
            return Path(directory)
    return None


def own_programs() -> Path:
    """The programs of the server under test, in which Weft is installed."""
    found = shutil.which("postgres")
    assert found is not None, "no postgres in the PATH; start this through tools/setup.sh"
    return Path(found).parent


@contextmanager
def created(*servers: Server) -> Iterator[None]:
    """Creates and starts servers, and stops them at the end."""
    try:
        threads = [threading.Thread(target=server.create) for server in servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for server in servers:
            server.value("SELECT 1")
        yield
    finally:
        for server in servers:
            with suppress(OSError, ValueError):
                server.stop()
