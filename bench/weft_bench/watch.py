"""Processor time and memory of the processes that replicate."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from .pair import Pair
from .server import APPLICATION

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

# What the server calls a process, and what the figures call it, if that is something else.
KINDS = {
    "logical replication apply worker": "leader",
    "logical replication parallel worker": "writers",
    "logical replication tablesync worker": "copy worker",
    "weft writer": "writers",
    "weft stream writer": "writers",
}
# These are not part of replication, but spend time on what it writes.
HOUSEKEEPING = {
    "walwriter", "checkpointer", "background writer", "archiver", "autovacuum launcher",
    "logical replication launcher", "slotsync worker", "pgbench",
}  # fmt: skip


def processor_ticks(stat: str) -> int:
    """User and system time from the contents of /proc/PID/stat.

    The second field, the program's name in parentheses, may hold anything.
    """
    fields = stat[stat.rindex(")") + 2 :].split()
    return int(fields[11]) + int(fields[12])


def private_kb(status: str) -> int:
    """Memory that only this process has, from the contents of /proc/PID/status."""
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0


def kind_of(backend_type: str, application: str) -> str | None:
    if backend_type == "client backend":
        if application == APPLICATION:
            return None
        return "pgbench" if application == "pgbench" else "backends"
    if backend_type.startswith("pglogical apply"):
        return "leader"
    return KINDS.get(backend_type, backend_type)


class Watch:
    """What each kind of process has used since this was made, and the most memory that those
    that replicate had at one time, as far as somebody has looked.

    A process that has ended counts with what it had when it was last seen.
    """

    def __init__(self, pair: Pair):
        self.pair = pair
        self.resources = ExitStack()
        self.connections = [
            self.resources.enter_context(server.connect()) for server in pair.running()
        ]
        self.start: dict[tuple[str, int], int] = {}
        self.ticks: dict[tuple[str, int], int] = {}
        self.peak_kb = 0
        self.look()
        self.start = dict(self.ticks)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.resources.close()

    def processes(self) -> Iterator[tuple[str, int]]:
        for connection in self.connections:
            rows = connection.execute(
                "SELECT pid, backend_type, application_name FROM pg_stat_activity"
            )
            for pid, backend_type, application in rows.fetchall():
                kind = kind_of(backend_type or "", application or "")
                if kind:
                    yield kind, pid
        for daemon in self.pair.daemons:
            for pid in daemon.pids():
                yield daemon.kind, pid

    def look(self) -> None:
        memory_kb = 0
        for kind, pid in self.processes():
            try:
                self.ticks[kind, pid] = processor_ticks(Path(f"/proc/{pid}/stat").read_text())
                if kind not in HOUSEKEEPING:
                    memory_kb += private_kb(Path(f"/proc/{pid}/status").read_text())
            except OSError:
                continue
        self.peak_kb = max(self.peak_kb, memory_kb)

    def microseconds(self) -> dict[str, float]:
        """The time by kind; a process that was not there at the start counts from its own."""
        self.look()
        used: dict[str, float] = defaultdict(float)
        for (kind, pid), ticks in self.ticks.items():
            used[kind] += (ticks - self.start.get((kind, pid), 0)) * 1e6 / TICKS_PER_SECOND
        return dict(used)

    def peak_mb(self) -> float:
        return self.peak_kb / 1024
