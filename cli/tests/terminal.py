"""The command in a terminal, as a user sees it."""

import os
import pty
import sys
from collections.abc import Sequence

from conftest import clean_environment


def in_terminal(
    arguments: Sequence[str], columns: int = 80, answer: str = "", **environment: str
) -> tuple[int, str]:
    """Returns the exit status, and everything that was written to the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        settings = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "24"}
        os.execve(
            sys.executable,
            [sys.executable, "-m", "weft_cli", *arguments],
            clean_environment() | settings | environment,
        )
    output = b""
    if answer:
        os.write(terminal, answer.encode())
    try:
        while data := os.read(terminal, 65536):
            output += data
    except OSError:
        # The other end is closed.
        pass
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), output.decode(errors="replace")
