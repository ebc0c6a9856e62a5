"""Replicates the schema changes of the server's own regression tests, and compares both sides.

Each file of src/test/regress runs in a database "regression", which publishes all tables with
ddl = all, and a subscription in the database "copy" applies everything.  Then schema and rows of
both are compared.  What is said of a file is about that file alone: it starts from a copy
of a server in which only the files that it needs have run.

Both databases are of one server, which is a synchronous standby of itself: a statement returns when
its change is applied.  Therefore both sides always have the same roles and tablespaces, which are
not replicated, even those that a file drops again.  If applying fails, the transaction is
skipped, and the file goes on.  The first failure is the one to look at; others may follow from it.

Few tables of these tests have a key.  Therefore an event trigger of the publisher makes the whole
row the replica identity of each table without one, but not if it has a type without equality.

A file has one of these outcomes:
    equal       schema and rows are the same, and nothing failed
    design      the same, but for objects that are not replicated, and statements that the
                publisher has refused because they cannot be replicated; or rows that the server
                does not apply with the rights of the table's owner
    different   anything else; test/ddl-regress.txt says why, as far as it is known
    error       the file, the server or the comparison did not come to an end

Started by "make check-ddl-regress", through setup.sh.  TESTS selects files.  Fails if a file that
test/ddl-regress.txt does not list is neither "equal" nor "design".
"""

import argparse
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from ddl_compare import Differences, compare_databases
from demo_common import DemoError, Server, offer_plugin, run, value_of

# Seconds after which a file is stopped.
TIME_LIMIT = 150
# How often to look for a failure of apply, in seconds, and after how many the file is given up:
# of those that can be skipped, and of the others.
INTERVAL = 0.05
MOST_SKIPS = 150
MOST_FAILURES = 20

PUBLISHER, SUBSCRIBER = "regression", "copy"

SETTINGS = """
    autovacuum = off
    fsync = off
    log_destination = 'jsonlog'
    log_directory = '{directory}/logs'
    log_filename = 'server.log'
    logging_collector = on
    max_prepared_transactions = 10
    max_worker_processes = 40
    shared_buffers = 64MB
    shared_preload_libraries = 'weft'
    synchronous_commit = local
    synchronous_standby_names = 'sub'
    wal_level = logical
    wal_retrieve_retry_interval = 50ms
    """

# Tests that need others, as the comments in the server's parallel_schedule say.
NEEDS = {
    "aggregates": ["create_aggregate"],
    "amutils": ["point", "lseg", "line", "box", "path", "polygon", "circle", "geometry",
                "create_index_spgist", "hash_index", "brin"],
    "copy2": ["create_type"],
    "event_trigger": ["create_am"],
    "geometry": ["point", "lseg", "line", "box", "path", "polygon", "circle"],
    "horology": ["date", "time", "timetz", "timestamp", "timestamptz", "interval"],
    "join": ["create_misc"],
    "multirangetypes": ["rangetypes"],
    "psql": ["create_am"],
    "select_parallel": ["create_misc"],
    "select_views": ["create_view"],
    "stats": ["stats_ext"],
    "with": ["create_misc"],
}  # fmt: skip

# Statements that the publisher refuses because they cannot be replicated, and errors that may
# follow.
REFUSED = re.compile(
    r"ERROR: +(cannot replicate|cannot PREPARE a transaction that has replicated|"
    # without a replica identity, or, in 18, one with a generated column
    r"cannot update table |cannot delete from table )"
)
FOLLOWS = re.compile(
    r"ERROR: .*(does not exist|current transaction is aborted|no partition of .* found for row)"
)

# How statements of the files are changed, each on a line of its own:
REWRITTEN = [
    # A statement that locks a catalog must not wait for the copy.  The walsender needs the same
    # catalog to decode it, so both would wait forever; the server's manual names this case.
    (re.compile(rb"^((?:VACUUM .*FULL|CLUSTER|REINDEX)\b.* pg_\w+.*;)", re.MULTILINE),
     rb"SET synchronous_commit = local;\n\1\nRESET synchronous_commit;"),
    # Privileges on databases are not replicated, so they are granted on both sides.
    (re.compile(rb"^((?:GRANT|REVOKE) .* ON DATABASE )regression( .*;)", re.MULTILINE),
     rb"\1regression\2\n\1copy\2"),
]  # fmt: skip

