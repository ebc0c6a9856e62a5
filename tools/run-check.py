#!/usr/bin/env python
"""Runs test suites and summarizes the results at the end.

Started by "make check" through setup.sh, in the copy of the tree.  TESTS, a list of patterns,
selects test files by path or name.
"""

import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from check_docs import pages_to_run

# Servers partly wait for each other, so three tests at once keep two cores busy.
PARALLEL_TESTS = 3
# Data directories that TAP tests copy, since initdb takes long; most tests have fewer servers.
TEMPLATES = 5
# Seconds after which a test file is assumed to hang.
TIME_LIMIT = 900
# The same for programs that replicate the schema changes of others.
LONG_TIME_LIMIT = 5400

# The first major version that Weft supports.
OLDEST_MAJOR = 17

TREE = Path.cwd()
LOG = TREE.parent / "log"
SERVER = TREE.parent / "server"
SECOND = f"{TREE.parent}/second-"
PG_CONFIG = os.environ["PG_CONFIG"]
PG_MAJOR = os.environ["PG_MAJOR"]


def pg_config(what: str) -> str:
    return subprocess.check_output([PG_CONFIG, what], text=True).strip()


PGXS = Path(pg_config("--pgxs")).parent.parent.parent

# Suites that run some of the TAP tests once more, in another mode.
SHORTER = {"WEFT_CRASHES": "2", "WEFT_SEEDS": "3"}
MODES = {
    "tap-streamed": ({"WEFT_STREAMED": "1", **SHORTER}, {"004_crash"}),
    "tap-native": (
        {"WEFT_TEST_NATIVE": "1", **SHORTER},
        {"001_basic", "002_features", "003_random", "005_deadlock", "010_subscriptions"},
    ),
}

results: list[tuple[str, str, str]] = []
# of failed tests, for the last lines of the output
reasons: dict[str, list[str]] = {}
running: set[subprocess.Popen] = set()
interrupted = False


def report(status: str, suite: str, name: str, remark: str = "") -> None:
    results.append((status, suite, name))
    print(f"{status:<7} {suite:<12} {name} {remark}".rstrip(), flush=True)


def selected(files: Iterable[Path]) -> list[Path]:
    patterns = os.environ.get("TESTS", "").split() or ["*"]
    return sorted(
        file
        for file in files
        if any(
            fnmatch.fnmatch(name, pattern)
            for pattern in patterns
            for name in (str(file), file.name, file.stem)
        )
    )


def run(command: list, output: Path, limit: float = TIME_LIMIT, **options: Any) -> int:
    """Runs a command in a session of its own, so that all processes that it starts end with it."""
    if interrupted:
        return -1
    with output.open("w") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **options,
        )
        running.add(process)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            stop(process)
            file.write(f"stopped after {limit} seconds\n")
            return -1
        finally:
            running.discard(process)


def stop(process: subprocess.Popen) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(15)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def end_servers() -> None:
    """Ends servers that failed tests have left.  Only this program uses this copy of the server."""
    for link in Path("/proc").glob("[0-9]*/exe"):
        try:
            if link.readlink().is_relative_to(SERVER) or SECOND in str(link.readlink()):
                os.kill(int(link.parent.name), signal.SIGKILL)
        except OSError:
            continue


def run_static() -> None:
    if os.environ.get("TESTS"):
        return
    for name, folder, command in (
        ("includes", ".", ["python", "tools/check-includes.py"]),
        ("ruff", ".", ["ruff", "check", "--quiet", "--no-cache", "."]),
        ("ruff-format", ".", ["ruff", "format", "--quiet", "--check", "--no-cache", "."]),
        ("mypy", ".", ["mypy"]),
        ("mypy-cli", "cli", ["mypy"]),
        ("docs", ".", ["python", "tools/check_docs.py"]),
        ("mypy-monitoring", ".", ["mypy", "--strict", "monitoring"]),
        ("monitoring", ".", ["python", "monitoring/generate.py", "--check"]),
        ("pytest", ".", ["pytest", "-q", "bench/tests", "tools/tests"]),
    ):
        output = LOG / f"static-{name}"
        failed = run(command, output, cwd=folder)
        report("FAILED" if failed else "ok", "static", name)
        if failed:
            print(output.read_text())


