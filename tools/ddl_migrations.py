"""Replicates real migrations: those of Django's own applications, and of Wagtail.

The migrations run on a publisher with ddl = all while a session changes rows in every table that
there is.  Then the last migrations of some applications are taken back, and applied again.  After
each step, the subscriber's schema and rows must be the publisher's.

Started by "make check-migrations", through setup.sh.  The packages are installed in an environment
of their own in the cache, with the versions that tools/requirements-migrations.txt names.
"""

import hashlib
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from ddl_compare import Differences, compare_databases, identifier
from demo_common import DemoError, Server, offer_plugin, run, value_of

REQUIREMENTS = Path("tools/requirements-migrations.txt")

SETTINGS = """
    fsync = off
    max_worker_processes = 32
    shared_preload_libraries = 'weft'
    wal_level = logical
    wal_retrieve_retry_interval = 200ms
    """

# Applications whose migrations can be taken back.
REVERSED = ["admin", "sessions", "wagtailforms", "wagtailredirects", "wagtailsearchpromotions"]

# Seconds that the subscriber may take to catch up.
PATIENCE = 120

DJANGO_SETTINGS = """
SECRET_KEY = "x"
DATABASES = {{"default": {{
    "ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres",
    "HOST": {host!r}, "PORT": "5432",
}}}}
INSTALLED_APPS = [
    "wagtail.contrib.forms", "wagtail.contrib.redirects", "wagtail.contrib.settings",
    "wagtail.contrib.search_promotions", "wagtail.contrib.simple_translation",
    "wagtail.locales", "wagtail.embeds", "wagtail.sites", "wagtail.users", "wagtail.snippets",
    "wagtail.documents", "wagtail.images", "wagtail.search", "wagtail.admin", "wagtail",
    "modelcluster", "taggit",
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
    "django.contrib.flatpages", "django.contrib.messages", "django.contrib.postgres",
    "django.contrib.redirects", "django.contrib.sessions", "django.contrib.sites",
    "django.contrib.staticfiles",
]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
SITE_ID = 1
STATIC_URL = "/static/"
USE_TZ = True
WAGTAIL_SITE_NAME = "x"
WAGTAILADMIN_BASE_URL = "http://localhost"
WAGTAIL_I18N_ENABLED = True
LANGUAGE_CODE = "en"
WAGTAIL_CONTENT_LANGUAGES = LANGUAGES = [("en", "English")]
MIDDLEWARE = []
TEMPLATES = [{{
    "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
    "OPTIONS": {{"context_processors": ["django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
        "django.template.context_processors.request"]}},
}}]
SILENCED_SYSTEM_CHECKS = ["admin.E408", "admin.E409", "admin.E410"]
"""

TABLES = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname = 'public'
"""
COLUMNS = """
SELECT a.attname, format_type(a.atttypid, NULL), a.atttypmod,
    (SELECT f.confrelid::regclass::text || ' ' || quote_ident(r.attname) FROM pg_constraint f
        JOIN pg_attribute r ON r.attrelid = f.confrelid AND r.attnum = f.confkey[1]
        WHERE f.conrelid = a.attrelid AND f.contype = 'f' AND f.conkey = ARRAY[a.attnum] LIMIT 1)
FROM pg_attribute a
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attnotnull
    AND NOT a.atthasdef AND a.attidentity = ''
