"""How quiet the machine is: what its processors did just before and during a measurement."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

# For this long the processors are observed before a measurement, in seconds.
OBSERVED = 2.0
# Less idle time than this before a measurement, or more time taken by other machines, in percent,
# means that something else was running.
LEAST_IDLE = 95.0
MOST_STOLEN = 2.0


@dataclass(frozen=True)
class Processors:
    """Time that all processors together have spent, in ticks since the machine was started."""

    total: int
    idle: int
    steal: int


@dataclass(frozen=True)
class Use:
    """Shares of a period, in percent of all processors."""

    idle: float
    steal: float

    @property
    def quiet(self) -> bool:
        return self.idle >= LEAST_IDLE and self.steal <= MOST_STOLEN


def parse_processors(stat: str) -> Processors:
    """The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; guest
    time is part of user time.  A processor that waits for the disk is idle."""
    fields = [int(field) for field in stat.splitlines()[0].split()[1:9]]
    fields += [0] * (8 - len(fields))
    return Processors(sum(fields), fields[3] + fields[4], fields[7])


def use_between(start: Processors, end: Processors) -> Use:
    total = end.total - start.total
    if total <= 0:
        return Use(100.0, 0.0)
    return Use(100 * (end.idle - start.idle) / total, 100 * (end.steal - start.steal) / total)


def processors_now() -> Processors:
    return parse_processors(Path("/proc/stat").read_text())


def observe(seconds: float = OBSERVED) -> Use:
    start = processors_now()
    time.sleep(seconds)
    return use_between(start, processors_now())
