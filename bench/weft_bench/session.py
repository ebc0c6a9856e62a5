"""One run of the benchmark: makes what it needs, and leaves nothing behind but the figures."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psycopg
from rich.console import Console
from rich.text import Text

from .arguments import Arguments, Options
from .drain import SCENARIOS, disk_needed, passes_in_all, run_system
from .figures import Results
from .machine import describe_machine, filesystem_of
from .pair import Pair, make_template
from .progress import Steps
from .server import BenchError, run
from .systems import Subscription, chosen_systems

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def on_signal(number: int, _frame) -> None:
    # The way out is not to be interrupted.
    for again in STOP_SIGNALS:
        signal.signal(again, signal.SIG_IGN)
    raise SystemExit(128 + number)


def describe_settings(options: Options, systems: list[Subscription]) -> dict[str, object]:
    scenario = SCENARIOS[options.scenario]
    return {
        "transactions": options.transactions_per_client * options.clients,
        "scale": options.scale,
        "clients": options.clients,
        "repeats": options.repeats,
        "publisher": scenario.publisher,
        "subscriber": scenario.subscriber,
        "systems": {
            system.label: {"subscription": system.options, "subscriber": system.settings()}
            for system in systems
        },
    }


def as_lines(values: dict, indent: str = "") -> list[str]:
    lines = []
    for name, value in values.items():
        if isinstance(value, dict) and any(isinstance(item, dict) for item in value.values()):
            lines += [f"{indent}{name}:", *as_lines(value, indent + "  ")]
        elif isinstance(value, dict):
            pairs = ", ".join(f"{key} = {item}" for key, item in value.items())
            lines.append(f"{indent}{name}: {pairs or '-'}")
        else:
            lines.append(f"{indent}{name}: {value}")
    return lines


def check_disk(directory: Path, scenarios: tuple[Options, ...]) -> None:
    needed = max(disk_needed(options) for options in scenarios)
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise BenchError(
            f"{directory} has {free / 1e9:.0f} GB free, and about {needed / 1e9:.0f} GB are "
            "needed; choose another place with --directory, or a smaller --scale"
        )
    if filesystem_of(directory) in ("tmpfs", "ramfs"):
        raise BenchError(f"{directory} is no disk; choose another place with --directory")


def run_scenario(
    options: Options, directory: Path, sockets: Path, results: Results, steps: Steps,
    pairs: list[Pair],
) -> None:  # fmt: skip
    systems = chosen_systems(options)
    scenario = SCENARIOS[options.scenario]
    template = Pair(directory / f"template-{options.scenario}", sockets)
    pair = Pair(directory / "run", sockets)
    pairs += [template, pair]
    make_template(template, options.scale, scenario.publisher, scenario.subscriber, steps)
    with steps.all_of(options.scenario, passes_in_all(options, systems)):
        for repeat in range(1, options.repeats + 1):
            for system in systems:
                run_system(options, system, repeat, template, pair, results, steps)
    for used in (template, pair):
        shutil.rmtree(used.directory)


def make_directory(arguments: Arguments) -> Path:
    """On a disk: /tmp often is none.  The name is short enough for nothing but data; sockets,
    whose paths may not be long, lie elsewhere."""
    parent = arguments.directory or os.environ.get("WEFT_CACHE") or tempfile.gettempdir()
    try:
        return Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    except OSError as error:
        raise BenchError(f"no directory can be made in {parent}: {error.strerror}") from None


def measure(
    arguments: Arguments, cleanup: ExitStack, results: Results, console: Console, pairs: list[Pair]
) -> None:
    directory = make_directory(arguments)
    cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
    sockets = Path(tempfile.mkdtemp(prefix="weft-bench-"))
    cleanup.callback(shutil.rmtree, sockets, ignore_errors=True)
    cleanup.callback(lambda: [pair.abandon() for pair in pairs])
    check_disk(directory, arguments.scenarios)

    version = run("postgres", "--version").split()[2]
    results.about = {
        "machine": describe_machine(version, directory),
        "settings": {
            options.scenario: describe_settings(options, chosen_systems(options))
            for options in arguments.scenarios
        },
    }
    results.write()
    for line in as_lines(results.about):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if results.about["machine"]["load_before"] > 0.5:
        console.print("[yellow]warning:[/] this machine is busy; the figures will be worth little")
    with Steps(console) as steps:
        for options in arguments.scenarios:
            run_scenario(options, directory, sockets, results, steps, pairs)


def run_session(arguments: Arguments) -> int:
    # What goes to a file is not to be cut at 80 columns.
    console = Console() if os.isatty(1) else Console(width=140)
    for number in STOP_SIGNALS:
        signal.signal(number, on_signal)
    # The caller's own settings for libpq are not meant for these servers.
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]

    results = Results(arguments.json)
    pairs: list[Pair] = []
    status = 0
    with ExitStack() as cleanup:
        try:
            measure(arguments, cleanup, results, console, pairs)
        except (BenchError, psycopg.Error, OSError) as error:
            console.print(Text.assemble(("failed: ", "bold red"), str(error)))
            for server in (server for pair in pairs for server in pair.servers):
                for line in server.complaints():
                    console.print(f"  {server.name}: {line}", highlight=False, markup=False)
            status = 1
        except SystemExit as stopped:
            console.print("[yellow]interrupted[/]; the servers are stopped and removed")
            status = stopped.code
    for table in results.tables():
        console.print(table)
    return status
