"""The command on a terminal, as far as a test can be a terminal."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from types import TracebackType
from typing import Self

from conftest import PASSWORD, clean_environment, command_line

ESCAPE = "\x1b"
CONTROL = re.compile(rf"{ESCAPE}\[[?\d;]*[A-Za-z]")

# Seconds until the terminal is assumed to stay as it is.
LIMIT = 60


class Terminal:
    """Runs the command; type() presses keys, and wait_for() reads until a text appears."""

    def __init__(
        self, *arguments: str, width: int = 80, height: int = 24,
        environment: dict[str, str] | None = None,
    ):  # fmt: skip
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.settings = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen(
            command_line(*arguments),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=clean_environment() | {"TERM": "xterm-256color"} | (environment or {}),
            start_new_session=True,
        )
        self.raw = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.slave)
        os.close(self.master)
        assert PASSWORD not in self.raw

    def read(self, seconds: float) -> None:
        if select.select([self.master], [], [], seconds)[0]:
            self.raw += os.read(self.master, 65536).decode(errors="replace")

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    @property
    def text(self) -> str:
        """All that was written since the last wait_for(), without control sequences."""
        return CONTROL.sub("", self.raw).replace("\r\n", "\n")

    def wait_for(self, text: str) -> str:
        """Returns what was written until then, and forgets it."""
        deadline = time.monotonic() + LIMIT
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} did not appear in:\n{self.text}"
            assert self.process.poll() is None or self.raw, "the command has ended"
            self.read(0.1)
        found = self.text
        self.raw = ""
        return found

    def finish(self) -> int:
        """Waits for its end; everything that it has written is in self.raw."""
        deadline = time.monotonic() + LIMIT
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end:\n{self.text}"
            self.read(0.1)
        while select.select([self.master], [], [], 0)[0]:
            self.read(0)
        return self.process.returncode

    @property
    def restored(self) -> bool:
        """Is the terminal as it was before?"""
        return termios.tcgetattr(self.slave) == self.settings
