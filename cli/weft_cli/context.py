"""What a command gets: the options, where to write, and a way to connect."""

import sys
from dataclasses import dataclass, field
from functools import cached_property

import click
from rich.console import Console

from weft_cli.errors import Unreachable
from weft_cli.escape import SafeConsole
from weft_cli.options import Options
from weft_cli.server import NeedsPassword, Server, target_conninfo

# Seconds, for commands that only look, unless --timeout says otherwise.
LOOK_TIMEOUT = 10.0
# Width of output that does not go to a terminal: wide enough not to wrap or cut anything.
PIPED_WIDTH = 160


@dataclass
class Context:
    options: Options = field(default_factory=Options)

    @cached_property
    def console(self) -> Console:
        return self._make_console(stderr=False)

    @cached_property
    def errors(self) -> Console:
        return self._make_console(stderr=True)

    def _make_console(self, stderr: bool) -> Console:
        stream = sys.stderr if stderr else sys.stdout
        console = SafeConsole(
            stderr=stderr,
            # rich reads NO_COLOR itself
            no_color=True if self.options.no_color else None,
            # Names of objects may contain brackets, and are data.
            markup=False,
            emoji=False,
            highlight=False,
        )
        if not stream.isatty() and "COLUMNS" not in console._environ:
            console.width = PIPED_WIDTH
        return console

    def connect(self, timeout: float | None = None) -> Server:
        """Connects as the options say; asks for a password if one is needed, as psql does.

        The time limit holds if the user gives none; None is no limit for statements.
        """
        conninfo = target_conninfo(self.options)
        limit = self.options.timeout or timeout
        application = click.get_current_context().command_path
        try:
            return Server(conninfo, application, limit)
        except NeedsPassword as error:
            if self.options.no_password or not sys.stdin.isatty():
                raise Unreachable(
                    str(error),
                    "Set PGPASSWORD, or add the server to the password file (.pgpass).",
                ) from None
        password: str = click.prompt("Password", hide_input=True, err=True)
        return Server(conninfo, application, limit, password=password)