def run_sql_suite(suite: str, program: str, files: str) -> None:
    """Runs regression and isolation tests; the result of each is in the output of pg_regress."""
    names = [file.stem for file in selected(Path("test", suite).glob(files))]
    if not names:
        return
    directory = LOG / suite
    directory.mkdir()
    output = directory / "output"
    failed = run(
        [
            PGXS / "src/test" / program,
            f"--inputdir=test/{suite}",
            f"--outputdir={directory}",
            f"--bindir={pg_config('--bindir')}",
            f"--temp-instance={directory}/instance",
            "--temp-config=test/weft.conf",
            "--encoding=UTF8",
            "--no-locale",
            *names,
        ],
        output,
    )
    text = output.read_text()
    for bad, name, duration in re.findall(
        r"^(not )?ok \d+ +[-+] (\S+) +(\d+) ms$", text, re.MULTILINE
    ):
        names.remove(name)
        report("FAILED" if bad else "ok", suite, name, f"({int(duration) / 1000:.1f} s)")
    for name in names:
        report("FAILED", suite, name, "(did not run)")
    if failed:
        diffs = directory / "regression.diffs"
        lines = (diffs if diffs.exists() else output).read_text(errors="replace").splitlines()
        print("\n".join(lines[:100] if diffs.exists() else lines[-20:]))
    else:
        shutil.rmtree(directory / "instance", ignore_errors=True)


def what_failed(output: str, most: int = 60, end: int = 100) -> list[str]:
    """The failed tests, each with the lines around it, and the end of the output."""
    lines = output.splitlines()
    wanted: set[int] = set()
    for number, line in enumerate(lines):
        if line.startswith("not ok"):
            wanted.update(range(number - 3, number + 20))
    shown = [number for number in range(len(lines) - end) if number in wanted][:most]
    return [lines[number] for number in shown] + lines[-end:]


def what_ended(log: str, most: int = 12) -> list[str]:
    """What a test has written to its log after its last check, but for what it did: why it died."""
    lines = re.split(r"^\[.*?\]\(.*?\) (?:not )?ok .*\n", log, flags=re.MULTILINE)[-1].splitlines()
    own = re.compile(
        r"### |# |\[.*?\]\(.*?\) |(?:waiting for )?server |\s*$"
        # what a new server is announced with
        r"|(?:Name|Version|\w+ directory|Connection string|Log file): "
    )
    return [line for line in lines if not own.match(line)][:most]


def what_servers_said(log: Path, test: str, most: int = 20) -> list[str]:
    """The end of what the servers of a test have logged, and whatever says that one has crashed."""
    shown = []
    crash = re.compile(r"TRAP: |PANIC: |terminated by signal")
    for file in sorted(log.glob(f"{test}_*.log")):
        lines = file.read_text(errors="replace").splitlines()
        lines = [line[:300] for line in lines if "STATEMENT: " not in line]
        crashes = [line for line in lines[:-most] if crash.search(line)]
        shown += [f"{file.name}:", *crashes[:most], *lines[-most:]]
    return shown


def run_perl_test(suite: str, file: Path, directory: Path, environment: dict) -> None:
    output = directory / f"{file.stem}.out"
    # Tests that run at the same time may use the same file names.
    environment = {**environment, "TESTDATADIR": str(directory / file.stem)}
    start = time.monotonic()
    code = run(["perl", file], output, env=environment)
    duration = f"({time.monotonic() - start:.1f} s)"
    text = output.read_text(errors="replace")
    if skip := re.match(r"1\.\.0 # SKIP (.*)", text):
        report("skipped", suite, file.stem, f"({skip[1]})")
    elif code == 0:
        report("ok", suite, file.stem, duration)
    else:
        report("FAILED", suite, file.stem, duration)
        log = directory / "log" / f"regress_log_{file.stem}"
        failed = [line for line in text.splitlines() if line.startswith("not ok")]
        ended = []
        if log.exists() and not re.search(r"^1\.\.\d+$", text, re.MULTILINE):
            ended = what_ended(log.read_text(errors="replace"))
        reasons[f"{suite}/{file.stem}"] = failed[:2] + ended[:2]
        said = what_servers_said(directory / "log", file.stem)
        print("\n".join("    " + line for line in ended + what_failed(text) + said), flush=True)


def make_templates() -> Path:
    """Makes data directories as PostgreSQL::Test::Cluster would; returns the folder."""
    folder = LOG / "templates"
    if not folder.exists():
        folder.mkdir()
        initdb = Path(pg_config("--bindir")) / "initdb"
        environment = {k: v for k, v in os.environ.items() if k not in ("LANGUAGE", "LC_ALL")}
        environment["LC_MESSAGES"] = "C"
        for number in range(TEMPLATES):
            subprocess.check_call(
                [initdb, "-D", folder / str(number), "-A", "trust", "-N"],
                stdout=subprocess.DEVNULL,
                env=environment,
            )
    return folder


