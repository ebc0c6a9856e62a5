"""The machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
import re
from datetime import datetime, timezone
from pathlib import Path


def first_match(file: str, pattern: str) -> str:
    found = re.search(pattern, Path(file).read_text(), re.MULTILINE)
    return found[1] if found else "unknown"


def filesystem_of(directory: Path) -> str:
    """The type of the file system: that of the longest mount point above the directory."""
    resolved = directory.resolve()
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(len(at), kind) for at, kind in mounts if resolved.is_relative_to(at)]
    # of equally long ones, the last one mounted is seen
    return max(enumerate(above), key=lambda item: (item[1][0], item[0]))[1][1]


def describe_machine(server_version: str, directory: Path) -> dict[str, object]:
    memory_kb = int(first_match("/proc/meminfo", r"^MemTotal:\s+(\d+) kB"))
    return {
        "cpu": first_match("/proc/cpuinfo", r"^model name\s*: (.*)$"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory_kb / 1024 / 1024, 1),
        "kernel": platform.release(),
        "filesystem": filesystem_of(directory),
        "server": server_version,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }
