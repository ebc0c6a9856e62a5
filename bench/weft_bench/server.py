"""Throwaway servers, reached only through a socket in a directory of their own."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import psycopg

from .build import Build
from .errors import BenchError, run
from .place import Place

APPLICATION = "weft bench"
Fingerprint = dict[str, tuple[Any, ...]]
Parameters = Union[Sequence[object], Mapping[str, object]]
# On which the text of values depends.
TEXT_SETTINGS = {
    "bytea_output": "hex",
    "datestyle": "ISO, YMD",
    "extra_float_digits": "1",
    "intervalstyle": "postgres",
    "timezone": "UTC",
}


def row_of(connection: psycopg.Connection, statement: str) -> tuple[Any, ...]:
    """The one row of a query."""
    row = connection.execute(statement).fetchone()
    assert row is not None
    return row


def value_of(connection: psycopg.Connection, statement: str) -> Any:
    """The one value of a query."""
    return row_of(connection, statement)[0]


def end_of_records(position: int, block_size: int, segment_size: int) -> int:
    """Up to where WAL can be flushed, if the server's position to insert at is the given one; all
    in bytes.  On a new page, that position is behind a header which does not exist yet."""
    header = 40 if position % segment_size < block_size else 24
    return position - header if position % block_size == header else position


class Server:
    """One server; its data directory may come from initdb or from a copy."""

    def __init__(
        self, name: str, data: Path, socket: Path, build: Build, place: Place | None = None
    ):
        self.name = name
        self.place = place or Place()
        self.data = data
        self.log = data.with_name(f"{data.name}.log")
        self.socket = socket
        self.build = build
        self.socket_options = ("-h", str(socket), "-p", "5432", "-U", "postgres")
        self.conninfo = f"host={socket} port=5432 user=postgres dbname=postgres"

    @property
    def remote_conninfo(self) -> str:
        """For the other server: through the line between them, if there is one."""
        if self.place.address is None:
            return self.conninfo
        return self.conninfo.replace(str(self.socket), self.place.address)

    def program(self, name: str, *arguments: str, **options: Any) -> str:
        """Runs where the server does."""
        return run(
            *self.place.prefix, self.build.program(name), *arguments,
            environment=self.build.environment, **options,
        )  # fmt: skip

    def create(self) -> None:
        self.program("initdb", f"--pgdata={self.data}", "--username=postgres", "--auth=trust",
                     "--encoding=UTF8", "--no-locale", "--no-sync")  # fmt: skip
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("include = 'bench.conf'\n")
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write("host all,replication all samenet trust\n")

    def start(self, settings: dict[str, object]) -> None:
        settings = {
            "listen_addresses": self.place.address or "",
            "unix_socket_directories": self.socket,
            "cluster_name": f"weft bench {self.name}",
            **settings,
        }
        quoted = {name: str(value).replace("'", "''") for name, value in settings.items()}
        lines = (f"{name} = '{value}'\n" for name, value in quoted.items())
        (self.data / "bench.conf").write_text("".join(lines))
        self.socket.mkdir(exist_ok=True)
        try:
            # Interrupted, it could leave a server that has no pid file yet.
            self.program("pg_ctl", "start", "-D", str(self.data), "-l", str(self.log), "-t", "120",
                         to_the_end=True)  # fmt: skip
        except BenchError as error:
            said = self.log.read_text(errors="replace") if self.log.exists() else ""
            raise BenchError(f"{error}\n{said[-4000:]}") from None

    @property
    def running(self) -> bool:
        return (self.data / "postmaster.pid").exists()

    def stop(self, mode: str = "fast") -> None:
        """Stops this server, and no other: pg_ctl knows it by the pid file in its directory."""
        if self.running:
            self.program("pg_ctl", "stop", "-D", str(self.data), "-m", mode, "-t", "300")

    def abandon(self) -> None:
        """Stops it whatever its state; never fails, since cleanup needs it."""
        if self.running:
            subprocess.run(
                (self.build.program("pg_ctl"), "stop", "-D", str(self.data), "-m", "immediate"),
                stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True,
                env={**os.environ, **self.build.environment},
            )  # fmt: skip

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.conninfo, autocommit=True, application_name=APPLICATION)

    def execute(self, statement: str, parameters: Parameters = ()) -> list[tuple]:
        with self.connect() as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, parameters: Parameters = ()) -> Any:
        return self.execute(statement, parameters)[0][0]

    def complaints(self) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        alarming = re.compile(r"(ERROR|FATAL|PANIC|WARNING): |terminated by signal|^TRAP")
        return [line for line in lines if alarming.search(line)][-10:]

    def is_standby(self) -> bool:
        return bool(self.value("SELECT pg_is_in_recovery()"))

    def vacuum_and_checkpoint(self, tables: tuple[str, ...]) -> None:
        with self.connect() as connection:
            connection.execute(f"VACUUM {', '.join(tables)}")
            connection.execute("CHECKPOINT")

    def fill_wal(self) -> None:
        """Writes WAL until there are as many segments as the server keeps to recycle."""
        kept = (
            "SELECT sum(size) >= pg_size_bytes(current_setting('min_wal_size')) FROM pg_ls_waldir()"
        )
        with self.connect() as connection:
            while not value_of(connection, kept):
                connection.execute(
                    "SELECT count(pg_logical_emit_message(false, '', repeat('x', 1000000))) "
                    "FROM generate_series(1, 50)"
                )

    def prewarm(self, tables: tuple[str, ...]) -> None:
        """Reads the tables into the buffers, as if they had just been filled."""
        self.execute(
            "SELECT pg_prewarm(oid) FROM pg_class WHERE relkind IN ('r', 'i') "
            "AND (oid = ANY (%(tables)s::regclass[]) OR oid IN (SELECT indexrelid FROM pg_index "
            "WHERE indrelid = ANY (%(tables)s::regclass[])))",
            {"tables": list(tables)},
        )

    def fingerprint(self, tables: tuple[str, ...]) -> Fingerprint:
        """Row count and sum of hashes of each table: no order, so no sort.  Rows are compared as
        text, since values may be equal without being the same, such as 1.0 and 1.00."""
        with self.connect() as connection:
            for name, value in TEXT_SETTINGS.items():
                connection.execute(f"SET {name} = '{value}'")
            return {
                table: row_of(
                    connection,
                    "SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) "
                    f"FROM {table} t",
                )
                for table in tables
            }

    def check_indexes(self, tables: tuple[str, ...]) -> int:
        """Checks that each row is in each B-tree of the tables, and that these are in order.
        Returns their number."""
        with self.connect() as connection:
            rows = connection.execute(
                "SELECT c.oid::regclass::text, bt_index_check(c.oid, true) "
                "FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
                "JOIN pg_am a ON a.oid = c.relam "
                "WHERE a.amname = 'btree' AND i.indisvalid AND i.indrelid = ANY (%s::regclass[])",
                [list(tables)],
            )
            return len(rows.fetchall())

    def read_wal(self) -> None:
        """From the disk, unless it is in memory already."""
        for file in (self.data / "pg_wal").iterdir():
            if file.is_file():
                with file.open("rb") as wal:
                    while wal.read(1 << 20):
                        pass

    def wal_position(self) -> int:
        """Where its WAL ends, in bytes; a standby has that of its publisher."""
        position, block_size, segment_size = self.execute(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() "
            "ELSE pg_current_wal_insert_lsn() END - '0/0'::pg_lsn, "
            "current_setting('wal_block_size')::integer, "
            "pg_size_bytes(current_setting('wal_segment_size'))"
        )[0]
        return end_of_records(int(position), block_size, segment_size)


def at_once(*functions: Callable[[], Any]) -> list:
    """Runs functions in parallel.  An interruption does not wait for them: the servers that
    they are connected to are stopped next, which ends them."""
    results: list = [None] * len(functions)
    errors: list[BaseException] = []

    def call(number: int) -> None:
        try:
            results[number] = functions[number]()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=call, args=(number,), daemon=True)
        for number in range(len(functions))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