def run_perl_suite(suite: str, files: list[Path], settings: dict) -> None:
    if not files:
        return
    directory = LOG / suite
    directory.mkdir(exist_ok=True)
    makefile = (PGXS / "src/Makefile.global").read_text()
    options = re.findall(r"^(with_icu|enable_injection_points)\s*=\s*(\S+)", makefile, re.M)
    environment = {
        **os.environ,
        **dict(options),
        **settings,
        "PERL5LIB": f"{TREE}/test/tap/lib:{PGXS}/src/test/perl",
        "PG_REGRESS": f"{PGXS}/src/test/regress/pg_regress",
        "PG_TEST_PORT_DIR": str(directory / "portlock"),
        "TESTLOGDIR": str(directory / "log"),
        "WEFT_TEMPLATES": str(make_templates()),
    }
    with ThreadPoolExecutor(PARALLEL_TESTS) as pool:
        jobs = [pool.submit(run_perl_test, suite, file, directory, environment) for file in files]
    for job in jobs:
        job.result()


def build_unit() -> bool:
    """Builds the extension with the unit tests, which is installed only here."""
    output = LOG / "unit-build"
    make = ["make", "-s", "-C", "test/unit", "COPT=-Werror"]
    build = [*make, f"PG_CONFIG={os.environ['PG_HEADERS']}"]
    if run(build, output) or run([*make, f"PG_CONFIG={PG_CONFIG}", "install"], output):
        report("FAILED", "unit", "build")
        print(output.read_text())
        return False
    return True


def second_server(*arguments: str) -> str:
    """The programs of another server with Weft."""
    # This server may be one of the user's; the other one is built.
    command = ["tools/second-server.sh", *arguments]
    return subprocess.check_output(command, text=True).strip()


def previous_server(files: list[Path]) -> dict[str, str]:
    """Where the server of the previous major version is, if a test asks for it."""
    previous = int(PG_MAJOR) - 1
    if "WEFT_PREVIOUS_BINDIR" in os.environ:
        return {}
    if previous < OLDEST_MAJOR or not any("previous_server()" in f.read_text() for f in files):
        return {}
    return {"WEFT_PREVIOUS_BINDIR": second_server(str(previous), "assert")}


def run_tap() -> None:
    build_unit()
    files = selected(Path("test/tap").glob("*.pl"))
    run_perl_suite("tap", files, previous_server(files))


def run_upgrade() -> None:
    """Replaces the library of released versions (tools/check-upgrade.sh)."""
    for source in sorted(Path(os.environ["WEFT_RELEASES"]).glob("weft-*")):
        bindir = second_server(PG_MAJOR, "assert", str(source))
        settings = {"WEFT_OLD_BINDIR": bindir, "WEFT_OLD_VERSION": source.name.split("-")[1]}
        run_perl_suite("upgrade", selected(Path("test/upgrade").glob("*.pl")), settings)


def run_python_suite(suite: str, folder: Path, parallel: int = 1) -> None:
    with ThreadPoolExecutor(parallel) as pool:
        jobs = [
            pool.submit(run_python_test, suite, file.stem, [file])
            for file in selected(folder.glob("test_*.py"))
        ]
        for job in jobs:
            job.result()


def run_python_test(suite: str, name: str, arguments: list) -> None:
    output = LOG / f"{suite}-{name}"
    start = time.monotonic()
    failed = run(["pytest", "-v", "-rs", *arguments], output)
    duration = f"({time.monotonic() - start:.1f} s)"
    text = output.read_text(errors="replace")
    if skip := not failed and re.search(r"^SKIPPED .*?: (.*)", text, re.MULTILINE):
        report("skipped", suite, name, f"({skip[1]})")
    else:
        report("FAILED" if failed else "ok", suite, name, duration)
    if failed:
        print("\n".join(text.splitlines()[-60:]), flush=True)


def run_docs() -> None:
    """Runs the commands that pages of docs/ show, and builds the site."""
    tests = Path("test/docs")
    jobs: list[tuple[str, list]] = [
        (page.name, [f"{tests}/test_pages.py::test_page[{page.name}]"])
        for page in pages_to_run()
        if selected([page.path])
    ]
    jobs += [(file.stem, [file]) for file in selected(tests.glob("test_[dr]*.py"))]
    with ThreadPoolExecutor(PARALLEL_TESTS) as pool:
        for job in [pool.submit(run_python_test, "docs", *job) for job in jobs]:
            job.result()
    if selected([Path("site")]):
        output = LOG / "docs-site"
        failed = run(["tools/build-docs.sh"], output)
        report("FAILED" if failed else "ok", "docs", "site")
        if failed:
            print(output.read_text(errors="replace"))


