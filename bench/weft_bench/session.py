"""One run of the benchmark: creates what it needs, and leaves only the figures behind."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.text import Text

from .arguments import Arguments, Options
from .backlog import Shared
from .build import Build, UnavailableError, debian_build, install_pglogical, server_build
from .charts import Charts, write_charts
from .errors import BenchError
from .figures import Results
from .link import Link, LinkUnavailableError
from .loads import contents_of
from .machine import describe_machine, filesystem_of
from .pair import Pair, make_template
from .place import Places
from .progress import Steps
from .provenance import describe_provenance
from .quiet import observe
from .scenarios import SCENARIOS
from .scenarios.base import PUBLISHER, SMOKE, SUBSCRIBER, Scenario
from .scenarios.drain import Drain, passes_to_run
from .scenarios.lag import NativeLimit, absolute
from .systems import chosen_systems
from .systems.base import System
from .systems.native import Native
from .tables import tables

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAILURES = (BenchError, psycopg.Error, OSError)


def on_signal(number: int, _frame: object) -> None:
    # The cleanup must not be interrupted.
    for again in STOP_SIGNALS:
        signal.signal(again, signal.SIG_IGN)
    raise SystemExit(128 + number)


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


@dataclass(frozen=True)
class Where:
    """The current measurement, and the place of its servers."""

    options: Options
    system: System
    repeat: int
    directory: Path
    sockets: Path
    places: Places
    # What is done there, if it is not the scenario itself.
    measures: type[Scenario] | None = None
    # The backlogs of this repeat, if there are any that systems share.
    shared: Shared | None = None

    @property
    def scenario(self) -> type[Scenario]:
        return self.measures or SCENARIOS[self.options.scenario]


def rotated(systems: list[System], repeat: int) -> list[System]:
    """The order of a repeat, counted from 1: each begins with another system, so that none is
    always measured right after the same state of the machine."""
    begin = (repeat - 1) % len(systems) if systems else 0
    return systems[begin:] + systems[:begin]


def shared_backlogs(
    options: Options, systems: list[System], repeat: int, directory: Path, steps: Steps
) -> Shared | None:
    scenario = SCENARIOS[options.scenario]
    sharing = [system for system in systems if system.shares]
    if not (issubclass(scenario, Drain) and sharing):
        return None
    settings = {**scenario.publisher, **(SMOKE if options.smoke else {})}
    return Shared(
        directory / "backlogs", sharing, options, repeat, passes_to_run(options), scenario.prewarm,
        settings, steps,
    )  # fmt: skip


class Session:
    def __init__(self, arguments: Arguments, results: Results, console: Console):
        self.arguments = arguments
        self.results = results
        self.console = console
        self.pairs: list[Pair] = []
        self.builds: dict[str, Build] = {}
        # Why a system is not available.
        self.unavailable: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.failed = False

    def get_builds(self, steps: Steps) -> None:
        """Fetches and builds what the systems need that are not part of the server."""
        wanted = {name for options in self.arguments.scenarios for name in options.systems}
        self.builds["server"] = server_build()
        if "pglogical" in wanted:
            try:
                with steps.step("fetching and building pglogical, unless it is cached"):
                    self.versions["pglogical"] = install_pglogical(self.builds["server"])
            except UnavailableError as reason:
                self.unavailable["pglogical"] = str(reason)
        if wanted & {"slony", "londiste"}:
            try:
                with steps.step("fetching Slony-I and Londiste, unless they are cached"):
                    self.builds["debian-15"] = debian_build()
            except UnavailableError as reason:
                self.unavailable |= {"slony": str(reason), "londiste": str(reason)}

    def describe(self, directory: Path) -> None:
        about: dict[str, Any] = {
            "machine": describe_machine(self.builds["server"].version, directory),
            "provenance": describe_provenance(self.builds["server"], self.arguments.commit),
            "settings": {
                options.scenario: self.describe_settings(options)
                for options in self.arguments.scenarios
            },
        }
        self.results.about = about
        self.results.write()
        for line in as_lines(about):
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)
        use = observe()
        if not use.quiet:
            self.console.print(
                f"[yellow]warning:[/] this machine is busy ({use.idle:.0f} % idle, {use.steal:.0f} "
                "% stolen); the figures will not be reliable"
            )

    def describe_settings(self, options: Options) -> dict[str, object]:
        scenario = SCENARIOS[options.scenario]
        systems, _ = chosen_systems(options, self.unavailable)
        given = {name: value for name, value in vars(options).items() if name != "scenario"}
        return {
            "options": given,
            "publisher": scenario.publisher,
            "subscriber": scenario.subscriber,
            "systems": {system.label: self.describe_system(system) for system in systems},
        }

    def describe_system(self, system: System) -> dict[str, object]:
        build = self.builds[system.build_name]
        description = {
            "server": build.version,
            "publisher": system.publisher_settings(build),
            "subscriber": system.subscriber_settings(build),
            "subscription": getattr(system, "options", None),
            "version": self.versions.get(system.name),
        }
        return {name: value for name, value in description.items() if value}

    def check_disk(self, directory: Path) -> None:
        needed = max(
            SCENARIOS[options.scenario].disk_needed(options, contents_of(options, keyed=False))
            for options in self.arguments.scenarios
        )
        free = shutil.disk_usage(directory).free
        if free < needed:
            raise BenchError(
                f"{directory} has {free / 1e9:.0f} GB free, and about {needed / 1e9:.0f} GB are "
                "needed; choose another place with --directory, or a smaller size"
            )
        if filesystem_of(directory) in ("tmpfs", "ramfs"):
            raise BenchError(f"{directory} is not on a disk; choose another place with --directory")

    def run_scenario(self, options: Options, directory: Path, sockets: Path, steps: Steps) -> None:
        """Through a line between the servers, if that is asked for."""
        with ExitStack() as resources:
            places = Places()
            if options.line:
                try:
                    link = resources.enter_context(Link(options.line))
                except LinkUnavailableError as reason:
                    self.skip(options, f"there can be no line between two servers: {reason}")
                    return
                self.results.note("link", scenario=options.scenario, **link.about)
                self.console.print(f"line: {link.about}", markup=False, highlight=False)
                places = link.places()
            if options.cpus:
                publisher, subscriber = options.cpus
                places = Places(
                    replace(places.publisher, cpus=publisher),
                    replace(places.subscriber, cpus=subscriber),
                )
            # Whatever happens to the scenario, its servers end before their namespaces.
            resources.callback(self.abandon)
            self.run_systems(options, places, directory, sockets, steps)

    def skip(self, options: Options, reason: str) -> None:
        self.console.print(f"{options.scenario}: skipped: {reason}", markup=False)
        self.results.note("skipped", scenario=options.scenario, reason=reason)

    def with_rates(self, where: Where, templates: dict[str, Pair], steps: Steps) -> Options | None:
        """The options with rates in place of percentages of what native follows, which is measured
        for that; None if it cannot be."""
        options = where.options
        limit = None
        if any(step.endswith("%") for step in options.steps):
            if not self.run_system(where, templates, steps):
                return None
            limit = self.results.select(metric="native_limit_tps")[-1].value
        return replace(options, steps=absolute(options.steps, limit))

    def run_systems(
        self, options: Options, places: Places, directory: Path, sockets: Path, steps: Steps
    ) -> None:
        systems, refusals = chosen_systems(options, self.unavailable)
        for refusal in refusals:
            word = "missing" if refusal.missing else "not in this scenario"
            self.console.print(
                Text.assemble(
                    f"{options.scenario}: ", (f"{refusal.system} is {word}: ", "yellow"),
                    refusal.reason,
                )
            )  # fmt: skip
            if refusal.missing:
                self.results.note(
                    "missing", scenario=options.scenario, system=refusal.system,
                    reason=refusal.reason,
                )  # fmt: skip
                # A system that was asked for by name must not be missing.
                self.failed = self.failed or self.arguments.named_systems
        scenario = SCENARIOS[options.scenario]
        templates: dict[str, Pair] = {}
        if options.steps:
            limit = Where(options, Native(), 0, directory, sockets, places, NativeLimit)
            with_rates = self.with_rates(limit, templates, steps)
            if with_rates is None:
                return
            options = with_rates
        with steps.all_of(
            options.scenario, options.repeats * len(systems) * scenario.passes(options)
        ):
            for repeat in range(1, options.repeats + 1):
                shared = shared_backlogs(options, systems, repeat, directory, steps)
                for system in rotated(systems, repeat):
                    where = Where(
                        options, system, repeat, directory, sockets, places, shared=shared
                    )
                    if not self.run_system(where, templates, steps):
                        # It would fail again.
                        systems.remove(system)
                        steps.passes_done((options.repeats - repeat) * scenario.passes(options))
                if shared:
                    shared.remove()
        for used in (*templates.values(), *(pair for pair in self.pairs)):
            shutil.rmtree(used.directory, ignore_errors=True)
        self.pairs.clear()

    def run_system(self, where: Where, templates: dict[str, Pair], steps: Steps) -> bool:
        """Returns false if the system has failed."""
        options, system, scenario = where.options, where.system, where.scenario
        before = steps.done
        steps.now(f"{system.label}, repeat {where.repeat}")
        pair = None
        try:
            template = self.template(where, templates, steps)
            pair = Pair(
                where.directory / "run", where.sockets, template.build, template.contents,
                where.places,
            )  # fmt: skip
            self.pairs.append(pair)
            run = scenario(options, system, where.repeat, pair, self.results, steps)
            if isinstance(run, Drain) and system.shares:
                run.shared = where.shared
            run.start(template)
            run.run()
            # This data is not used again, so it need not be written.
            pair.stop("immediate")
        except FAILURES as error:
            self.report_failure(where, steps.label, error, pair)
            for used in self.pairs:
                used.abandon()
            steps.passes_done(before + scenario.passes(options) - steps.done)
            return False
        finally:
            if pair in self.pairs and not pair.running() and not pair.daemons:
                self.pairs.remove(pair)
        return True

    def report_failure(self, where: Where, label: str, error: Exception, pair: Pair | None) -> None:
        self.failed = True
        scenario = where.options.scenario
        self.console.print(Text.assemble(("failed: ", "bold red"), f"{scenario}, {label}: {error}"))
        for server in pair.all_servers if pair else ():
            for line in server.complaints():
                self.console.print(f"  {server.name}: {line}", highlight=False, markup=False)
        self.results.note(
            "failed",
            scenario=scenario,
            system=where.system.name,
            writers=where.system.writers,
            during=label,
            reason=str(error)[:1000],
        )

    def template(self, where: Where, templates: dict[str, Pair], steps: Steps) -> Pair:
        """The template on the system's server, made when the first system needs it."""
        name = where.system.build_name
        if name not in templates:
            contents = contents_of(where.options, keyed=name != "server")
            template = Pair(
                where.directory / f"template-{name}", where.sockets, self.builds[name], contents
            )
            self.pairs.append(template)
            shutil.rmtree(template.directory, ignore_errors=True)
            special = SMOKE if where.options.smoke else {}
            make_template(template, {**PUBLISHER, **special}, {**SUBSCRIBER, **special}, steps)
            templates[name] = template
        return templates[name]

    def abandon(self) -> None:
        for pair in self.pairs:
            pair.abandon()

    def measure(self, cleanup: ExitStack) -> None:
        directory = make_directory(self.arguments)
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        sockets = Path(tempfile.mkdtemp(prefix="weft-bench-"))
        cleanup.callback(shutil.rmtree, sockets, ignore_errors=True)
        cleanup.callback(self.abandon)
        self.check_disk(directory)
        with Steps(self.console) as steps:
            self.get_builds(steps)
            self.describe(directory)
            for options in self.arguments.scenarios:
                self.run_scenario(options, directory, sockets, steps)


