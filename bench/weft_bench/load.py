"""pgbench: fills the tables, and generates the load."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import BenchError
from .server import Server


@contextmanager
def pgbench(server: Server, *arguments: str, options: str = "") -> Iterator[Iterator[str]]:
    """Runs pgbench and gives what it says, as it comes; ends it if the caller does not wait.
    The options are those of its sessions."""
    process = subprocess.Popen(
        (*server.place.on_cpus, "pgbench", *server.socket_options, *arguments, "postgres"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True, text=True, env={**os.environ, "PGOPTIONS": options},
    )  # fmt: skip
    assert process.stdout is not None
    output = process.stdout
    said: list[str] = []

    def lines() -> Iterator[str]:
        for line in output:
            said.append(line)
            yield line

    try:
        yield lines()
        said += output.readlines()
        if process.wait() != 0:
            raise BenchError("pgbench failed:\n" + "".join(said[-10:]))
    finally:
        process.terminate()
        process.wait()
        output.close()


def filled_percent(line: str) -> int | None:
    """How far "pgbench -i -q" has filled the accounts."""
    found = re.search(r"tuples \((\d+)%\)", line)
    return int(found[1]) if found else None


def progress_rate(line: str) -> float | None:
    """Transactions in the second that a line of "pgbench -P 1" is about."""
    found = re.match(r"progress: [\d.]+ s, ([\d.]+) tps", line)
    return float(found[1]) if found else None


def processed(line: str) -> int | None:
    found = re.match(r"number of transactions actually processed: (\d+)", line)
    return int(found[1]) if found else None


def fill_tables(server: Server, scale: int, at: Callable[[float], None]) -> None:
    with pgbench(server, "-i", "-q", "-s", str(scale)) as lines:
        for line in lines:
            percent = filled_percent(line)
            if percent is not None:
                at(percent)


def run_load(
    server: Server, clients: int, length: tuple[str, ...], seed: int,
    at: Callable[[float], None], durable: bool = True, script: Path | None = None,
) -> int:  # fmt: skip
    """Runs the script's transactions, without one those of TPC-B, and gives their number.  The
    length is pgbench's -t or -T, the seed decides which rows they touch, "at" is told the number
    of transactions so far.  A load that need not be durable does not wait for the disk."""
    done, finished = 0.0, None
    with pgbench(
        server, "-n", "-M", "prepared", "-P", "1", f"--random-seed={seed}",
        "-c", str(clients), "-j", str(min(clients, os.cpu_count() or 1)), *length,
        *(() if script is None else ("-f", str(script))),
        options="" if durable else "-c synchronous_commit=off",
    ) as lines:  # fmt: skip
        for line in lines:
            done += progress_rate(line) or 0
            finished = finished if processed(line) is None else processed(line)
            at(done)
    if finished is None:
        raise BenchError("pgbench did not report how many transactions it has processed")
    return finished
