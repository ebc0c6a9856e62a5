"""weft upgrade: moves a database to this server with a short pause."""

import time
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from weft_cli.changes import StepLog, ask
from weft_cli.context import Context
from weft_cli.errors import Refused
from weft_cli.exit_code import ExitCode
from weft_cli.options import HELP_NAMES, change_options, common_options
from weft_cli.output import emit, printable
from weft_cli.server import Server
from weft_cli.switch import report, show_plan, switch_options, switch_over
from weft_cli.switching import UNFINISHED, Wishes, phase, plan, tell_wishes
from weft_cli.upgrading import Step, Target, obstacles, steps, switched


@click.command("upgrade", context_settings={"help_option_names": HELP_NAMES})
@click.option(
    "--from",
    "source",
    metavar="CONNINFO",
    envvar="WEFT_FROM",
    help="How to reach the old server, from here and from the new one. Not needed once the"
    " subscription exists.",
)
@click.option(
    "--connection",
    metavar="CONNINFO",
    help="How the new server reaches the old one, if not like this program.",
)
@click.option("--subscription", metavar="NAME", default="upgrade", show_default=True)
@click.option("--publication", metavar="NAME", default="upgrade", show_default=True)
@click.option("--switch-over", "wants_switch", is_flag=True, help="Switch over at the end.")
@click.option(
    "--reverse",
    metavar="CONNINFO",
    envvar="WEFT_REVERSE",
    help="With --switch-over: how the old server will reach the new one, to follow it.",
)
@click.option(
    "--no-way-back", is_flag=True, help="With --switch-over: the old server does not follow."
)
@switch_options(["none", "counts", "recent", "full"])
@common_options
@change_options
@click.pass_obj
def command(
    context: Context,
    /,
    source: str | None,
    connection: str | None,
    subscription: str,
    publication: str,
    wants_switch: bool,
    reverse: str | None,
    no_way_back: bool,
    **rest: Any,
) -> ExitCode:
    """Moves a database from an old server to the one that you connect to, the new one.

    Creates the tables, replicates, compares, and, with --switch-over, switches over. What is
    done already is found out from the servers: run it again at any time, and it continues.

    The new database must exist. Only tables with their indexes, keys and sequences are
    created; for everything else, restore pg_dump --schema-only first.
    """
    if wants_switch and bool(reverse) == no_way_back:
        raise click.UsageError(
            "say how the old server will reach the new one: --reverse CONNINFO, or --no-way-back"
        )
    with (
        context.connect() as new,
        _connect_to_old(new, source, subscription) as old,
    ):
        target = Target(old, new, connection or source or "", subscription, publication)
        code = _replicate(context, target, wants_switch)
        if code is not None:
            return code
        tell_wishes(new, Wishes(subscription, reverse, None, **rest))
        if wants_switch:
            return _switch(context, target, Wishes(subscription, reverse, None, **rest))
        return _ready(context, target)


def _connect_to_old(new: Server, source: str | None, subscription: str) -> Server:
    if source is not None:
        return Server(source, new.application, new.timeout)
    try:
        return new.publisher_of(subscription)
    except Refused:
        raise click.UsageError("name the old server: --from CONNINFO") from None


def _replicate(context: Context, target: Target, wants_switch: bool) -> ExitCode | None:
    """Does all steps that are left, but the switch-over; None if that is next."""
    all_steps = steps(target)
    over = switched(target)
    found = [] if over else obstacles(target)
    left = [] if over or found else [step for step in all_steps if not step.is_done(target)]
    if found or context.options.dry_run:
        data = {
            "steps": [
                {"step": step.name, "what": step.text, "done": step not in left and not found}
                for step in all_steps
            ],
            "switched_over": over,
            "obstacles": [{"problem": problem, "remedy": remedy} for problem, remedy in found],
        }
        emit(
            context,
            1,
            "upgrade-plan",
            data,
            lambda console: _show(console, target, all_steps, left, found, over),
        )
        return ExitCode.REFUSED if found else ExitCode.FINE
    if context.options.output == "table":
        _show(context.console, target, all_steps, left, found, over)
    if left:
        ask(context, "Do these steps now?" if not wants_switch else "Begin now?")
    log = StepLog(context)
    try:
        for step in left:
            # An earlier one may have made it unnecessary.
            if step.is_done(target):
                continue
            started = time.monotonic()
            # Some show progress of their own.
            if step.name not in ("copy", "compare"):
                log.begin(step.text)
            else:
                log.name(step.text)
            step.act(context, target)
            log.end(step.name, time.monotonic() - started)
    finally:
        log.interrupt()
    return None


def _show(
    console: Console,
    target: Target,
    all_steps: list[Step],
    left: list[Step],
    found: list[tuple[str, str]],
    over: bool,
) -> None:
    def version(server: Server) -> str:
        return f"{server.name} ({server.version // 10000})"

    console.print(
        Text(f"Upgrade from {version(target.old)} to {version(target.new)}", "bold"),
        soft_wrap=True,
    )
    for problem, remedy in found:
        console.print(Text.assemble(("✗ ", "bold red"), printable(problem)), soft_wrap=True)
        console.print(Text(f"  {printable(remedy)}", "dim"), soft_wrap=True)
    if found:
        return
    for step in all_steps:
        mark = ("· ", "") if step in left else ("✓ ", "green")
        console.print(Text.assemble(mark, step.text), soft_wrap=True)
    mark = ("✓ ", "green") if over else ("· ", "")
    console.print(Text.assemble(mark, "switch over"))


def _switch(context: Context, target: Target, wishes: Wishes) -> ExitCode:
    reached, _ = phase(target.new, target.subscription)
    if switched(target) and reached not in UNFINISHED:
        return report(
            context, target.new, target.subscription, "The new server accepts writes already."
        )
    return switch_over(context, target.new, wishes)


def _ready(context: Context, target: Target) -> ExitCode:
    """Everything but the switch-over is done: shows what that would find."""
    if switched(target):
        return report(
            context, target.new, target.subscription, "The new server accepts writes already."
        )
    checks = plan(target.new)

    def render(console: Console) -> None:
        show_plan(console, checks)
        console.print(
            "The new server follows the old one. To switch over: weft upgrade --switch-over"
            " --reverse CONNINFO",
            soft_wrap=True,
        )

    emit(context, 1, "upgrade", {"switched_over": False, "checks": checks}, render)
    errors = any(row["severity"] == "error" for row in checks)
    return ExitCode.FINDINGS if errors else ExitCode.FINE