def make_directory(arguments: Arguments) -> Path:
    """On a disk: /tmp often is none.  The name is short enough for nothing but data; sockets,
    whose paths may not be long, lie elsewhere."""
    parent = arguments.directory or os.environ.get("WEFT_CACHE") or tempfile.gettempdir()
    try:
        return Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    except OSError as error:
        raise BenchError(f"no directory can be created in {parent}: {error.strerror}") from None


def run_session(arguments: Arguments) -> int:
    # Output to a file must not be wrapped at 80 columns.
    console = Console() if os.isatty(1) else Console(width=140)
    for number in STOP_SIGNALS:
        signal.signal(number, on_signal)
    # The caller's settings for libpq do not apply to these servers.
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]

    results = Results(arguments.json)
    session = Session(arguments, results, console)
    status = 0
    with ExitStack() as cleanup:
        try:
            session.measure(cleanup)
            status = 1 if session.failed else 0
        except FAILURES as error:
            console.print(Text.assemble(("failed: ", "bold red"), str(error)))
            status = 1
        except SystemExit as stopped:
            console.print("[yellow]interrupted[/]; the servers are stopped and removed")
            status = int(stopped.code or 0)
    report(arguments, results, console)
    return status


def report(arguments: Arguments, results: Results, console: Console) -> None:
    for title, table in tables(results):
        console.print(Text(title, style="bold"))
        console.print(table)
    for kind in ("missing", "skipped", "failed"):
        for entry in results.about.get(kind, []):
            reason = entry["reason"].splitlines()[0]
            what = entry.get("during") or entry.get("system", "everything")
            line = f"{kind}: {entry['scenario']}, {what}: {reason}"
            console.print(Text(line, style="bold red" if kind == "failed" else "yellow"))
    if arguments.charts and results.figures:
        files = Charts(results.figures, results.about).draw()
        write_charts(files, arguments.charts)
        console.print(f"charts: {', '.join(files)}", highlight=False)
