"""What goes wrong, and programs that run to their end."""

from __future__ import annotations

import os
import subprocess


class BenchError(Exception):
    """Something went wrong that makes the figures that would follow worthless."""


def run(
    *command: str, to_the_end: bool = False, environment: dict[str, str] | None = None,
    input_: str | None = None,
) -> str:  # fmt: skip
    """Gives what the command says.  When we are interrupted, so is the command, unless it is to
    run to its end."""
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
