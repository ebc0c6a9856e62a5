"""Options that all commands have in common.

They may stand before or after the command's name.  Nothing here reads PG* variables, .pgpass or
pg_service.conf: libpq does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.core import ParameterSource

HELP_NAMES = ["--help", "-?"]

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


@dataclass
class Options:
    host: str | None = None
    port: str | None = None
    username: str | None = None
    dbname: str | None = None
    no_password: bool = False
    output: str = "table"
    no_color: bool = False
    timeout: float | None = None
    watch: float | None = None
    dry_run: bool = False
    yes: bool = False


def _store(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    # Imported here, since context.py needs Options.
    from weft_cli.context import Context

    assert parameter.name is not None
    context = ctx.ensure_object(Context)
    if ctx.get_parameter_source(parameter.name) != ParameterSource.DEFAULT:
        setattr(context.options, parameter.name, value)


def _option(*names: str, **attributes: Any) -> Callable[[AnyFunction], AnyFunction]:
    return click.option(*names, callback=_store, expose_value=False, **attributes)


def _all_of(
    *decorators: Callable[[AnyFunction], AnyFunction],
) -> Callable[[AnyFunction], AnyFunction]:
    def decorate(function: AnyFunction) -> AnyFunction:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


# Every command has these.
common_options: Callable[[AnyFunction], AnyFunction] = _all_of(
    _option("-h", "--host", metavar="HOST", help="Server, or directory of its socket."),
    _option("-p", "--port", metavar="PORT", help="Port of the server."),
    _option("-U", "--username", metavar="NAME", help="Role to connect as."),
    _option(
        "-d", "--dbname", metavar="DBNAME",
        help="Database, or a connection string or URI, which overrides the other options.",
    ),
    _option("-w", "--no-password", is_flag=True, help="Never ask for a password."),
    _option(
        "-o", "--output", type=click.Choice(["table", "json"]),
        help="For people (the default), or for programs.",
    ),
    _option("--no-color", is_flag=True, help="No colors; NO_COLOR does the same."),
    _option(
        "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
        help="Time limit for connecting and for each statement.",
    ),
)  # fmt: skip

# For commands that show a state.
watch_option: Callable[[AnyFunction], AnyFunction] = _option(
    "--watch", type=click.FloatRange(min=0.1), metavar="SECONDS",
    help="Repeat until interrupted, with this pause.",
)  # fmt: skip

# For commands that change something.
change_options: Callable[[AnyFunction], AnyFunction] = _all_of(
    _option("--dry-run", is_flag=True, help="Only show what would be done."),
    _option("--yes", is_flag=True, help="Do not ask before a change."),
)

publisher_option: Callable[[AnyFunction], AnyFunction] = click.option(
    "--publisher", metavar="CONNINFO",
    help="How to reach the publisher from here, if not as the subscription does.",
)  # fmt: skip
