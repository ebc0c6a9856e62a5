"""The command line; needs nothing but Python itself."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .line import Line

SYSTEMS = (
    "publisher", "physical", "native", "native-text", "native-parallel", "pglogical", "slony",
    "londiste", "weft", "weft-stock", "native-timestamps", "weft-timestamps", "weft-exact",
    "weft-detect", "weft-strict", "weft-lz4", "weft-group", "weft-group-3", "native-deferred",
    "plain",
)  # fmt: skip
# Those with track_commit_timestamp = on, for a comparison among themselves, and those that show
# what a part of Weft contributes.
ONLY_IF_NAMED = (
    "native-timestamps", "weft-timestamps", "weft-exact", "weft-detect", "weft-strict", "weft-lz4",
    "weft-group", "weft-group-3", "native-deferred", "plain",
)  # fmt: skip
PASSES = ("first", "later")
KINDS = ("insert", "update", "delete")
LOADS = ("tpcb", "mixed", "wide", "uuid", "composite", "tpcc")
# Transactions of a drain that lasts for ten seconds or more, by load.
ENOUGH_TRANSACTIONS = {
    "tpcb": 1_200_000,
    "mixed": 400_000,
    "wide": 500_000,
    "uuid": 600_000,
    "composite": 600_000,
    "tpcc": 150_000,
}
SYNCHRONOUS = ("subscription", "publisher")


@dataclass(frozen=True)
class Options:
    """The options of one scenario; those that only other scenarios need are ignored."""

    scenario: str
    systems: tuple[str, ...] = tuple(name for name in SYSTEMS if name not in ONLY_IF_NAMED)
    transactions: int = ENOUGH_TRANSACTIONS["tpcb"]
    seconds: int = 30
    rows: int = 0
    scale: int = 50
    clients: tuple[int, ...] = (8,)
    writers: tuple[int, ...] = (4,)
    repeats: int = 3
    passes: tuple[str, ...] = PASSES
    kind: str = "insert"
    indexes: int = 0
    load: str = "tpcb"
    # Rates of the load: transactions per second, or, with a "%", relative to what native follows.
    steps: tuple[str, ...] = ()
    synchronous: tuple[str, ...] = ()
    # Processors of publisher and subscriber, as taskset has them.
    cpus: tuple[str, str] | None = None
    # Seconds, and bits per second; without them, the servers are connected by a local socket.
    rtt: float | None = None
    rate: float = 0.0
    # Only whether it works: the figures mean nothing.
    smoke: bool = False

    @property
    def line(self) -> Line | None:
        return None if self.rtt is None else Line(self.rtt, self.rate)

    @property
    def transactions_per_client(self) -> int:
        """The same for every client; rounded up, so that there are never fewer in total."""
        return -(-self.transactions // self.clients[0])

    @property
    def variant(self) -> str | None:
        """A name for figures that cannot be compared with those of the plain scenario."""
        parts = []
        if self.scenario == "large" and self.kind != "insert":
            parts.append(self.kind)
        if self.scenario == "copy" and self.indexes:
            parts.append(f"{self.indexes} indexes")
        if self.scenario in OWN_OPTIONS["load"] and self.load != "tpcb":
            parts.append(self.load)
        parts += [f"synchronous {who}" for who in self.synchronous]
        if self.cpus:
            parts.append("separate processors")
        if self.line:
            parts.append(self.line.name)
        return ", ".join(parts) or None


DEFAULTS = {
    "drain": Options("drain"),
    "sustained": Options("sustained", clients=(1, 2, 4, 8, 16, 24, 32), repeats=1),
    "io-drain": Options(
        "io-drain", systems=("physical", "native", "weft"), transactions=150_000, scale=200,
        writers=(1, 2, 4, 8, 16),
    ),
    "large": Options("large", rows=5_000_000),
    "copy": Options(
        "copy", rows=10_000_000,
        systems=("physical", "native", "native-text", "pglogical", "slony", "londiste", "weft",
                 "weft-stock", "native-deferred", "plain"),
    ),
    "lag": Options(
        "lag", systems=("native", "weft"), seconds=180, clients=(16,), steps=("50%", "90%"),
    ),
}  # fmt: skip

# The runs if no scenario is named: a small one of each, which take a quarter of an hour.
SMALL: dict[str, dict[str, Any]] = {
    "drain": {"transactions": 20_000, "scale": 5, "repeats": 1},
    "sustained": {
        "seconds": 4, "scale": 5, "clients": (1, 8), "repeats": 1,
        "systems": ("publisher", "physical", "native", "pglogical", "slony", "londiste", "weft"),
    },
    "io-drain": {"transactions": 4_000, "scale": 40, "writers": (2, 8), "repeats": 1,
                 "systems": ("native", "weft")},
    "large": {"rows": 300_000, "repeats": 1},
    "copy": {"rows": 500_000, "repeats": 1},
    "lag": {"seconds": 5, "scale": 5, "clients": (4,), "repeats": 1},
}  # fmt: skip


@dataclass(frozen=True)
class Arguments:
    scenarios: tuple[Options, ...]
    directory: str | None
    json: str | int | None
    charts: str | int | None
    # Systems that the user asked for by name must not be missing.
    named_systems: bool = False
    # The commit that was built, as bench/run has found it.
    commit: str | None = None


def positive(text: str) -> int:
    number = int(text.replace("_", ""))
    if number < 1:
        raise ValueError
    return number


def positives(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(positive(item) for item in text.split(",")))


def some_of(*known: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        chosen = tuple(dict.fromkeys(text.split(",")))
        for item in chosen:
            if item not in known:
                raise argparse.ArgumentTypeError(f'unknown: "{item}"; choose {", ".join(known)}')
        return chosen

    return parse


def writer_counts(text: str) -> tuple[int, ...]:
    counts = positives(text)
    if max(counts) > 64:
        raise argparse.ArgumentTypeError("a subscription has at most 64 writers")
    return counts


def fractions(text: str) -> tuple[str, ...]:
    """Rates, each a number or a percentage."""
    steps = tuple(dict.fromkeys(text.split(",")))
    for step in steps:
        positive(step.removesuffix("%"))
    return steps


def processors(text: str) -> tuple[str, str]:
    publisher, _, subscriber = text.partition("/")
    if not all(re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", part) for part in (publisher, subscriber)):
        raise ValueError
    return publisher, subscriber


def quantity(units: dict[str, float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text.lower())
        if not found or found[2] not in units:
            raise argparse.ArgumentTypeError(f'"{text}" needs a unit: {", ".join(units)}')
        return float(found[1]) * units[found[2]]

    return parse


duration = quantity({"us": 1e-6, "ms": 1e-3, "s": 1.0})
bit_rate = quantity({"kbit": 1e3, "mbit": 1e6, "gbit": 1e9})


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/run", description="Without a scenario, runs a small one of each."
    )
    add = parser.add_argument
    add("scenario", metavar="SCENARIO", nargs="?", choices=DEFAULTS, help=", ".join(DEFAULTS))
    add("--systems", type=some_of(*SYSTEMS), metavar="A,B",
        help=f"{', '.join(SYSTEMS)} (default: those of the scenario)")  # fmt: skip
    add("--transactions", type=positive, metavar="N", help="transactions to drain in each pass")
    add("--seconds", type=positive, metavar="T", help="sustained and lag: how long pgbench runs")
    add("--rows", type=positive, metavar="N", help="large and copy: rows of the table")
    add("--scale", type=positive, metavar="S",
        help="100,000 rows each as in pgbench, 2,000 if mixed, 10,000 if wide, a warehouse if "
        "tpcc")  # fmt: skip
    add("--clients", type=positives, metavar="C,C",
        help="pgbench clients; a drain uses one number, sustained each of them")  # fmt: skip
    add("--writers", type=writer_counts, metavar="W,W", help="numbers of writers to run Weft with")
    add("--repeats", type=positive, metavar="R", help="repeats of everything, interleaved")
    add("--passes", type=some_of(*PASSES), metavar="P,P",
        help="first: over fresh tables; later: over them again (default: both)")  # fmt: skip
    add("--load", choices=LOADS,
        help="drain, sustained and lag: pgbench's own, many types, many columns, keys of other "
        "types, or an order system like TPC-C's (default: tpcb)")  # fmt: skip
    add("--steps", type=fractions, metavar="R,R",
        help="lag: transactions per second, or percentages of what native follows "
        "(default: 50%%,90%%)")  # fmt: skip
    add("--synchronous", type=some_of(*SYNCHRONOUS), metavar="S,S",
        help="subscription: each local commit is flushed; publisher: it waits for the "
        "subscriber")  # fmt: skip
    add("--cpus", type=processors, metavar="P/S",
        help="processors of publisher and pgbench, and of the subscriber, such as 0/1")  # fmt: skip
    add("--rtt", type=duration, metavar="MS",
        help="connect the servers by a line with this round-trip time, such as 20ms")  # fmt: skip
    add("--rate", type=bit_rate, metavar="MBIT",
        help="rate of that line, such as 100mbit (default: as fast as possible)")  # fmt: skip
    add("--kind", choices=KINDS, help="large: what the transaction does (default: insert)")
    add("--indexes", type=int, choices=range(5), help="copy: secondary indexes (default: 0)")
    add("--directory", metavar="DIR",
        help="where the servers are created (default: in Weft's cache)")  # fmt: skip
    add("--json", metavar="FILE", help="write all figures to this file")
    add("--json-fd", type=int, dest="json", help=argparse.SUPPRESS)
    add("--charts", metavar="DIR", help="draw charts into this directory")
    add("--charts-fd", type=int, dest="charts", help=argparse.SUPPRESS)
    add("--commit", help=argparse.SUPPRESS)
    add("--smoke", action="store_const", const=True,
        help="only a test whether it works: keeps little WAL, observes shortly")  # fmt: skip
    return parser


OWN_OPTIONS = {
    "transactions": ("drain", "io-drain"),
    "seconds": ("sustained", "lag"),
    "rows": ("large", "copy"),
    "scale": ("drain", "io-drain", "sustained", "lag"),
    "clients": ("drain", "io-drain", "sustained", "lag"),
    "passes": ("drain", "io-drain"),
    "load": ("drain", "sustained", "lag"),
    "steps": ("lag",),
    "synchronous": ("drain", "io-drain", "sustained", "lag"),
    "kind": ("large",),
    "indexes": ("copy",),
}
COMMON_OPTIONS = ("systems", "writers", "repeats", "cpus", "rtt", "rate", "smoke")


def choose(name: str, small: bool, given: dict[str, object]) -> Options:
    """The scenario's defaults, overridden by the options given."""
    values: dict[str, Any] = {**vars(DEFAULTS[name]), **(SMALL[name] if small else {})}
    # A default belongs to the kind: 5 million rows are inserted or updated, 2 million deleted.
    if name == "large" and given.get("kind") == "delete" and not small:
        values["rows"] = 2_000_000
    if given.get("load") and not small:
        values["transactions"] = ENOUGH_TRANSACTIONS[str(given["load"])]
    for option in COMMON_OPTIONS + tuple(OWN_OPTIONS):
        if given.get(option) is not None:
            values[option] = given[option]
    return Options(**values)


def parse_arguments(arguments: list[str]) -> Arguments:
    parser = make_parser()
    given = vars(parser.parse_args(arguments))
    scenario = given["scenario"]
    if scenario:
        for option, scenarios in OWN_OPTIONS.items():
            if given[option] is not None and scenario not in scenarios:
                parser.error(
                    f"--{option} has no effect in {scenario}; it belongs to {', '.join(scenarios)}"
                )
        if given["clients"] and len(given["clients"]) > 1 and scenario != "sustained":
            parser.error(f"{scenario} takes one number of clients")
        if given["rate"] and given["rtt"] is None:
            parser.error("--rate needs --rtt, which may be 0ms")
        if scenario != "sustained" and "publisher" in (given["synchronous"] or ()):
            parser.error("a publisher that waits is measured in sustained")
    elif any(given[option] is not None for option in OWN_OPTIONS):
        parser.error("options that set a size need a scenario")
    return Arguments(
        scenarios=tuple(
            choose(name, not scenario, given) for name in ([scenario] if scenario else DEFAULTS)
        ),
        directory=given["directory"],
        json=given["json"],
        charts=given["charts"],
        named_systems=given["systems"] is not None,
        commit=given["commit"],
    )
