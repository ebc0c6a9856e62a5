"""The group "weft" and its commands; how errors become exit statuses."""

import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import click
from rich.text import Text

from weft_cli import (
    __version__,
    adopt,
    compare,
    doctor,
    repair,
    resync,
    status,
    switch,
    top,
    upgrade,
)
from weft_cli.context import Context
from weft_cli.errors import WeftError
from weft_cli.exit_code import ExitCode
from weft_cli.options import HELP_NAMES, common_options
from weft_cli.output import printable

# as a shell reports programs that end by SIGINT
INTERRUPTED = 130

COMMANDS: tuple[click.Command, ...] = (
    status.command,
    top.command,
    adopt.command,
    compare.command,
    doctor.command,
    repair.command,
    resync.command,
    switch.over_command,
    switch.back_command,
    upgrade.command,
)


@click.group(context_settings={"help_option_names": HELP_NAMES})
@click.version_option(
    __version__, "-V", "--version", prog_name="weft", message="%(prog)s %(version)s"
)
@common_options
def weft() -> None:
    """Watches and repairs logical replication with Weft.

    Connects to the subscriber like psql: -h, -p, -U, -d, PG* variables, .pgpass, pg_service.conf.

    Exit status: 0 fine, 1 findings, 2 usage, 3 no connection, 4 refused.
    """


for _command in COMMANDS:
    weft.add_command(_command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    context = Context()
    try:
        code = weft.main(
            args=None if arguments is None else list(arguments),
            prog_name="weft",
            standalone_mode=False,
            obj=context,
        )
        sys.stdout.flush()
        return int(code or ExitCode.FINE)
    except WeftError as error:
        _complain(context, error)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _complain(context: Context, error: WeftError) -> None:
    console = context.errors
    console.print(Text.assemble(("error: ", "bold red"), printable(error)), soft_wrap=True)
    if error.hint:
        console.print(Text.assemble(("hint: ", "bold"), printable(error.hint)), soft_wrap=True)


def main() -> NoReturn:
    # "weft status | head" ends silently, as other programs do; libpq does not raise the signal.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # So that a terminal is left as it was.
    signal.signal(signal.SIGTERM, _end)
    sys.exit(run())
