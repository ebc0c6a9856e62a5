"""Progress: bars in a terminal, otherwise lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# Without a terminal, in seconds: the interval between reports of a step, and the duration from
# which on its end is reported.
REPORT_INTERVAL = 10
WORTH_A_LINE = 2


class Steps:
    def __init__(self, console: Console):
        self.console = console
        # Few refreshes: drawing takes processor time from the measurement.
        self.bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            refresh_per_second=2,
            disable=not console.is_terminal,
        )
        self.whole: TaskID | None = None
        self.label = ""
        self.title = ""
        self.passes = self.done = 0
        self.start = 0.0

    def __enter__(self) -> Steps:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    @contextmanager
    def all_of(self, what: str, passes: int) -> Iterator[None]:
        """The bar for everything, counted in passes."""
        self.title = what
        self.whole = whole = self.bars.add_task(f"[bold]{what}", total=passes)
        self.passes, self.done, self.start = passes, 0, time.monotonic()
        try:
            yield
        finally:
            self.bars.remove_task(whole)
            self.whole = None
            self.label = ""

    def now(self, label: str) -> None:
        """Sets the label of the next steps."""
        self.label = label
        if self.whole is not None:
            self.bars.update(self.whole, description=f"[bold]{self.title}[/] {label}")

    def passes_done(self, number: int = 1) -> None:
        """Passes that a failed system will not run count, too."""
        self.done += number
        if self.whole is not None:
            self.bars.advance(self.whole, number)
        if self.bars.disable and 0 < self.done < self.passes:
            left = (time.monotonic() - self.start) / self.done * (self.passes - self.done)
            self.say(f"{self.title}: {self.done} of {self.passes} done, about {left:.0f} s left")

    @contextmanager
    def step(self, what: str, total: float | None = None) -> Iterator[Step]:
        step = Step(self, what, total)
        try:
            yield step
        except BaseException:
            self.bars.remove_task(step.task)
            raise
        step.end()

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)


class Step:
    def __init__(self, steps: Steps, what: str, total: float | None):
        self.steps = steps
        self.what = what
        self.total = total
        self.start = self.reported = time.monotonic()
        self.task = steps.bars.add_task(f"  {what}", total=total)

    def at(self, done: float) -> None:
        """Reports the progress of the step."""
        if not self.steps.bars.disable:
            self.steps.bars.update(self.task, completed=done)
            return
        now = time.monotonic()
        if self.total and now - self.reported > REPORT_INTERVAL:
            self.reported = now
            self.say(f"{self.what}: {done / self.total:.0%}")

    def end(self) -> None:
        self.steps.bars.remove_task(self.task)
        seconds = time.monotonic() - self.start
        if self.steps.bars.disable and seconds >= WORTH_A_LINE:
            self.say(f"{self.what} ({seconds:.1f} s)")

    def say(self, text: str) -> None:
        self.steps.say(f"  {self.steps.label}: {text}" if self.steps.label else f"  {text}")
