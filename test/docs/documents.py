"""Runs the commands of a page, and compares what they print with what the page says.

tools/check_docs.py describes the comments by which a page says what is run, and where.  Host names
of a page stand for servers of the test.  What differs from run to run is normalized on both sides
before they are compared: see RULES.

WEFT_DOCUMENTS=DIRECTORY writes there what the page should say, if that is something else.
"""

import difflib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from getpass import getuser
from pathlib import Path

from check_docs import Block, NamedServer, Page
from servers import Server, created, own_programs, programs_of

# Seconds after which a page is assumed to hang.
TIME_LIMIT = 240

# What replaces what, in this order.  Widths of columns depend on the values, so runs of
# spaces and of dashes are all alike.
RULES = [
    ("what is not there yet", r"(?m)^NOTICE: .*, skipping\n", ""),
    ("names with OIDs", r"\bweft_switch_\d+(_\d+)?\b", "weft_switch_OID"),
    ("LSN", r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b", "LSN"),
    ("time stamp", r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:\d\d)?)?", "TIMESTAMP"),
    ("interval", r"\b\d\d:\d\d:\d\d(\.\d+)?\b", "INTERVAL"),
    ("duration", r"\b\d+(\.\d+)? (ms|s|seconds)\b", "DURATION"),
    ("directory of a socket", r"host=[^\s']+", "host=HOST"),
    ("port", r"\bport=\d+", "port=PORT"),
    ("version", r"\b(PostgreSQL|version) \d+(\.\d+)?\b", r"\1 VERSION"),
    ("lines of psql", r"-{3,}(\+-+)*", "---"),
    ("width of columns", r"[ \t]+", " "),
    ("end of lines", r" *\n", "\n"),
]

# A server as initdb makes it, but reached only through its socket.
BARE = """
    listen_addresses = ''
    shared_buffers = 64MB
    wal_retrieve_retry_interval = 200ms
    """

# What pages may call in "test:".  A server's files are in the directory that is named like it.
FUNCTIONS = """
# restart SERVER: starts it if it does not run
restart() {
    local how=start
    if pg_ctl status -s -D "$1/data" >/dev/null; then how="restart -m fast"; fi
    pg_ctl $how -w -s -D "$1/data" -l "$1/log"
}
weft() { PYTHONPATH=$WEFT_TREE/cli python -m weft_cli "$@"; }
# until_true -h HOST DATABASE QUERY: waits until the query's result is t
until_true() {
    local i
    for i in {1..300}; do
        [ "$(psql -XAt "${@:1:$#-1}" -c "${@: -1}" 2>&1)" = t ] && return
        sleep 0.2
    done
    echo "never true: ${@: -1}"
    return 1
}
"""


def normalized(text: str) -> list[str]:
    for _, pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return [line.strip() for line in text.strip().splitlines()]


def fits(expected: str, got: str) -> bool:
    parts = (re.escape(part) for part in expected.split("…"))
    return re.fullmatch(".*".join(parts), got) is not None


def filled_in(expected: list[str], got: list[str]) -> list[str]:
    """What is expected, with the lines of the output where "…" stands for them."""
    result: list[str] = []
    rest = list(got)
    for number, line in enumerate(expected):
        if line == "…":
            following = expected[number + 1] if number + 1 < len(expected) else None
            while rest and (following is None or not fits(following, rest[0])):
                result.append(rest.pop(0))
        elif rest and fits(line, rest[0]):
            result.append(rest.pop(0))
        else:
            result.append(line)
            del rest[:1]
    return result


def difference(expected: str, output: str) -> str:
    got = normalized(output)
    wanted = filled_in(normalized(expected), got)
    return "\n".join(difflib.unified_diff(wanted, got, "page", "output", lineterm=""))


class Shell:
    """A shell that runs one block after the other."""

    def __init__(self, environment: dict[str, str], directory: Path):
        self.process = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            text=True,
            start_new_session=True,
        )
        self.timer = threading.Timer(TIME_LIMIT, self.kill)
        self.timer.start()

    def run(self, commands: str) -> tuple[int, str]:
        assert self.process.stdin is not None and self.process.stdout is not None
        mark = uuid.uuid4().hex
        # the commands are read completely before any runs, and cannot read what follows
        self.process.stdin.write(
            f"eval \"$(cat <<'{mark}'\n{commands}\n{mark}\n)\" </dev/null\n"
            f"weft_status=$?; echo; echo {mark} $weft_status\n"
        )
        self.process.stdin.flush()
        lines: list[str] = []
        for line in self.process.stdout:
            if line.startswith(mark):
                return int(line.split()[1]), "".join(lines).rstrip("\n") + "\n"
            lines.append(line)
        raise RuntimeError("the shell has ended: " + "".join(lines[-20:]))

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.timer.cancel()
        self.kill()
        self.process.wait()


