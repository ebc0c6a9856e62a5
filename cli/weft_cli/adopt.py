"""weft adopt: moves a subscription to a slot that uses Weft's output plugin."""

from typing import Any

import click
from rich.console import Console
from rich.text import Text

from weft_cli import adoption
from weft_cli.adoption import Adoption
from weft_cli.adoption_checks import obstacles
from weft_cli.adoption_state import PGOUTPUT, WEFT, State, Step, find_pair, remaining_steps
from weft_cli.changes import StepLog, ask
from weft_cli.context import Context
from weft_cli.errors import Refused
from weft_cli.exit_code import ExitCode
from weft_cli.options import HELP_NAMES, change_options, common_options, publisher_option
from weft_cli.output import duration, emit, printable
from weft_cli.publisher_plugin import Obstacle
from weft_cli.server import Server

# Seconds to wait for the other side, unless --timeout says otherwise.
WAIT_LIMIT = 60.0

FIRST_VERSION = 170000


def describe(step: Step, state: State, plugin: str) -> str:
    pair = find_pair(state, plugin)
    return {
        Step.CLEAN: f'drop slot "{pair.new_name}", which is left over',
        Step.STOP: f'try to copy slot "{pair.old_name}", then stop the subscription',
        Step.WAIT: f'wait until nobody uses slot "{pair.old_name}"',
        Step.COPY: f'copy the slot to "{pair.new_name}", which uses plugin {plugin}',
        Step.FAILOVER: "mark the new slot for failover",
        Step.START: "start the subscription",
        Step.SETTLE: "wait until the publisher streams from the new slot",
        Step.STANDBY: "wait until the publisher's standbys have the new slot",
        Step.DROP: f'drop slot "{pair.old_name}"',
    }[step]


@click.command("adopt", context_settings={"help_option_names": HELP_NAMES})
@click.argument("subscription")
@click.option(
    "--plugin",
    type=click.Choice([WEFT, PGOUTPUT]),
    default=WEFT,
    show_default=True,
    help="The output plugin to use; pgoutput is the way back.",
)
@click.option(
    "--standby",
    "standbys",
    metavar="CONNINFO",
    multiple=True,
    help="A standby of the publisher that must have the new slot before the old one is dropped."
    " Only for subscriptions with failover; may be repeated.",
)
@common_options
@change_options
@publisher_option
@click.pass_obj
def command(
    context: Context,
    subscription: str,
    plugin: str,
    standbys: tuple[str, ...],
    publisher: str | None,
) -> ExitCode:
    """Moves SUBSCRIPTION to a slot with Weft's output plugin.

    Nothing is copied again, and nothing is lost. Apply pauses for about a second. If this is
    interrupted at any moment, run it again: it continues where it was.
    """
    with context.connect() as subscriber:
        _check_versions(subscriber, plugin)
        with subscriber.publisher_of(subscription, publisher) as source:
            if source.version < FIRST_VERSION:
                raise Refused(
                    f"{source.name} runs PostgreSQL {source.version // 10000}; slots can be moved"
                    " on 17 and later"
                )
            work = Adoption(
                subscriber,
                source,
                subscription,
                plugin,
                context.options.timeout or WAIT_LIMIT,
                [Server(each, subscriber.application, subscriber.timeout) for each in standbys],
            )
            return _adopt(context, work)


def _check_versions(subscriber: Server, plugin: str) -> None:
    if subscriber.version < FIRST_VERSION:
        raise Refused(
            f"{subscriber.name} runs PostgreSQL {subscriber.version // 10000}; Weft needs 17 or"
            " later"
        )
    if plugin == WEFT:
        subscriber.require_weft()