# Rows that the server itself does not apply, with the rights of the tables' owners.
NOT_ALLOWED = re.compile(
    r"permission denied for table |user .* cannot replicate into relation with row-level security"
)

# What the publisher does to the tests' tables; see above.  It changes the catalog, because ALTER
# TABLE would be a schema change to be replicated.
REPLICA_IDENTITY = """
CREATE FUNCTION weft.test_replica_identity() RETURNS event_trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET allow_system_table_mods = on
AS $$
BEGIN
    UPDATE pg_class c SET relreplident = 'f'
    FROM pg_event_trigger_ddl_commands() d
    WHERE d.classid = 'pg_class'::regclass AND c.oid = d.objid AND d.objsubid = 0
        AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.relreplident = 'd'
        AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
        AND NOT EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            AND t.typname IN ('json', 'xml', 'point', 'lseg', 'line', 'path', 'box', 'polygon'));
END $$;
CREATE EVENT TRIGGER weft_test_replica_identity ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE', 'CREATE SCHEMA')
    EXECUTE FUNCTION weft.test_replica_identity();
"""


# What the error context of a writer says.
CHANGE = re.compile(r"^applying schema change \d+ of role .*?: (.*)", re.DOTALL | re.MULTILINE)


@dataclass
class Failure:
    """An error with which apply has stopped."""

    message: str
    # of the schema change, if it was one
    statement: str
    lsn: str


@dataclass
class Result:
    file: str
    outcome: str = "error"
    seconds: float = 0
    schema: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    local: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    # errors of the publisher that the server's expected output does not have
    unexpected: list[str] = field(default_factory=list)
    tables: int = 0
    statements: int = 0
    drift: list[str] = field(default_factory=list)
    problem: str = ""


def rewritten(text: bytes) -> bytes:
    for pattern, replacement in REWRITTEN:
        text = pattern.sub(replacement, text)
    return text


def core_tests() -> Path:
    version = run("pg_config", "--version").split()[1]
    tests = Path(os.environ["WEFT_CACHE"], "sources", f"postgresql-{version}", "src/test/regress")
    if not tests.exists():
        run("tools/get-server.sh", os.environ["PG_MAJOR"], "source")
    return tests


def schedule(tests: Path) -> list[str]:
    names = []
    for line in (tests / "parallel_schedule").read_text().splitlines():
        if line.startswith("test: "):
            names += line.split()[1:]
    return names


class Tests:
    """The server's regression tests, and what they need to run."""

    def __init__(self, directory: Path):
        self.sources = core_tests()
        self.names = schedule(self.sources)
        self.libraries = directory / "lib"
        self.libraries.mkdir()
        self.build_library()

    def build_library(self) -> None:
        """Builds the functions that tests call; tests also use two modules of contrib."""
        headers = run(os.environ.get("PG_HEADERS", "pg_config"), "--includedir-server").strip()
        run("cc", "-shared", "-fPIC", "-O1", "-w", "-I", headers,
            "-o", str(self.libraries / "regress.so"), str(self.sources / "regress.c"))  # fmt: skip
        installed = Path(run("pg_config", "--pkglibdir").strip())
        for module in ("autoinc.so", "refint.so"):
            if (installed / module).exists():
                (self.libraries / module).symlink_to(installed / module)

    def needs(self, name: str) -> tuple[str, ...]:
        """The files that run before one, in order."""
        if name == "test_setup":
            return ()
        before = ["test_setup"]
        after_index = self.names.index(name) > self.names.index("create_index")
        if after_index and name not in ("create_index_spgist",):
            before.append("create_index")
        return (*before, *NEEDS.get(name, []))

    def environment(self, server: Server) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("LC_")},
            "LC_MESSAGES": "C",
            "PGAPPNAME": "pg_regress",
            "PGDATESTYLE": "Postgres, MDY",
            "PGHOST": str(server.directory),
            "PGOPTIONS": "-c intervalstyle=postgres_verbose",
            "PGPORT": "5432",
            "PGTZ": "America/Los_Angeles",
            "PGUSER": "postgres",
            "PG_ABS_BUILDDIR": str(server.directory),
            "PG_ABS_SRCDIR": str(self.sources),
            "PG_DLSUFFIX": ".so",
            "PG_LIBDIR": str(self.libraries),
        }

    def expected(self, name: str, output: Path) -> list[str]:
        """The lines that a file prints and the server's expected output does not have."""
        best: list[str] | None = None
        for file in [name, *(f"{name}_{number}" for number in range(1, 10))]:
            path = self.sources / "expected" / f"{file}.out"
            if not path.exists():
                continue
            diff = subprocess.run(
                ["diff", "-w", "-U0", str(path), str(output)], capture_output=True, text=True,
                errors="replace",
            ).stdout.splitlines()  # fmt: skip
            if best is None or len(diff) < len(best):
                best = diff
        return [line for line in best or [] if line.startswith("+") and "ERROR:" in line]


