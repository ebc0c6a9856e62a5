"""A connection to a server.

Statements run in autocommit mode with an empty search_path, so that no object of another user can
stand in for one that is meant: qualify every name that is not in pg_catalog.
"""

import math
import os
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import Any, Self, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from weft_cli.errors import (
    BadUsage,
    MissingRights,
    NoExtension,
    Refused,
    Unreachable,
    WeftError,
)
from weft_cli.options import Options

# Seconds.
CONNECT_TIMEOUT = 10
CANCEL_TIMEOUT = 5.0

INSTALL_HINT = (
    "Load Weft on the subscriber (shared_preload_libraries = 'weft', restart), then run "
    "CREATE EXTENSION weft in the subscription's database and connect to that."
)
UPGRADE_HINT = "Install the current version of Weft, restart, and run ALTER EXTENSION weft UPDATE."


# Variables that tell libpq to which server to connect, and with which password.
TARGET_VARIABLES = (
    "PGDATABASE",
    "PGHOST",
    "PGHOSTADDR",
    "PGOPTIONS",
    "PGPASSWORD",
    "PGPORT",
    "PGSERVICE",
    "PGTARGETSESSIONATTRS",
)


class NeedsPassword(Unreachable):
    """The server wants a password, and none is known."""


def target_conninfo(options: Options) -> str:
    """The connection string that the options describe; like psql, -d may be one itself."""
    given = {
        key: value
        for key, value in (
            ("host", options.host),
            ("port", options.port),
            ("user", options.username),
        )
        if value is not None
    }
    dbname = options.dbname
    if dbname is None:
        return make_conninfo("", **given)
    if "=" not in dbname and not dbname.startswith(("postgresql://", "postgres://")):
        return make_conninfo("", **given, dbname=dbname)
    return make_conninfo("", **{**given, **parse_conninfo(dbname)})


def parse_conninfo(text: str) -> dict[str, Any]:
    try:
        return conninfo_to_dict(text)
    except psycopg.ProgrammingError as error:
        # libpq quotes the word that it does not understand, which may be part of a password.
        secret = "password" in text.lower() or "://" in text
        detail = "" if secret else f": {error}".rstrip()
        raise BadUsage(f"the connection string is not valid{detail}") from None