def run_unit() -> None:
    if build_unit():
        run_sql_suite("unit", "regress/pg_regress", "sql/*.sql")


def run_tap_again(mode: str) -> None:
    """Runs the tests that support a mode (test/tap/lib/WeftTest.pm) again, for a shorter time."""
    settings, names = MODES[mode]
    files = [file for file in selected(Path("test/tap").glob("*.pl")) if file.stem in names]
    run_perl_suite(mode, files, settings)


def core_source() -> Path:
    version = pg_config("--version").split()[1]
    sources = Path(os.environ["WEFT_CACHE"], "sources")
    source = sources / f"postgresql-{version}"
    if not source.exists():
        subprocess.check_call(
            ["tools/get-server.sh", PG_MAJOR, "source"], stdout=subprocess.DEVNULL
        )
    if not source.exists():
        sys.exit(f"error: the source of PostgreSQL {version} is needed in {source}")
    return source


def run_core() -> None:
    exceptions = {}
    for line in Path("test/core-exceptions.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            major, name, reason = line.split(maxsplit=2)
            if major == PG_MAJOR:
                exceptions[name] = reason
    files = []
    for file in selected((core_source() / "src/test/subscription/t").glob("*.pl")):
        if file.name in exceptions:
            report("skipped", "core", file.stem, f"({exceptions[file.name]})")
        else:
            files.append(file)
    run_perl_suite("core", files, {"TEMP_CONFIG": str(TREE / "test/core.conf")})


def run_ddl(suite: str, program: str) -> None:
    """Replicates the schema changes of others: of the server's tests, or of migrations."""
    output = LOG / f"{suite}.out"
    failed = run(["python", f"tools/{program}"], output, limit=LONG_TIME_LIMIT)
    print(output.read_text(errors="replace"), flush=True)
    report("FAILED" if failed else "ok", suite, program)


SUITES = {
    "static": run_static,
    "regress": lambda: run_sql_suite("regress", "regress/pg_regress", "sql/*.sql"),
    "isolation": lambda: run_sql_suite(
        "isolation", "isolation/pg_isolation_regress", "specs/*.spec"
    ),
    "unit": run_unit,
    "tap": run_tap,
    # switch-overs
    "ledger": lambda: run_python_suite("ledger", Path("test/ledger")),
    "cli": lambda: run_python_suite("cli", Path("cli/tests"), PARALLEL_TESTS),
    "docs": run_docs,
    "monitoring": lambda: run_python_suite("monitoring", Path("monitoring/tests")),
    "tap-streamed": lambda: run_tap_again("tap-streamed"),
    "tap-native": lambda: run_tap_again("tap-native"),
    "core": run_core,
    # not part of "make check", because they take long
    "upgrade": run_upgrade,
    "ddl-regress": lambda: run_ddl("ddl-regress", "ddl_regress.py"),
    "migrations": lambda: run_ddl("migrations", "ddl_migrations.py"),
}


def on_signal(number: int, _frame: object) -> None:
    global interrupted
    interrupted = True
    raise SystemExit(128 + number)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    end_servers()
    shutil.rmtree(LOG, ignore_errors=True)
    LOG.mkdir()
    try:
        for suite in sys.argv[1:]:
            start = time.monotonic()
            SUITES[suite]()
            print(f"        {suite}: {time.monotonic() - start:.0f} s", flush=True)
    finally:
        for process in list(running):
            stop(process)
        end_servers()
        shutil.rmtree(LOG / "templates", ignore_errors=True)

    count = Counter(status for status, _, _ in results)
    failures = [f"{suite}/{name}" for status, suite, name in results if status == "FAILED"]
    print()
    print(f"{pg_config('--version')}, logs in {LOG}")
    for failure in failures:
        print(f"failed: {failure}", *(f"({reason[:300]})" for reason in reasons.get(failure, [])))
    if count["skipped"]:
        print(f"{count['skipped']} skipped, for the reasons above")
    print(f"{count['ok']} passed, {count['FAILED']} failed")
    return 1 if failures or not results else 0


if __name__ == "__main__":
    sys.exit(main())
