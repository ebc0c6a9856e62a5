"""Processor time of the processes of a server."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import psycopg

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

# What the server calls a process, and what the figures call it.
KINDS = {
    "walsender": "walsender",
    "logical replication apply worker": "leader",
    "logical replication parallel worker": "writers",
    "weft writer": "writers",
    "walreceiver": "walreceiver",
    "startup": "startup",
    "walwriter": "walwriter",
    "checkpointer": "checkpointer",
    "background writer": "background writer",
}


def processor_ticks(stat: str) -> int:
    """User and system time from the contents of /proc/PID/stat.

    The second field, the program's name in parentheses, may hold anything.
    """
    fields = stat[stat.rindex(")") + 2 :].split()
    return int(fields[11]) + int(fields[12])


class ProcessorTimes:
    """What each kind of process of some servers has used since this was made."""

    def __init__(self, connections: list[psycopg.Connection]):
        self.connections = connections
        self.start = {pid: ticks for pid, _, ticks in self.look()}

    def look(self):
        for connection in self.connections:
            rows = connection.execute("SELECT pid, backend_type FROM pg_stat_activity").fetchall()
            for pid, backend_type in rows:
                if backend_type in KINDS:
                    try:
                        stat = Path(f"/proc/{pid}/stat").read_text()
                    except FileNotFoundError:
                        continue
                    yield pid, KINDS[backend_type], processor_ticks(stat)

    def microseconds(self) -> dict[str, float]:
        """The time by kind; a process that was not there at the start counts from its own."""
        used: Counter[str] = Counter()
        for pid, kind, ticks in self.look():
            used[kind] += ticks - self.start.get(pid, 0)
        return {kind: ticks * 1e6 / TICKS_PER_SECOND for kind, ticks in used.items()}