class Trial:
    """One server with both databases."""

    def __init__(self, directory: Path, tests: Tests):
        self.tests = tests
        self.server = Server(directory, "")
        # demo_common's settings are for servers that are measured
        self.server.settings = (
            SETTINGS.format(directory=directory)
            + offer_plugin()
            + f"\nlisten_addresses = ''\nunix_socket_directories = '{directory}'\n"
        )
        self.skipped: set[str] = set()
        self.not_skipped = 0
        self.stuck = ""
        self.ended = threading.Event()

    def conninfo(self, database: str) -> str:
        return self.server.conninfo.replace("dbname=postgres", f"dbname={database}")

    def connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self.conninfo(database), autocommit=True)

    def create(self, plugin: str) -> None:
        self.server.create()
        self.make_directories()
        self.server.start()
        with self.server.connect() as connection:
            for name in (PUBLISHER, SUBSCRIBER):
                connection.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
            for setting in ("bytea_output = 'hex'", "lc_messages = 'C'", "lc_monetary = 'C'",
                            "lc_numeric = 'C'", "lc_time = 'C'", "synchronous_commit = on",
                            "timezone_abbreviations = 'Default'"):  # fmt: skip
                connection.execute(f"ALTER DATABASE {PUBLISHER} SET {setting}".encode())
        with self.connect(PUBLISHER) as publisher:
            publisher.execute("SET synchronous_commit = local")
            publisher.execute("CREATE EXTENSION weft")
            publisher.execute(REPLICA_IDENTITY)
            publisher.execute("CREATE PUBLICATION everything FOR ALL TABLES WITH (ddl = all)")
            publisher.execute("SELECT pg_create_logical_replication_slot('sub', %s)", (plugin,))
        with self.connect(SUBSCRIBER) as subscriber:
            subscriber.execute("CREATE EXTENSION weft")
            address = self.conninfo(PUBLISHER)
            subscriber.execute(
                f"CREATE SUBSCRIPTION sub CONNECTION '{address}' PUBLICATION everything"
                " WITH (create_slot = false, copy_data = false, streaming = parallel)".encode()
            )

    def create_from(self, other: Path) -> None:
        run("cp", "-a", "--reflink=auto", str(other), str(self.server.directory))
        shutil.rmtree(self.server.directory / "logs", ignore_errors=True)
        self.server.configure()
        self.make_directories()
        self.server.start()
        # the place of the publisher has changed
        with self.connect(SUBSCRIBER) as subscriber:
            address = self.conninfo(PUBLISHER)
            subscriber.execute(f"ALTER SUBSCRIPTION sub CONNECTION '{address}'".encode())

    def make_directories(self) -> None:
        for name in ("logs", "results"):
            (self.server.directory / name).mkdir(exist_ok=True)

    # --- failures of apply ---

    def log_entries(self) -> list[dict[str, Any]]:
        result = []
        for file in (self.server.directory / "logs").glob("*.json"):
            for line in file.read_text(errors="replace").splitlines():
                with suppress(ValueError):
                    result.append(json.loads(line))
        return result

    def failures(self) -> list[Failure]:
        result: list[Failure] = []
        for entry in self.log_entries():
            context = entry.get("context", "")
            if entry.get("error_severity") not in ("ERROR", "FATAL") or not (
                "weft" in entry.get("backend_type", "")
                or "logical replication" in entry.get("backend_type", "")
            ):
                continue
            # the end of the server, misspeculation, and a publisher that has moved
            if entry.get("state_code") in ("57P01", "40001", "40P01", "08006"):
                continue
            change = re.search(
                r"^applying schema change \d+ of role .*?: (.*)", context, re.S | re.M
            )
            place = re.search(r"finished at ([0-9A-F]+/[0-9A-F]+)", context)
            place = place or re.search(r"lsn = '([0-9A-F/]+)'", entry.get("hint", ""))
            failure = Failure(
                entry["message"],
                change[1].partition("\nprocessing remote data")[0] if change else "",
                place[1] if place else "",
            )
            if failure not in result:
                result.append(failure)
        return result

    def skip_failures(self) -> None:
        """Skips what cannot be applied until the trial ends; a thread of its own."""
        last = None
        try:
            with self.connect(SUBSCRIBER) as subscriber:
                while not self.ended.wait(INTERVAL):
                    row = subscriber.execute(
                        "SELECT last_error_time, last_error_lsn::text, last_error"
                        " FROM weft.stat_subscription WHERE subname = 'sub'"
                    ).fetchone()
                    if row is None or row[0] is None or row[0] == last:
                        continue
                    last = row[0]
                    self.skip(subscriber, row[1], row[2])
        except psycopg.Error as error:
            self.stuck = self.stuck or f"watching apply: {error}"

    def skip(self, subscriber: psycopg.Connection[Any], lsn: str | None, message: str) -> None:
        if lsn is None:
            self.not_skipped += 1
            if self.not_skipped > MOST_FAILURES:
                self.stuck = f"cannot be skipped: {message}"
            return
        self.skipped.add(lsn)
        if len(self.skipped) > MOST_SKIPS:
            self.stuck = f"more than {MOST_SKIPS} transactions could not be applied"
            return
        with suppress(psycopg.errors.ObjectInUse, psycopg.errors.InvalidParameterValue):
            subscriber.execute(f"ALTER SUBSCRIPTION sub SKIP (lsn = '{lsn}')".encode())

    # --- running ---

    def run_file(self, name: str) -> str:
        """Runs a file; returns what went wrong."""
        output = self.server.directory / "results" / f"{name}.out"
        command = ["psql", "-X", "-a", "-q", "-d", PUBLISHER, "-v", "HIDE_TABLEAM=on",
                   "-v", "HIDE_TOAST_COMPRESSION=on"]  # fmt: skip
        source = self.tests.sources / "sql" / f"{name}.sql"
        copy = self.server.directory / "results" / f"{name}.sql"
        self.ended.clear()
        watcher = threading.Thread(target=self.skip_failures, daemon=True)
        watcher.start()
        try:
            copy.write_bytes(rewritten(source.read_bytes()))
            with copy.open() as stdin, output.open("w") as file:
                process = subprocess.Popen(
                    command, stdin=stdin, stdout=file, stderr=subprocess.STDOUT,
                    env=self.tests.environment(self.server),
                )  # fmt: skip
                problem = self.await_end(process)
            return problem or self.await_apply()
        finally:
            self.ended.set()
            watcher.join()

    def await_end(self, process: subprocess.Popen) -> str:
        end = time.monotonic() + TIME_LIMIT
        while process.poll() is None:
            if self.stuck or time.monotonic() > end:
                process.kill()
                process.wait()
                self.end_sessions()
                return self.stuck or f"stopped after {TIME_LIMIT} seconds"
            time.sleep(INTERVAL)
        return ""

    def end_sessions(self) -> None:
        with suppress(psycopg.Error), self.server.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = %s AND backend_type = 'client backend'", (PUBLISHER,)
            )  # fmt: skip

    def await_apply(self) -> str:
        end = time.monotonic() + 60
        error: Exception | None = None
        while time.monotonic() < end and not self.stuck:
            try:
                with self.connect(SUBSCRIBER) as subscriber:
                    subscriber.execute("SELECT weft.wait_for_subscription('sub', '15s')")
                return ""
            except psycopg.Error as failure:
                error = failure
                time.sleep(INTERVAL)
        return self.stuck or f"the subscriber did not catch up: {error}"

    def crashes(self) -> list[str]:
        texts = [
            file.read_text(errors="replace") for file in (self.server.directory / "logs").iterdir()
        ]
        found = re.findall(r"TRAP: [^\n\"]*|[^\n\"]*was terminated by signal[^\n\"]*|PANIC[^\n]*",
                           "\n".join(texts))  # fmt: skip
        return [text for text in found if "signal 15" not in text]

    def drift(self) -> list[str]:
        """What weft.schema_differences() says, if there is such a function."""
        with self.connect(SUBSCRIBER) as subscriber:
            if value_of(subscriber, "SELECT to_regproc('weft.schema_differences') IS NULL"):
                return []
            return [
                " ".join(map(str, row))
                for row in subscriber.execute(
                    "SELECT object_type, object, difference FROM weft.schema_differences('sub')"
                    " WHERE difference <> 'replica identity'"
                )
            ]

    def statements(self) -> int:
        with self.connect(SUBSCRIBER) as subscriber:
            return int(value_of(subscriber, "SELECT count(*) FROM weft.ddl_applied"))

    def stop(self) -> None:
        self.server.stop()