def _adopt(context: Context, work: Adoption) -> ExitCode:
    if not context.options.dry_run:
        work.lock()
    state = work.look()
    found = obstacles(work, state)
    if found:
        _show(context, work, state, [], found)
        # An earlier call may have stopped the subscription, and now it cannot be completed.
        if (
            not context.options.dry_run
            and state.slot_name is not None
            and not state.enabled
            and work.go_back(enabled_only=False)
        ):
            context.errors.print("The subscription has its old slot again, and is enabled.")
        return ExitCode.REFUSED
    steps = remaining_steps(state, work.plugin)
    if not steps or context.options.dry_run:
        _show(context, work, state, steps, [])
        return ExitCode.FINE
    if context.options.output == "table":
        _print_plan(context.console, work, state, steps)
    ask(context, f'Move subscription "{work.subscription}" now?')

    log = StepLog(context)
    try:
        finished = adoption.run(
            work,
            lambda step: log.begin(describe(step, work.look(), work.plugin)),
            lambda step, seconds: log.end(step.value, seconds),
        )
    except KeyboardInterrupt:
        context.errors.print(
            "The subscription may be stopped. Run this again: it continues where it was.",
            soft_wrap=True,
        )
        raise
    finally:
        log.interrupt()
    return _report(context, work, log, finished)


def _report(context: Context, work: Adoption, log: StepLog, finished: bool) -> ExitCode:
    pair = find_pair(work.look(), work.plugin)
    stopped = ("stop", "wait", "copy", "failover", "start", "settle")
    pause = sum(seconds for name, seconds in log.seconds if name in stopped)
    data: dict[str, Any] = {
        "subscription": work.subscription,
        "plugin": work.plugin,
        "slot": pair.new_name,
        "old_slot": None if finished else pair.old_name,
        "steps": [{"step": name, "seconds": seconds} for name, seconds in log.seconds],
        "pause": pause,
    }

    def render(console: Console) -> None:
        console.print(
            Text(
                f'Subscription "{work.subscription}" uses slot "{pair.new_name}" with plugin'
                f" {work.plugin}. Apply has paused for at most {duration(pause)}."
            ),
            soft_wrap=True,
        )
        if not finished:
            console.print(
                Text(
                    f'Slot "{pair.old_name}" is kept, because the subscription has failover:'
                    " without it, a failover to a standby that does not have the new slot yet"
                    " loses the subscription. Name the standbys with --standby, or see on each"
                    " of them that pg_replication_slots has the new slot (synced, and not"
                    " temporary), and then run on the publisher:"
                ),
                soft_wrap=True,
            )
            console.print(
                Text(f"SELECT pg_drop_replication_slot('{pair.old_name}');"), soft_wrap=True
            )

    emit(context, 1, "adopt", data, render)
    return ExitCode.FINE if finished else ExitCode.FINDINGS


def _print_plan(console: Console, work: Adoption, state: State, steps: list[Step]) -> None:
    console.print(Text(f'Subscription "{work.subscription}":', "bold"))
    for number, step in enumerate(steps, 1):
        console.print(
            Text(f"{number:3}. {printable(describe(step, state, work.plugin))}"), soft_wrap=True
        )


def _show(
    context: Context, work: Adoption, state: State, steps: list[Step], found: list[Obstacle]
) -> None:
    """What would be done, why it cannot be done, or that there is nothing to do."""

    def render(console: Console) -> None:
        for obstacle in found:
            console.print(
                Text.assemble(("✗ ", "bold red"), printable(obstacle.problem)), soft_wrap=True
            )
            if obstacle.remedy:
                console.print(Text(f"  {printable(obstacle.remedy)}", "dim"), soft_wrap=True)
        if steps:
            _print_plan(console, work, state, steps)
        elif not found:
            console.print(
                Text(
                    f'Subscription "{work.subscription}" already uses slot "{state.slot_name}"'
                    f" with plugin {work.plugin}. There is nothing to do."
                ),
                soft_wrap=True,
            )

    emit(
        context,
        1,
        "adopt-plan",
        {
            "subscription": work.subscription,
            "plugin": work.plugin,
            "steps": [
                {"step": step.value, "what": describe(step, state, work.plugin)} for step in steps
            ],
            "obstacles": found,
        },
        render,
    )