class Server:
    """One connection.  Its errors are WeftErrors."""

    def __init__(
        self,
        conninfo: str,
        application: str,
        timeout: float | None = None,
        password: str | None = None,
    ):
        self.application = application
        self.timeout = timeout
        self._known_columns: dict[str, frozenset[str]] = {}
        self.connection = _connect(conninfo, application, timeout, password)
        info = self.connection.info
        self.name = f"{info.host}:{info.port}/{info.dbname}"
        self.version: int = info.server_version
        # The formats that psycopg parses, whatever the role's settings are.
        self.execute(
            "SELECT set_config(name, value, false) FROM (VALUES ('search_path', ''),"
            " ('IntervalStyle', 'postgres'), ('DateStyle', 'ISO'),"
            " ('statement_timeout', %s)) AS setting (name, value)",
            str(math.ceil(timeout * 1000)) if timeout else "0",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    def rows(self, sql: str, *params: Any) -> list[dict[str, Any]]:
        """All rows.  Without parameters, "%" has no meaning; with parameters, write "%%"."""
        with self._errors():
            return self.connection.execute(cast(Any, sql), params or None).fetchall()

    def value(self, sql: str, *params: Any) -> Any:
        """The first column of the first row, or None."""
        for row in self.rows(sql, *params):
            return next(iter(row.values()))
        return None

    def execute(self, sql: str, *params: Any) -> None:
        with self._errors():
            self.connection.execute(cast(Any, sql), params or None)

    def copy_row(self, table: str, row: Sequence[Any]) -> None:
        """Appends a row to a table, whose values appear in no view and no log."""
        with (
            self._errors(),
            self.connection.cursor() as cursor,
            cursor.copy(cast(Any, f"COPY {table} FROM STDIN")) as copy,
        ):
            copy.write_row(row)

    @cached_property
    def in_recovery(self) -> bool:
        return bool(self.value("SELECT pg_is_in_recovery()"))

    @cached_property
    def weft_extension(self) -> str | None:
        """The version of the extension in this database, or None."""
        version = self.value("SELECT extversion FROM pg_extension WHERE extname = 'weft'")
        return cast("str | None", version)

    @cached_property
    def weft_library(self) -> str | None:
        """The version of the library that the server has loaded, or None.

        A library that cannot tell counts as the extension's version, or as "unknown".
        """
        loaded = self.value("SELECT 1 FROM pg_settings WHERE name = 'weft.ring_size'")
        if not loaded:
            return None
        if self.has_function("weft.library_version()"):
            return cast(str, self.value("SELECT weft.library_version()"))
        return self.weft_extension or "unknown"

    def has_function(self, name: str) -> bool:
        """By name, if there is one function of that name, or with the types of its arguments.

        Only the extension's own: in a database without it, anybody may create a schema weft.
        """
        lookup = "to_regprocedure" if "(" in name else "to_regproc"
        return self._is_of_weft("pg_proc", f"{lookup}(%s)", name)

    def has_result(self, function: str, column: str) -> bool:
        """Does the extension's function return that column?  As it was when first asked."""
        if function not in self._known_columns:
            names = self.value(
                "SELECT proargnames FROM pg_proc WHERE oid = to_regproc(%s)", function
            )
            is_known = names is not None and self.has_function(function)
            self._known_columns[function] = frozenset(names if is_known else ())
        return column in self._known_columns[function]

    def _is_of_weft(self, catalog: str, lookup: str, name: str) -> bool:
        return bool(
            self.value(
                "SELECT true FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid"
                f" WHERE d.classid = '{catalog}'::regclass AND d.objid = {lookup}"
                " AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'"
                " AND e.extname = 'weft'",
                name,
            )
        )

    def has_column(self, relation: str, column: str) -> bool:
        """As it was when first asked: this is asked often."""
        if relation not in self._known_columns:
            self._known_columns[relation] = self.columns(relation)
        return column in self._known_columns[relation]

    def columns(self, relation: str) -> frozenset[str]:
        """The columns of a table or view of the extension; none if it does not exist."""
        if not self._is_of_weft("pg_class", "to_regclass(%s)", relation):
            return frozenset()
        return frozenset(
            row["attname"]
            for row in self.rows(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s)"
                " AND attnum > 0 AND NOT attisdropped",
                relation,
            )
        )

    def require_weft(self) -> None:
        """Raises NoExtension unless this database has the extension."""
        if self.weft_extension is not None and self.weft_library is not None:
            return
        if self.weft_extension is not None:
            raise NoExtension(
                f"{self.name} has the extension, but the server has not loaded the library",
                "Add weft to shared_preload_libraries, and restart the server.",
            )
        if self.weft_library is None:
            raise NoExtension(f"Weft is not loaded on {self.name}", INSTALL_HINT)
        raise NoExtension(
            f"Weft is loaded on {self.name}, but this database does not have the extension",
            "Connect to the subscription's database, and run CREATE EXTENSION weft there.",
        )

    def publisher_of(self, subscription: str, conninfo: str | None = None) -> "Server":
        """Connects to a subscription's publisher, as the subscription does unless told otherwise.

        A host or socket in the subscription's connection string is meant as seen from the
        subscriber; a user who runs this elsewhere gives another one.
        """
        if conninfo is not None:
            return self.other(conninfo)
        oid = self.value(
            "SELECT oid FROM pg_subscription WHERE subname = %s AND subdbid ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())",
            subscription,
        )
        if oid is None:
            raise Refused(
                f'there is no subscription "{subscription}" in {self.name}',
                "If it was renamed, run this with its new name: that continues what was begun.",
            )
        return self.publisher_of_oid(oid)

    def publisher_of_oid(self, subscription: int, conninfo: str | None = None) -> "Server":
        """The same for a subscription of any database."""
        if conninfo is not None:
            return self.other(conninfo)
        try:
            conninfo = self.value(
                "SELECT subconninfo FROM pg_subscription WHERE oid = %s", subscription
            )
        except MissingRights:
            raise MissingRights(
                "reading how a subscription connects to its publisher needs a superuser",
                "Give the publisher's connection string with --publisher.",
            ) from None
        if conninfo is None:
            # From PostgreSQL 19 on: CREATE SUBSCRIPTION ... SERVER.
            raise Refused(
                "the subscription connects through a foreign server, whose user mapping is the"
                " subscription's owner's alone",
                "Give the publisher's connection string with --publisher.",
            )
        with _without_target():
            return self.other(conninfo)

    def other(self, conninfo: str) -> "Server":
        """Connects to another server, on behalf of the same command."""
        # The name of the subscription stays its own: publishers know synchronous standbys by it.
        target = parse_conninfo(conninfo) | {"application_name": self.application}
        return Server(make_conninfo("", **target), self.application, self.timeout)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._translated(error) from error
        except (KeyboardInterrupt, SystemExit):
            self._end_statement()
            raise

    def _end_statement(self) -> None:
        """Makes the connection usable again after an interrupt, or closes it.

        psycopg cancels the statement, but leaves it unfinished if the interrupt has come while it
        was sent, or its result was read.
        """
        pgconn = self.connection.pgconn
        if pgconn.transaction_status != TransactionStatus.ACTIVE:
            return
        ended = False
        try:
            self.connection.cancel()
            deadline = time.monotonic() + CANCEL_TIMEOUT
            while not ended and (left := deadline - time.monotonic()) > 0:
                pgconn.flush()
                if pgconn.is_busy():
                    select.select([pgconn.socket], [], [], left)
                    pgconn.consume_input()
                else:
                    ended = pgconn.get_result() is None
        except psycopg.Error:
            # The server has gone, and the interrupt is what counts.
            pass
        finally:
            if not ended:
                self.connection.close()

    def _translated(self, error: psycopg.Error) -> WeftError:
        primary = error.diag.message_primary or " ".join(str(error).split())
        detail = error.diag.message_detail
        message = f"{primary} ({detail})" if detail else primary
        hint = error.diag.message_hint or ""
        if self.connection.broken or error.sqlstate in ("57P01", "57P02", "57P03"):
            return Unreachable(f"lost the connection to {self.name}: {message}")
        if isinstance(error, psycopg.errors.QueryCanceled):
            return Unreachable(
                f"{self.name} did not answer: {message}", "Allow more time with --timeout."
            )
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return MissingRights(f"{self.name}: {message}", hint)
        missing = (
            psycopg.errors.UndefinedTable,
            psycopg.errors.UndefinedFunction,
            psycopg.errors.UndefinedColumn,
            psycopg.errors.InvalidSchemaName,
        )
        if isinstance(error, missing) and "weft" in primary:
            return NoExtension(
                f"{self.name}: {message}", UPGRADE_HINT if self.weft_extension else INSTALL_HINT
            )
        return Refused(f"{self.name}: {message}", hint, error.sqlstate)