class Bases:
    """Stopped servers from which files start, made when they are first needed."""

    def __init__(self, directory: Path, tests: Tests, plugin: str):
        self.directory = directory
        self.tests = tests
        self.plugin = plugin
        self.lock = threading.Lock()
        self.made: dict[tuple[str, ...], tuple[Path, Differences]] = {}

    def get(self, files: tuple[str, ...]) -> tuple[Path, Differences]:
        """The directory of a server in which files have run, and what differs in it."""
        with self.lock:
            return self.find(files)

    def find(self, files: tuple[str, ...]) -> tuple[Path, Differences]:
        if files not in self.made:
            before = self.find(files[:-1])[0] if files else None
            trial = Trial(self.directory / f"b{len(self.made)}", self.tests)
            if before:
                trial.create_from(before)
            else:
                trial.create(self.plugin)
            try:
                problem = trial.run_file(files[-1]) if files else ""
                if problem:
                    print(f"warning: {files[-1]}, which others need: {problem}", file=sys.stderr)
                differences, _ = compare_databases(
                    trial.conninfo(PUBLISHER), trial.conninfo(SUBSCRIBER)
                )
            finally:
                trial.stop()
            self.made[files] = (trial.server.directory, differences)
        return self.made[files]


def outcome_of(result: Result) -> str:
    failed = [each for each in result.failures if not NOT_ALLOWED.match(each.message)]
    unexpected = [
        line for line in result.unexpected if not (result.refused and FOLLOWS.match(line))
    ]
    # rows that were not applied are missing
    rows = result.rows if len(failed) == len(result.failures) else []
    if result.schema or rows or failed or unexpected:
        return "different"
    return "design" if result.local or result.refused or result.failures else "equal"


