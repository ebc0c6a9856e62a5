"""What commands that change something have in common: consent, steps, and long calls."""

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import click
from psycopg.conninfo import make_conninfo
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from weft_cli.context import Context
from weft_cli.errors import WeftError
from weft_cli.output import duration, printable
from weft_cli.server import Server

# Seconds between two looks at a call that runs.
LOOK_PERIOD = 0.3

Result = TypeVar("Result")


class Declined(WeftError):
    """The user has said no."""


def shows_progress(context: Context) -> bool:
    """Is there somebody who watches?"""
    return context.options.output == "table" and context.errors.is_terminal


def ask(context: Context, question: str) -> None:
    """Returns if the user agrees, or has said so in advance."""
    if context.options.yes:
        return
    if context.options.output == "json" or not sys.stdin.isatty():
        raise click.UsageError(
            "this changes something, and nobody can be asked: give --yes, or --dry-run to only"
            " see what would be done"
        )
    if not click.confirm(printable(question), err=True):
        raise Declined("nothing has been changed")


class StepLog:
    """Prints each step when it has ended, and shows which one is running."""

    def __init__(self, context: Context):
        self._context = context
        self._status: AbstractContextManager[object] = nullcontext()
        self._text = ""
        self.seconds: list[tuple[str, float]] = []

    def begin(self, text: str) -> None:
        self._text = text
        if shows_progress(self._context):
            self._status = self._context.errors.status(Text(text))
            self._status.__enter__()

    def name(self, text: str) -> None:
        """Like begin(), for a step that shows its own progress."""
        self._text = text

    def end(self, name: str, seconds: float) -> None:
        self.interrupt()
        self.seconds.append((name, seconds))
        if self._context.options.output == "table":
            self._context.console.print(
                Text.assemble(("✓ ", "green"), self._text, (f" ({duration(seconds)})", "dim")),
                soft_wrap=True,
            )

    def interrupt(self) -> None:
        """Nothing is running any more."""
        self._status.__exit__(None, None, None)
        self._status = nullcontext()


class _TimeLeft(ProgressColumn):
    """What a task says itself, because the server knows better than an average."""

    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("note", "")), style="dim")


class _Bars(Progress):
    def stop(self) -> None:
        # rich 13.0 writes an empty line if the output is no terminal.
        if not self.disable:
            super().stop()


def progress_bars(context: Context) -> Progress:
    """Bars on the terminal; nothing if output goes elsewhere."""
    return _Bars(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%", markup=False),
        _TimeLeft(table_column=Column(no_wrap=True)),
        console=context.errors,
        transient=True,
        disable=not shows_progress(context),
    )


def while_running(server: Server, call: Callable[[], Result], look: Callable[[], None]) -> Result:
    """Runs the call, which uses this server's connection, and looks on meanwhile.

    An interrupt cancels the call, as in psql.
    """
    result: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    # An interrupt has to wait until the thread can be waited for.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    thread.start()
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        while thread.is_alive():
            look()
            thread.join(LOOK_PERIOD)
    except BaseException:
        server.connection.cancel()
        thread.join()
        raise
    look()
    if errors:
        raise errors[0]
    return result[0]


def second_connection(server: Server) -> Server:
    """To the same server, to look on while the first one is busy."""
    info = server.connection.info
    parameters = info.get_parameters() | {"host": info.host, "port": str(info.port)}
    return Server(
        make_conninfo("", **parameters), server.application, password=info.password or None
    )
