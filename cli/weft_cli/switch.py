"""weft switch-over and weft switch-back: change which server accepts writes."""

from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.text import Text

from weft_cli.changes import ask
from weft_cli.context import Context
from weft_cli.errors import Refused
from weft_cli.exit_code import ExitCode
from weft_cli.finding import SEVERITY_STYLES
from weft_cli.options import HELP_NAMES, change_options, common_options, publisher_option
from weft_cli.output import duration, emit, printable
from weft_cli.server import Server
from weft_cli.switching import (
    UNFINISHED,
    Wishes,
    last_attempt,
    phase,
    plan,
    switch,
    tell_wishes,
)

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def switch_options(verify: list[str]) -> Callable[[AnyFunction], AnyFunction]:
    """Options of both commands."""

    def decorate(function: AnyFunction) -> AnyFunction:
        for option in (
            click.option(
                "--sequence-margin", type=click.IntRange(0), default=1000, show_default=True,
                metavar="N", help="How far sequences are set beyond those of the other server.",
            ),
            click.option(
                "--lock-timeout", metavar="INTERVAL", default="300 ms", show_default=True,
                help="For how long one attempt to lock the tables may hold up writers.",
            ),
            click.option(
                "--max-pause", metavar="INTERVAL", default="10 s", show_default=True,
                help="For how long writes may be paused; after that, everything is undone.",
            ),
            click.option(
                "--wait", metavar="INTERVAL", default="10 min", show_default=True,
                help="Time limit for everything before the pause.",
            ),
            click.option(
                "--verify", type=click.Choice(verify), default="counts", show_default=True,
                help="What is compared; a difference undoes the switch-over.",
            ),
        ):  # fmt: skip
            function = option(function)
        return function

    return decorate


@click.command("switch-over", context_settings={"help_option_names": HELP_NAMES})
@click.argument("subscription")
@click.option(
    "--reverse",
    metavar="CONNINFO",
    envvar="WEFT_REVERSE",
    help="How the old server will reach this one, to follow it. The variable WEFT_REVERSE keeps"
    " a password out of the list of processes.",
)
@click.option("--no-way-back", is_flag=True, help="The old server does not follow this one.")
@click.option("--cancel", is_flag=True, help="Give up a switch-over that has not succeeded.")
@switch_options(["none", "counts", "recent", "full"])
@common_options
@change_options
@publisher_option
@click.pass_obj
def over_command(
    context: Context,
    /,
    subscription: str,
    reverse: str | None,
    no_way_back: bool,
    cancel: bool,
    publisher: str | None,
    **rest: Any,
) -> ExitCode:
    """Makes this server the one that accepts writes, in place of SUBSCRIPTION's publisher.

    Writes pause for about a second. The old server then refuses writes and follows this one.
    If it fails before the point of no return, everything is undone. If it is interrupted after
    that, run it again.
    """
    if not cancel and bool(reverse) == no_way_back:
        raise click.UsageError(
            "say how the old server will reach this one: --reverse CONNINFO, or --no-way-back"
        )
    wishes = Wishes(subscription, reverse, publisher, **rest)
    with context.connect() as server:
        server.require_weft()
        tell_wishes(server, wishes)
        if cancel:
            return _cancel(context, server, subscription)
        return switch_over(context, server, wishes)


@click.command("switch-back", context_settings={"help_option_names": HELP_NAMES})
@click.argument("subscription")
@switch_options(["none", "counts", "full"])
@common_options
@change_options
@publisher_option
@click.pass_obj
def back_command(
    context: Context, /, subscription: str, publisher: str | None, **rest: Any
) -> ExitCode:
    """Makes SUBSCRIPTION's publisher the server that accepts writes again.

    Run it on the server on which you have run switch-over. SUBSCRIPTION continues as before.
    """
    with context.connect() as server:
        server.require_weft()
        tell_wishes(server, Wishes(subscription, None, publisher, **rest))
        reached, back = phase(server, subscription)
        if reached is None or (reached == "done" and back):
            raise Refused(f'subscription "{subscription}" has not been switched over')
        if context.options.dry_run:
            emit(
                context,
                1,
                "switch-back-plan",
                {"subscription": subscription, "phase": reached},
                lambda console: console.print(
                    "The old server would accept writes again, and this one would follow it.",
                    soft_wrap=True,
                ),
            )
            return ExitCode.FINE
        ask(context, "Let the old server accept writes again?")
        switch(context, server, subscription, "back")
        return report(context, server, subscription, "The old server accepts writes again.")


def switch_over(context: Context, server: Server, wishes: Wishes) -> ExitCode:
    """Plans, asks, and switches.  Needs tell_wishes()."""
    subscription = wishes.subscription
    reached, back = phase(server, subscription)
    if reached in UNFINISHED and not back:
        context.errors.print("A switch-over has passed the point of no return: it is completed.")
    else:
        checks = plan(server)
        errors = any(row["severity"] == "error" for row in checks)
        if context.options.dry_run or errors:
            emit(
                context,
                1,
                "switch-over-plan",
                {"subscription": subscription, "checks": checks},
                lambda console: show_plan(console, checks),
            )
            if context.options.dry_run:
                return ExitCode.FINDINGS if errors else ExitCode.FINE
            raise Refused("the plan has errors, so nothing has been changed")
        if context.options.output == "table":
            show_plan(context.console, checks)
    if context.options.dry_run:
        return ExitCode.FINE
    ask(context, "Switch over now? Writes pause meanwhile.")
    switch(context, server, subscription, "over")
    follows = "The old server follows it." if wishes.reverse else "There is no way back."
    return report(context, server, subscription, f"This server accepts writes. {follows}")


def _cancel(context: Context, server: Server, subscription: str) -> ExitCode:
    if context.options.dry_run:
        return ExitCode.FINE
    ask(context, "Give up the switch-over, and let this server accept writes again?")
    switch(context, server, subscription, "cancel")
    return report(context, server, subscription, "The switch-over was undone.")


def report(context: Context, server: Server, subscription: str, result: str) -> ExitCode:
    attempt = last_attempt(server, subscription)

    def render(console: Console) -> None:
        pause = attempt["pause"]
        text = "" if pause is None else f" Writes were paused for {duration(pause)}."
        console.print(Text(result + text), soft_wrap=True)

    emit(context, 1, "switch-over", {"subscription": subscription, **attempt}, render)
    return ExitCode.FINE


def show_plan(console: Console, checks: list[dict[str, Any]]) -> None:
    problems = [row for row in checks if row["severity"] != "ok"]
    for row in problems:
        style = SEVERITY_STYLES.get(row["severity"], "")
        where = f" {printable(row['object'])}" if row["object"] else ""
        console.print(
            Text.assemble(
                (f"{row['severity']}: ", style),
                f"{printable(row['check_name'])}{where}: {printable(row['problem'])}",
            ),
            soft_wrap=True,
        )
        if row["remedy"]:
            console.print(Text(f"  {printable(row['remedy'])}", "dim"), soft_wrap=True)
    fine = len(checks) - len(problems)
    if fine:
        console.print(Text(f"Checks that have found nothing: {fine}", "dim"))