def server_of(named: NamedServer, directory: Path) -> Server | None:
    """The server that a page names; None if this machine does not have its version."""
    programs = programs_of(named.major) if named.major else own_programs()
    if programs is None:
        return None
    settings = "fsync = off\n"
    if "group" in named.words:
        settings += "track_commit_timestamp = on\n"
    weft = bool(named.words & {"weft", "group"})
    server = Server(directory / named.name, programs, settings, weft=weft)
    if not named.words & {"weft", "group", "ready"}:
        server.settings = BARE + "fsync = off\n"
    return server


def leftover_postmasters(directory: Path) -> Iterator[int]:
    """Servers that commands of a page have started."""
    for file in directory.glob("**/postmaster.pid"):
        with suppress(OSError, ValueError, IndexError):
            yield int(file.read_text().split()[0])


@contextmanager
def servers_of(page: Page) -> Iterator[tuple[Path, list[Server | None]]]:
    with tempfile.TemporaryDirectory(prefix="weft-docs-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        servers = {named: server_of(named, directory) for named in page.servers}
        first = [server for named, server in servers.items() if "later" not in named.words]
        try:
            if None in first:
                yield directory, [None]
                return
            with created(*(server for server in first if server)):
                for server in first:
                    # that of the server's own connections, if a connection string names no user
                    assert server is not None
                    server.query(f'CREATE ROLE "{getuser()}" SUPERUSER LOGIN')
                yield directory, list(servers.values())
        finally:
            for pid in leftover_postmasters(directory):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGQUIT)


class Run:
    """One run of a page."""

    def __init__(self, page: Page, servers: list[Server], directory: Path):
        self.page = page
        self.names = {server.name: str(server.directory) for server in servers}
        programs = f"{Path(sys.executable).parent}:{own_programs()}:/usr/bin:/bin"
        # what the caller has set for connections must not be used here
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        environment |= {
            "PATH": programs,
            "PGUSER": "postgres",
            "PGPORT": "5432",
            "PGCONNECT_TIMEOUT": "10",
            "NO_COLOR": "1",
            "COLUMNS": "160",
            "HOME": str(directory),
            "WEFT_TREE": str(Path(__file__).resolve().parents[2]),
        }
        self.shell = Shell(environment, directory)
        self.shell.run(FUNCTIONS)
        self.found: list[str] = []
        self.changes: list[tuple[tuple[int, int], str]] = []

    def translated(self, text: str) -> str:
        for name, directory in self.names.items():
            text = re.sub(rf"(host=|-h ?|,){re.escape(name)}\b", rf"\g<1>{directory}", text)
        return text

    def commands_of(self, block: Block) -> str:
        text = self.translated(block.text)
        if block.kind == "sql":
            target = block.server
            if "=" not in target:
                target = f"host={self.names[target]} dbname={block.database}"
            return f"psql -X -d '{target}' <<'END_OF_SQL'\n{text}END_OF_SQL\n"
        if block.kind == "conf":
            name = block.server
            file = f"{name}/data/postgresql.conf"
            return f"cat >>{file} <<'END_OF_CONF'\n{text}END_OF_CONF\nrestart {name}\n"
        return text

    def run(self, block: Block) -> bool:
        """Returns whether it makes sense to go on."""
        code, output = self.shell.run(self.commands_of(block))
        for name, directory in self.names.items():
            output = output.replace(directory, name)
        where = f"{self.page.path.name}:{block.line}"
        print(f"--- {where}\n{block.text}{output}", flush=True)
        if block.expected is None:
            # nothing is said of the output, but errors are not expected
            if code != 0 or "ERROR:" in output or "FATAL:" in output:
                self.found.append(f"{where}: exit code {code}\n{output}")
                return False
        elif text := difference(block.expected, output):
            self.found.append(f"{where}:\n{text}")
            self.changes.append((block.place, output))
        return True


def failures(page: Page, servers: list[Server], directory: Path) -> list[str]:
    """Runs a page; returns how the outputs differ from what it says."""
    run = Run(page, servers, directory)
    try:
        for block in page.blocks:
            if not block.reason and not run.run(block):
                break
    finally:
        run.shell.close()
    if run.changes and "WEFT_DOCUMENTS" in os.environ:
        rewrite(page.path, run.changes, Path(os.environ["WEFT_DOCUMENTS"]))
    return run.found


def rewrite(path: Path, changes: list[tuple[tuple[int, int], str]], to: Path) -> None:
    text = path.read_text()
    for (start, end), output in reversed(changes):
        # as the fence below
        indent = " " * (len(text[end:]) - len(text[end:].lstrip(" ")))
        lines = "".join((indent + line).rstrip() + "\n" for line in output.strip("\n").splitlines())
        text = text[:start] + lines + text[end:]
    (to / path.name).write_text(text)