@contextmanager
def _without_target() -> Iterator[None]:
    """Hides what the environment says of the subscriber while the publisher is connected to.

    libpq would fill what the subscription's connection string leaves out, and so send the password
    to another server, or take the subscriber for the publisher.
    """
    hidden = {name: os.environ.pop(name) for name in TARGET_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _connect(
    conninfo: str, application: str, timeout: float | None, password: str | None
) -> psycopg.Connection[dict[str, Any]]:
    extra: dict[str, Any] = {"fallback_application_name": application, "client_encoding": "utf8"}
    if password is not None:
        extra["password"] = password
    if timeout is not None:
        # libpq takes whole seconds, and raises 1 to 2.
        extra["connect_timeout"] = math.ceil(timeout)
    elif "connect_timeout" not in conninfo:
        extra["connect_timeout"] = CONNECT_TIMEOUT
    try:
        return psycopg.connect(conninfo, autocommit=True, row_factory=dict_row, **extra)
    except psycopg.OperationalError as error:
        message = str(error)
        # Before psycopg 3.2, it does not say which server.
        if "connection to server" not in message and error.pgconn is not None:
            message = error.pgconn.error_message.decode(errors="replace") or message
        # libpq's messages have several lines.
        message = " ".join(message.split())
        for prefix in ("connection failed: ", "connection is bad: "):
            message = message.removeprefix(prefix)
        if error.pgconn is not None and error.pgconn.needs_password:
            raise NeedsPassword(f"cannot connect: {message}") from None
        raise Unreachable(f"cannot connect: {message}") from None
    except psycopg.ProgrammingError:
        raise BadUsage("the connection string is not valid") from None
