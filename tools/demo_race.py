"""Several subscribers do the same work, one after the other; bars show them side by side."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from demo_common import DemoError, Server, console, value_of
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

# Seconds between two looks whether a run is finished, and between two of its samples.
LOOK = 0.01
SAMPLE = 0.1
# Seconds after which a run is assumed to hang.
TIME_LIMIT = 150


@dataclass
class Contender:
    """A subscriber, and how it gets its changes."""

    name: str
    server: Server
    slot: str
    plugin: str
    uses_weft: bool = True


@dataclass
class Work:
    """What each contender does, and how to see how far it is."""

    title: str
    amount: int  # of rows or transactions
    begin: str  # the statement that begins it; {slot} is the contender's
    is_finished: str  # a query for a boolean
    progress: str  # a query for a number
    growth: float  # by which that number grows, more or less


@dataclass
class Run:
    contender: Contender
    samples: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    seconds: float | None = None

    def add(self, moment: float, share: float) -> None:
        # A run that is not finished never looks finished, nor moves back.
        self.samples.append((moment, min(max(share, self.samples[-1][1]), 0.99)))

    def share_at(self, moment: float) -> float:
        """The share that was done that many seconds after the run began."""
        if self.seconds is not None and moment >= self.seconds:
            return 1.0
        before = (0.0, 0.0)
        for sample in self.samples:
            if sample[0] > moment:
                part = (moment - before[0]) / (sample[0] - before[0])
                return before[1] + part * (sample[1] - before[1])
            before = sample
        return before[1]


@dataclass
class Bar:
    """A bar that is as long as there is room; its track shows the room that is left."""

    share: float
    style: str
    track: bool = False

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        full, rest = ("=", "-") if options.ascii_only else ("━", "─")
        length = round(options.max_width * self.share)
        room = options.max_width - length if self.track else 0
        yield Text.assemble((full * length, self.style), (rest * room, "dim"))


class Race:
    def __init__(self, work: Work, contenders: Iterable[Contender]):
        self.work = work
        self.runs = [Run(contender) for contender in contenders]

    def run(self, after_run: Callable[[Contender], None]) -> None:
        with Live(console=console, transient=True, auto_refresh=False) as live:
            for run in self.runs:
                self.run_one(run, live)
                after_run(run.contender)

    def run_one(self, run: Run, live: Live) -> None:
        with run.contender.server.connect() as connection:
            before = value_of(connection, self.work.progress)
            start = time.monotonic()
            connection.execute(self.work.begin.format(slot=run.contender.slot))
            while not value_of(connection, self.work.is_finished):
                elapsed = time.monotonic() - start
                if elapsed > TIME_LIMIT:
                    raise DemoError(f"{run.contender.name} has not finished in {TIME_LIMIT} s")
                if elapsed > run.samples[-1][0] + SAMPLE:
                    done = float(value_of(connection, self.work.progress) - before)
                    run.add(elapsed, done / self.work.growth)
                    if console.is_terminal:
                        live.update(self.picture(run, elapsed), refresh=True)
                time.sleep(LOOK)
            run.seconds = time.monotonic() - start

    def picture(self, current: Run, elapsed: float) -> Table:
        """All bars as they are, or were, that long after the beginning of each run."""
        grid = bar_grid()
        for run in self.runs:
            share = run.share_at(elapsed)
            if run is current:
                state = Text(f"{elapsed:.1f} s", "bold")
            elif run.seconds is None:
                state = Text("waits", "dim")
            else:
                state = Text(f"{run.seconds:.1f} s", "dim")
            name = Text(run.contender.name, "bold" if run is current else "")
            bar = Bar(share, style(run.contender), track=True)
            grid.add_row(name, bar, f"{share:.0%}" if run.samples[1:] else "", state, "")
        if any(run.seconds is not None for run in self.runs):
            grid.add_row("", Text("those that are finished are replayed", "dim"))
        return grid

    def result(self) -> Table:
        """The time of each run as the length of a bar."""
        grid = bar_grid()
        longest = max(run.seconds or 0 for run in self.runs)
        for run in self.runs:
            assert run.seconds is not None
            bar = Bar(run.seconds / longest, style(run.contender))
            grid.add_row(
                run.contender.name, bar, f"{run.seconds:.1f} s",
                f"{self.work.amount / run.seconds:,.0f}/s",
                f"{self.factor(run):.1f} times as fast" if run is not self.runs[0] else "",
            )  # fmt: skip
        return grid

    def factor(self, run: Run) -> float:
        """How many times as fast as the first contender, which is PostgreSQL alone."""
        first = self.runs[0]
        assert first.seconds and run.seconds
        return first.seconds / run.seconds


def style(contender: Contender) -> str:
    return "green" if contender.uses_weft else "yellow"


def bar_grid() -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for _ in range(3):
        grid.add_column(justify="right", no_wrap=True)
    return grid