def examine(name: str, trial: Trial, inherited: Differences, result: Result) -> None:
    """Runs a file in a server that has been started, and says what came of it."""
    before = trial.statements()
    result.problem = trial.run_file(name)
    output = trial.server.directory / "results" / f"{name}.out"
    result.failures = trial.failures()
    result.refused = sorted(
        {line for line in output.read_text(errors="replace").splitlines() if REFUSED.match(line)}
    )
    result.unexpected = [
        line[1:] for line in trial.tests.expected(name, output) if not REFUSED.match(line[1:])
    ]
    if crashes := trial.crashes():
        result.problem = f"crash: {crashes[0]}"
    differences, result.tables = compare_databases(
        trial.conninfo(PUBLISHER), trial.conninfo(SUBSCRIBER)
    )
    differences = differences.without(inherited)
    result.schema, result.rows, result.local = (
        differences.schema, differences.rows, differences.local,
    )  # fmt: skip
    result.statements = trial.statements() - before
    result.drift = trial.drift()
    if result.problem:
        return
    result.outcome = outcome_of(result)


def run_one(name: str, directory: Path, bases: Bases, keep: bool) -> Result:
    result = Result(name)
    start = time.monotonic()
    trial = Trial(directory / name, bases.tests)
    # one that an earlier run has kept
    shutil.rmtree(trial.server.directory, ignore_errors=True)
    try:
        base, inherited = bases.get(bases.tests.needs(name))
        trial.create_from(base)
        try:
            examine(name, trial, inherited, result)
        finally:
            trial.stop()
    except (DemoError, psycopg.Error, OSError) as error:
        result.problem = result.problem or f"{type(error).__name__}: {error}".strip()
    if not keep or result.outcome in ("equal", "design"):
        shutil.rmtree(trial.server.directory, ignore_errors=True)
    result.seconds = round(time.monotonic() - start, 1)
    print(line_of(result), flush=True)
    return result


