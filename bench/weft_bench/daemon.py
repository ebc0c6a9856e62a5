"""Programs beside the servers that a system needs while it replicates."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from .errors import BenchError


class Daemon:
    def __init__(self, kind: str, command: tuple[str, ...], environment: dict[str, str], log: Path):
        self.kind = kind
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, env={**os.environ, **environment},
            )  # fmt: skip

    def pids(self) -> list[int]:
        """Its own and its children's, which do the work in some systems."""
        own = self.process.pid
        try:
            children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        except OSError:
            children = []
        return [own, *map(int, children)]

    def check(self) -> None:
        if self.process.poll() is not None:
            said = self.log.read_text(errors="replace")[-2000:]
            raise BenchError(f"{self.kind} has ended unexpectedly:\n{said}")

    def stop(self) -> None:
        """The whole session, since a child may outlive the process that was started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                continue
        self.process.wait()