"""


def environment_of() -> Path:
    """The Python environment with the packages, made if it does not exist."""
    requirements = REQUIREMENTS.read_bytes()
    digest = hashlib.sha256(sys.version.encode() + requirements).hexdigest()[:8]
    path = Path(os.environ["WEFT_CACHE"], f"migrations-{digest}")
    if not (path / ".complete").exists():
        print(f"installing the packages of {REQUIREMENTS} in {path}", flush=True)
        run("python3", "-m", "venv", "--clear", str(path))
        run(str(path / "bin/pip"), "install", "-q", "-r", str(REQUIREMENTS))
        (path / ".complete").touch()
    return path


def value_for(kind: str, length: int, reference: str | None) -> str:
    """An SQL expression for a column that must not be null."""
    if reference:
        table, column = reference.rsplit(" ", 1)
        return f"(SELECT {column} FROM {table} ORDER BY random() LIMIT 1)"
    if kind.startswith(("character", "text")):
        return f"'{random.randbytes(8).hex()[: max(1, length - 4) if length > 0 else 16]}'"
    return {
        "boolean": "true",
        "date": "current_date",
        "inet": "'127.0.0.1'",
        "json": "'{}'",
        "jsonb": "'{}'",
        "timestamp with time zone": "clock_timestamp()",
        "timestamp without time zone": "clock_timestamp()",
        "tsvector": "''",
        "uuid": "gen_random_uuid()",
    }.get(kind, str(random.randrange(1, 30000)))


class Load(threading.Thread):
    """Changes rows while migrations run.

    Migrations compute with the rows that they find, so rows of most tables are deleted in the
    transaction that has inserted them, and others are updated to what they are.  Rows of the
    load's own table stay.  It never waits long for a lock: a migration must not be the victim of a
    deadlock.
    """

    def __init__(self, server: Server):
        super().__init__(daemon=True)
        self.server = server
        self.ended = threading.Event()
        self.changed: dict[str, int] = {}
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            with self.server.connect() as connection:
                connection.execute("SET lock_timeout = '100ms'")
                while not self.ended.wait(0.002):
                    with suppress(psycopg.Error):
                        self.change(connection)
        except BaseException as error:
            self.problem = error

    def change(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute("INSERT INTO load (v) VALUES (%s)", (random.random(),))
        tables = connection.execute(TABLES).fetchall()
        schema, name = random.choice(tables)
        table = f"{identifier(schema)}.{identifier(name)}"
        columns = connection.execute(COLUMNS, (table,)).fetchall()
        names = ", ".join(identifier(column[0]) for column in columns)
        values = ", ".join(value_for(column[1], column[2], column[3]) for column in columns)
        insert = f"INSERT INTO {table} ({names}) VALUES ({values})" if columns else (
            f"INSERT INTO {table} DEFAULT VALUES"
        )  # fmt: skip
        with suppress(psycopg.Error), connection.transaction():
            row = connection.execute(f"{insert} RETURNING ctid::text".encode()).fetchone()
            connection.execute(f"DELETE FROM {table} WHERE ctid = %s".encode(), row)
            self.changed[name] = self.changed.get(name, 0) + 1
        with suppress(psycopg.Error), connection.transaction():
            column = connection.execute(
                "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = %s::regclass"
                " AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attidentity <> 'a'"
                " ORDER BY random() LIMIT 1", (table,)
            ).fetchone()  # fmt: skip
            if column:
                connection.execute(f"UPDATE {table} SET {column[0]} = {column[0]}".encode())

    def stop(self) -> None:
        self.ended.set()
        self.join()
        if self.problem:
            raise self.problem


class Migrations:
    """A publisher, on which migrations run, and its subscriber."""

    def __init__(self, directory: Path, packages: Path):
        self.directory = directory
        self.packages = packages
        self.publisher = Server(directory / "publisher", SETTINGS + offer_plugin())
        self.subscriber = Server(directory / "subscriber", SETTINGS + offer_plugin())

    def start(self) -> None:
        for server in (self.publisher, self.subscriber):
            server.create()
            server.start()
            with server.connect() as connection:
                connection.execute("CREATE EXTENSION weft")
        with self.publisher.connect() as connection:
            connection.execute("CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = all)")
        with self.subscriber.connect() as connection:
            connection.execute(
                f"CREATE SUBSCRIPTION sub CONNECTION '{self.publisher.conninfo}'"
                " PUBLICATION pub WITH (streaming = parallel)".encode()
            )
        with self.publisher.connect() as connection:
            connection.execute("CREATE TABLE load (id bigserial PRIMARY KEY, v float8)")
        (self.directory / "migration_settings.py").write_text(
            DJANGO_SETTINGS.format(host=str(self.publisher.directory))
        )

    def stop(self) -> None:
        for server in (self.subscriber, self.publisher):
            server.stop()

    def django(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self.packages / "bin/python"), "-m", "django", *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=self.directory,
            env=os.environ | {
                "DJANGO_SETTINGS_MODULE": "migration_settings",
                "PYTHONPATH": str(self.directory), "PYTHONWARNINGS": "ignore",
            },
        )  # fmt: skip
        if done.returncode != 0:
            output = done.stdout[-2000:] + done.stderr[-4000:]
            raise DemoError(f"django {' '.join(arguments)}:\n{output}")
        return done.stdout

    def await_subscriber(self) -> str:
        """Returns why the subscriber has not caught up, if it has not."""
        with self.subscriber.connect() as connection:
            try:
                connection.execute(
                    f"SELECT weft.wait_for_subscription('sub', '{PATIENCE} seconds')".encode()
                )
            except psycopg.Error as error:
                last = value_of(connection, "SELECT last_error FROM weft.stat_subscription")
                return f"{error}\n{last or ''}"
        return ""

    def drift(self) -> list[str]:
        with self.subscriber.connect() as connection:
            if value_of(connection, "SELECT to_regproc('weft.schema_differences') IS NULL"):
                return []
            return [
                " ".join(map(str, row))
                for row in connection.execute("SELECT * FROM weft.schema_differences('sub')")
            ]

    def step(self, what: str, *commands: tuple[str, ...]) -> bool:
        """Runs commands of Django under load, and compares both sides; True if they are equal."""
        start = time.monotonic()
        load = Load(self.publisher)
        load.start()
        output = ""
        try:
            for command in commands:
                output += self.django(*command)
        finally:
            load.stop()
        seconds = time.monotonic() - start
        problem = self.await_subscriber()
        differences, tables = compare_databases(self.publisher.conninfo, self.subscriber.conninfo)
        drift = self.drift()
        good = not (problem or differences.schema or differences.rows or drift)
        migrations = len(re.findall(r"\.\.\. OK|\.\.\. .*OK", output))
        with self.subscriber.connect() as connection:
            statements = value_of(connection, "SELECT count(*) FROM weft.ddl_applied")
        print(
            f"{'ok' if good else 'FAILED':<7} {what}: {migrations} migrations in {seconds:.0f} s,"
            f" {statements} schema changes so far, {tables} tables,"
            f" rows changed meanwhile in {len(load.changed)} tables,"
            f" {sum(load.changed.values())} times",
            flush=True,
        )
        self.show(problem, differences, drift)
        return good

    def show(self, problem: str, differences: Differences, drift: list[str]) -> None:
        for line in [problem, *differences.schema, *differences.rows, *drift]:
            if line:
                print("    " + line)
            for text in differences.texts.get(line, ()):
                print("        " + text.replace("\n", "\n        "))
        if problem:
            print("\n".join(self.subscriber.complaints()))


def run_steps(migrations: Migrations) -> list[bool]:
    back = [("migrate", "--no-input", name, "zero") for name in REVERSED]
    return [
        migrations.step("all migrations", ("migrate", "--no-input")),
        migrations.step("taken back", *back),
        migrations.step("applied again", ("migrate", "--no-input")),
    ]


def main() -> int:
    packages = environment_of()
    with tempfile.TemporaryDirectory(prefix="weft-mig-", ignore_cleanup_errors=True) as name:
        migrations = Migrations(Path(name), packages)
        try:
            migrations.start()
            results = run_steps(migrations)
        finally:
            migrations.stop()
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
