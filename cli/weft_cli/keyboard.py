"""Single keys from a terminal."""

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Any, Self

# What terminals send for keys that are no characters.
SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "right",
    b"\x1bOD": "left",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[Z": "left",
    b"\t": "right",
    b"\x1b": "escape",
}
LONGEST_SEQUENCE = max(map(len, SEQUENCES))


class Keyboard:
    """While it is open, keys are read without being shown, and without waiting for Enter."""

    def __init__(self) -> None:
        self.descriptor = sys.stdin.fileno()
        self.saved: list[Any] = []
        self.pending = b""

    def __enter__(self) -> Self:
        self.saved = termios.tcgetattr(self.descriptor)
        tty.setcbreak(self.descriptor)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self.saved)

    def wait(self, seconds: float) -> str | None:
        """The next key, or None if there is none in this time."""
        if not self.pending:
            ready, _, _ = select.select([self.descriptor], [], [], max(seconds, 0))
            if not ready:
                return None
            self.pending = os.read(self.descriptor, 1024)
            # The terminal is gone.
            if not self.pending:
                return "q"
        return self._next()

    def _next(self) -> str:
        """Several keys may have been typed since the last look; a sequence is one of them."""
        for length in range(min(len(self.pending), LONGEST_SEQUENCE), 0, -1):
            start = self.pending[:length]
            if start in SEQUENCES:
                self.pending = self.pending[length:]
                return SEQUENCES[start]
        key, self.pending = self.pending[:1], self.pending[1:]
        return key.decode(errors="replace")
