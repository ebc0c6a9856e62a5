"""What Weft is to reach, which runs show it, and whether their figures do; needs nothing but
Python itself."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from .figures import Figure, Summary, select, summarize
from .ratios import paired

WRITERS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Target:
    """A bound, and what is compared with it: the median, or the whole range."""

    text: str
    bound: float
    # Returns None if there are no figures for it.
    find: Callable[[list[Figure]], Summary | None]
    at_most: bool = False
    worst: bool = False

    def check(self, figures: list[Figure]) -> tuple[Summary | None, bool]:
        found = self.find(figures)
        if found is None:
            return None, False
        if self.at_most:
            return found, (found.maximum if self.worst else found.median) <= self.bound
        return found, (found.minimum if self.worst else found.median) >= self.bound


@dataclass(frozen=True)
class Run:
    """One run of bench/run, in a file of its own; the time is that on two cores."""

    name: str
    minutes: int
    arguments: tuple[str, ...]
    targets: tuple[Target, ...] = ()


def of_system(figures: list[Figure], system: str, writers: int | None = None) -> list[Figure]:
    return [
        figure
        for figure in figures
        if figure.system == system and (writers is None or figure.writers == writers)
    ]


def ratio(
    metric: str, system: str, reference: str, **where: object
) -> Callable[[list[Figure]], Summary | None]:
    """Paired ratios of a system to another."""

    def find(figures: list[Figure]) -> Summary | None:
        chosen = select(figures, metric=metric, **where)
        return paired(of_system(chosen, system), of_system(chosen, reference))

    return find


def values(metric: str, system: str, **where: object) -> Callable[[list[Figure]], Summary | None]:
    def find(figures: list[Figure]) -> Summary | None:
        found = [f.value for f in of_system(select(figures, metric=metric, **where), system)]
        return summarize(found) if found else None

    return find


def to_median(metric: str, system: str, reference: str) -> Callable[..., Summary | None]:
    """Each value of a system to the median of another: for tails."""

    def find(figures: list[Figure]) -> Summary | None:
        chosen = select(figures, metric=metric)
        own = [f.value for f in of_system(chosen, system)]
        other = [f.value for f in of_system(chosen, reference)]
        if not own or not other:
            return None
        return summarize([value / statistics.median(other) for value in own])

    return find


def more_writers(system: str) -> Callable[[list[Figure]], Summary | None]:
    """Of each number of writers and pass, the median relative to the best of smaller numbers."""

    def find(figures: list[Figure]) -> Summary | None:
        ratios = []
        for pass_ in ("first", "later"):
            chosen = of_system(select(figures, metric="drain_tps", pass_=pass_), system)
            numbers = sorted({f.writers for f in chosen if f.writers is not None})
            medians = [
                statistics.median(f.value for f in select(chosen, writers=number))
                for number in numbers
            ]
            ratios += [
                median / max(medians[:place]) for place, median in enumerate(medians) if place
            ]
        return summarize(ratios) if ratios else None

    return find


def lag_to_native(share: int) -> Callable[[list[Figure]], Summary | None]:
    """p99 relative to that of native, at the lower (0) or the higher (1) of the two rates."""

    def find(figures: list[Figure]) -> Summary | None:
        chosen = select(figures, metric="lag_p99_ms")
        rates = sorted({f.rate for f in chosen if f.rate is not None})
        if len(rates) <= share:
            return None
        of_rate = select(chosen, rate=rates[share])
        ratios = paired(of_system(of_rate, "weft"), of_system(of_rate, "native"))
        # Ratios are times as fast: those of times are turned over again.
        if ratios is None:
            return None
        return Summary(1 / ratios.median, 1 / ratios.maximum, 1 / ratios.minimum)

    return find


def both_passes(
    text: str, bounds: tuple[float, float], system: str, reference: str
) -> tuple[Target, ...]:
    return tuple(
        Target(f"{text}, {pass_} pass", bound, ratio("drain_tps", system, reference, pass_=pass_))
        for pass_, bound in zip(("first", "later"), bounds)
    )


FIVE = ("--repeats", "5")


def writers_run(name: str, minutes: int, transactions: int, *systems: str) -> Run:
    """Of several systems at once, since they share a backlog."""
    return Run(
        name, minutes,
        ("drain", "--transactions", str(transactions), "--systems", ",".join(systems),
         "--writers", ",".join(map(str, WRITERS)), *FIVE),
        tuple(
            Target(f"{system}: each number of writers / the best of smaller ones", 0.95,
                   more_writers(system), worst=True)
            for system in systems
        ),
    )  # fmt: skip


def load_run(load: str, minutes: int, transactions: int) -> Run:
    return Run(
        f"drain-{load}", minutes,
        ("drain", "--load", load, "--transactions", str(transactions), "--systems", "native,weft",
         *FIVE),
        both_passes(f"{load}: weft / native", (2.3, 2.3), "weft", "native"),
    )  # fmt: skip


def synchronous_targets() -> tuple[Target, ...]:
    return tuple(
        Target(
            f"synchronous, {clients} clients: transactions/s", bound,
            values("sustained_tps", "weft", clients=clients),
        )
        for clients, bound in ((1, 1100), (16, 3000))
    )  # fmt: skip


# What the targets are about, in the order in which they are measured.  The drains of the first,
# and those that compare numbers of writers, last eight to ten seconds; the others have half of
# that, so that all of them fit into six hours.
RUNS = (
    Run(
        "drain", 38, ("drain", "--systems", "physical,native,weft,weft-stock", *FIVE),
        (*both_passes("weft / native", (3.0, 3.0), "weft", "native"),
         *both_passes("weft / physical", (0.9, 0.65), "weft", "physical"),
         *both_passes("weft-stock / native", (1.7, 1.7), "weft-stock", "native")),
    ),
    Run(
        "groups", 24,
        ("drain", "--transactions", "400000", "--systems",
         "native-timestamps,weft-timestamps,weft-group", *FIVE),
        both_passes("weft-group / native-timestamps", (2.3, 2.3), "weft-group",
                    "native-timestamps"),
    ),
    Run(
        "synchronous", 10,
        ("sustained", "--synchronous", "publisher", "--clients", "1,16", "--seconds", "15",
         "--systems", "native,weft", *FIVE),
        synchronous_targets(),
    ),
    Run(
        "drain-short", 6,
        ("drain", "--transactions", "40000", "--systems", "native,weft", *FIVE),
        both_passes("backlog of 40,000: weft / native", (2.5, 2.5), "weft", "native"),
    ),
    Run(
        "large", 6, ("large", "--systems", "publisher,native-parallel,weft", *FIVE),
        (Target("large: weft / native-parallel", 2.0,
                ratio("applied_s", "weft", "native-parallel")),
         Target("large: seconds of weft / publisher alone", 1.35,
                ratio("applied_s", "publisher", "weft"), at_most=True)),
    ),
    Run(
        "large-update", 8,
        ("large", "--kind", "update", "--systems", "native-parallel,weft", *FIVE),
        (Target("large update: weft / native-parallel", 1.8,
                ratio("applied_s", "weft", "native-parallel")),),
    ),
    writers_run("writers-weft", 36, 750_000, "weft", "weft-timestamps"),
    writers_run("writers-stock", 30, 400_000, "weft-stock", "weft-strict"),
    writers_run("writers-group", 30, 450_000, "weft-group"),
    load_run("uuid", 26, 450_000),
    load_run("composite", 25, 450_000),
    load_run("tpcc", 21, 160_000),
    Run(
        "io-drain", 50,
        ("io-drain", "--transactions", "120000", "--systems", "native,weft", "--writers", "16",
         "--passes", "first", "--repeats", "20"),
        (Target("io-drain: the slowest of 20 / the median of native", 2.0,
                to_median("drain_tps", "weft", "native"), worst=True),
         Target("io-drain: weft / native", 2.8, to_median("drain_tps", "weft", "native"))),
    ),
    Run(
        "lag", 18, ("lag", "--seconds", "40", "--systems", "native,weft", *FIVE),
        (Target("lag at half of native's limit: p99 of weft / native", 1.0, lag_to_native(0),
                at_most=True),
         Target("lag at 90 % of native's limit: p99 of weft / native", 1.0, lag_to_native(1),
                at_most=True)),
    ),
)  # fmt: skip

LINE = ("--rtt", "20ms", "--rate", "100mbit", "--repeats", "3")
LINE_SYSTEMS = ("--systems", "native,weft,weft-lz4")

# Further figures that the documents show, without a target.
MORE_RUNS = (
    Run("parts", 15,
        ("drain", "--transactions", "400000", "--systems", "native,weft-strict,weft", "--writers",
         "1,4", "--repeats", "3")),
    Run("copy", 20, ("copy", "--systems", "native,native-deferred,plain,weft", *FIVE)),
    Run("copy-indexes", 45,
        ("copy", "--indexes", "4", "--systems", "native,native-deferred,plain,weft", *FIVE)),
    Run("sustained", 25,
        ("sustained", "--clients", "1,4,16,32", "--seconds", "15", "--systems",
         "publisher,physical,native,weft,weft-stock", "--repeats", "3")),
    Run("sustained-writers", 20,
        ("sustained", "--clients", "16", "--seconds", "20", "--writers", "1,6,8", "--systems",
         "publisher,native,weft,weft-group", "--repeats", "3")),
    Run("group-of-three", 15,
        ("sustained", "--clients", "1,4", "--systems", "weft-group-3", "--repeats", "3")),
    Run("durable", 12,
        ("drain", "--synchronous", "subscription", "--systems", "native,weft", "--transactions",
         "300000", "--repeats", "3")),
    Run("lag-separate", 45,
        ("lag", "--cpus", "0/1", "--steps", "25%,50%,75%,90%,100%", "--seconds", "60",
         "--systems", "native,weft", "--repeats", "3")),
    Run("line-drain", 20,
        ("drain", "--transactions", "100000", "--passes", "first", *LINE_SYSTEMS, *LINE)),
    Run("line-sustained", 20, ("sustained", "--clients", "16", *LINE_SYSTEMS, *LINE)),
    Run("line-large", 40, ("large", "--systems", "native-parallel,weft,weft-lz4", *LINE)),
    Run("line-copy", 60,
        ("copy", "--systems", "native,plain,weft,weft-lz4", *LINE)),
)  # fmt: skip
