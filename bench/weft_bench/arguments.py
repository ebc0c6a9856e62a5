"""The command line; needs nothing but Python itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SYSTEMS = (
    "publisher", "physical", "native", "native-text", "native-parallel", "pglogical", "slony",
    "londiste", "weft", "weft-stock", "native-timestamps", "weft-timestamps", "weft-exact",
    "weft-detect", "plain",
)  # fmt: skip
# Those with track_commit_timestamp = on, for a comparison among themselves.
ONLY_IF_NAMED = ("native-timestamps", "weft-timestamps", "weft-exact", "weft-detect", "plain")
PASSES = ("first", "later")
KINDS = ("insert", "update", "delete")
LOADS = ("tpcb", "mixed", "wide")


@dataclass(frozen=True)
class Options:
    """The options of one scenario; those that only other scenarios need are ignored."""

    scenario: str
    systems: tuple[str, ...] = tuple(name for name in SYSTEMS if name not in ONLY_IF_NAMED)
    transactions: int = 200_000
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

    @property
    def transactions_per_client(self) -> int:
        """The same for every client; rounded up, so that there are never fewer in total."""
        return -(-self.transactions // self.clients[0])

    @property
    def variant(self) -> str | None:
        """A name for figures that cannot be compared with those of the plain scenario."""
        if self.scenario == "large" and self.kind != "insert":
            return self.kind
        if self.scenario == "copy" and self.indexes:
            return f"{self.indexes} indexes"
        if self.scenario == "drain" and self.load != "tpcb":
            return self.load
        return None


DEFAULTS = {
    "drain": Options("drain"),
    "sustained": Options("sustained", clients=(1, 2, 4, 8, 16, 24, 32), repeats=1),
    "io-drain": Options(
        "io-drain", systems=("physical", "native", "weft"), transactions=20_000, scale=200,
        writers=(1, 2, 4, 8, 16),
    ),
    "large": Options("large", rows=5_000_000),
    "copy": Options(
        "copy", rows=10_000_000,
        systems=("physical", "native", "native-text", "pglogical", "slony", "londiste", "weft",
                 "weft-stock", "plain"),
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
}  # fmt: skip


@dataclass(frozen=True)
class Arguments:
    scenarios: tuple[Options, ...]
    directory: str | None
    json: str | int | None
    charts: str | int | None
    # Systems that the user asked for by name must not be missing.
    named_systems: bool = False


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


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/run", description="Without a scenario, runs a small one of each."
    )
    add = parser.add_argument
    add("scenario", metavar="SCENARIO", nargs="?", choices=DEFAULTS, help=", ".join(DEFAULTS))
    add("--systems", type=some_of(*SYSTEMS), metavar="A,B",
        help=f"{', '.join(SYSTEMS)} (default: those of the scenario)")  # fmt: skip
    add("--transactions", type=positive, metavar="N", help="transactions to drain in each pass")
    add("--seconds", type=positive, metavar="T", help="sustained: how long pgbench runs")
    add("--rows", type=positive, metavar="N", help="large and copy: rows of the table")
    add("--scale", type=positive, metavar="S",
        help="100,000 rows each as in pgbench, 2,000 if mixed, 10,000 if wide")  # fmt: skip
    add("--clients", type=positives, metavar="C,C",
        help="pgbench clients; a drain uses one number, sustained each of them")  # fmt: skip
    add("--writers", type=writer_counts, metavar="W,W", help="numbers of writers to run Weft with")
    add("--repeats", type=positive, metavar="R", help="repeats of everything, interleaved")
    add("--passes", type=some_of(*PASSES), metavar="P,P",
        help="first: over fresh tables; later: over them again (default: both)")  # fmt: skip
    add("--load", choices=LOADS,
        help="drain: pgbench's own, many types, or many columns (default: tpcb)")  # fmt: skip
    add("--kind", choices=KINDS, help="large: what the transaction does (default: insert)")
    add("--indexes", type=int, choices=range(5), help="copy: secondary indexes (default: 0)")
    add("--directory", metavar="DIR",
        help="where the servers are created (default: in Weft's cache)")  # fmt: skip
    add("--json", metavar="FILE", help="write all figures to this file")
    add("--json-fd", type=int, dest="json", help=argparse.SUPPRESS)
    add("--charts", metavar="DIR", help="draw charts into this directory")
    add("--charts-fd", type=int, dest="charts", help=argparse.SUPPRESS)
    return parser


OWN_OPTIONS = {
    "transactions": ("drain", "io-drain"),
    "seconds": ("sustained",),
    "rows": ("large", "copy"),
    "scale": ("drain", "io-drain", "sustained"),
    "clients": ("drain", "io-drain", "sustained"),
    "passes": ("drain", "io-drain"),
    "load": ("drain",),
    "kind": ("large",),
    "indexes": ("copy",),
}
COMMON_OPTIONS = ("systems", "writers", "repeats")


def choose(name: str, small: bool, given: dict[str, object]) -> Options:
    """The scenario's defaults, overridden by the options given."""
    values: dict[str, Any] = {**vars(DEFAULTS[name]), **(SMALL[name] if small else {})}
    # A default belongs to the kind: 5 million rows are inserted or updated, 2 million deleted.
    if name == "large" and given.get("kind") == "delete" and not small:
        values["rows"] = 2_000_000
    # Their transactions are larger.
    if given.get("load") in ("mixed", "wide"):
        values["transactions"] = 100_000
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
    )