def line_of(result: Result) -> str:
    parts = [
        f"{len(result.failures)} failed" if result.failures else "",
        f"schema {len(result.schema)}" if result.schema else "",
        f"rows {len(result.rows)}" if result.rows else "",
        f"refused {len(result.refused)}" if result.refused else "",
        f"not replicated {len(result.local)}" if result.local else "",
        f"other errors {len(result.unexpected)}" if result.unexpected else "",
        f"drift {len(result.drift)}" if result.drift else "",
        result.problem.splitlines()[0] if result.problem else "",
    ]
    return (
        f"{result.outcome:<10} {result.file:<24} {result.seconds:6.1f} s {result.statements:5} "
        + ", ".join(part for part in parts if part)
    )


def known_differences() -> dict[str, str]:
    """Why files are not equal, by name, for this major version."""
    result = {}
    path = Path("test/ddl-regress.txt")
    for line in path.read_text().splitlines() if path.exists() else []:
        if line and not line.startswith("#"):
            major, name, reason = line.split(maxsplit=2)
            if major in ("any", os.environ["PG_MAJOR"]):
                result[name] = reason
    return result


def selected(names: list[str], patterns: list[str]) -> list[str]:
    return [name for name in names if any(fnmatch.fnmatch(name, p) for p in patterns)]


json_lock = threading.Lock()


def write_json(path: Path, result: Result) -> None:
    """Adds a result to those of other files."""
    with json_lock:
        stored = json.loads(path.read_text()) if path.exists() else {}
        stored[result.file] = asdict(result)
        path.write_text(json.dumps(stored, indent=1) + "\n")


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("pattern", nargs="*", help="files, by name (default: TESTS, or all)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="add the results to this file")
    parser.add_argument("--missing", action="store_true", help="only files that --json lacks")
    parser.add_argument("--plugin", default="weft", choices=["weft", "pgoutput"])
    parser.add_argument("--keep", type=Path, help="keep servers of files that differ here")
    parser.add_argument("--limit", type=float, default=3600, help="start no file after SECONDS")
    arguments = parser.parse_args()
    arguments.pattern = arguments.pattern or os.environ.get("TESTS", "").split() or ["*"]
    return arguments


def run_all(directory: Path, arguments: argparse.Namespace) -> list[Result]:
    tests = Tests(directory)
    bases = Bases(directory, tests, arguments.plugin)
    end = time.monotonic() + arguments.limit
    place = arguments.keep or directory
    place.mkdir(exist_ok=True, parents=True)

    def job(name: str) -> Result | None:
        if time.monotonic() > end:
            return None
        result = run_one(name, place, bases, arguments.keep is not None)
        if arguments.json:
            write_json(arguments.json, result)
        return result

    names = selected(tests.names, arguments.pattern)
    if arguments.missing and arguments.json.exists():
        known = json.loads(arguments.json.read_text())
        names = [name for name in names if name not in known]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        return [result for result in pool.map(job, names) if result]


def main() -> int:
    arguments = arguments_of()
    with tempfile.TemporaryDirectory(prefix="weft-ddl-", ignore_cleanup_errors=True) as name:
        results = run_all(Path(name), arguments)
    known = known_differences()
    good = [result for result in results if result.outcome in ("equal", "design")]
    bad = [result for result in results if result not in good]
    count = Counter(result.outcome for result in results)
    print()
    print(", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items())))
    for result in bad:
        if result.file in known:
            print(f"known: {result.file}: {known[result.file]}")
    for result in good:
        if result.file in known:
            print(f"better than known: {result.file}")
    failed = [result.file for result in bad if result.file not in known]
    if failed:
        print("failed:", *failed)
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
