"""Errors, and commands that run to completion."""

from __future__ import annotations

import os
import subprocess


class BenchError(Exception):
    """An error that would make all further figures worthless."""


def run(
    *command: str, to_the_end: bool = False, environment: dict[str, str] | None = None,
    input_: str | None = None,
) -> str:  # fmt: skip
    """Returns the output of the command.  An interruption also interrupts the command, unless it
    must run to completion."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL if input_ is None else subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, text=True,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    try:
        output, _ = process.communicate(input_)
    finally:
        if process.poll() is None and not to_the_end:
            process.terminate()
        process.wait()
    if process.returncode != 0:
        raise BenchError(f"{os.path.basename(command[0])} failed:\n{output}".rstrip())
    return output
