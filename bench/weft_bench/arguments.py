"""The command line; needs nothing but Python itself."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

SYSTEMS = ("native", "native-text", "weft")
PASSES = ("first", "later")


@dataclass(frozen=True)
class Defaults:
    transactions: int
    scale: int
    writers: tuple[int, ...]
    repeats: int


DEFAULTS = {
    "drain": Defaults(transactions=200_000, scale=50, writers=(4,), repeats=3),
    "io-drain": Defaults(transactions=20_000, scale=200, writers=(8,), repeats=3),
}

# What runs when no scenario is named: a small one of each.
SMALL = {
    "drain": Defaults(transactions=40_000, scale=10, writers=(4,), repeats=1),
    "io-drain": Defaults(transactions=5_000, scale=50, writers=(8,), repeats=1),
}


@dataclass(frozen=True)
class Options:
    """What one scenario is to be run with."""

    scenario: str
    systems: tuple[str, ...]
    transactions: int
    scale: int
    clients: int
    writers: tuple[int, ...]
    repeats: int
    passes: tuple[str, ...]

    @property
    def transactions_per_client(self) -> int:
        """Every client does as many: rounded up, so that there are never fewer than asked for."""
        return -(-self.transactions // self.clients)


@dataclass(frozen=True)
class Arguments:
    scenarios: tuple[Options, ...]
    directory: str | None
    json: str | int | None


def positive(text: str) -> int:
    number = int(text.replace("_", ""))
    if number < 1:
        raise ValueError
    return number


def positives(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(positive(item) for item in text.split(",")))


def some_of(*known: str):
    def parse(text: str) -> tuple[str, ...]:
        chosen = tuple(dict.fromkeys(text.split(",")))
        for item in chosen:
            if item not in known:
                raise argparse.ArgumentTypeError(f'unknown: "{item}"; there are {", ".join(known)}')
        return chosen

    return parse


def writer_counts(text: str) -> tuple[int, ...]:
    counts = positives(text)
    if max(counts) > 64:
        raise argparse.ArgumentTypeError("a subscription has 64 writers at most")
    return counts


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/run", description="Without a scenario, runs a small one of each."
    )
    add = parser.add_argument
    add("scenario", metavar="SCENARIO", nargs="?", choices=DEFAULTS, help=", ".join(DEFAULTS))
    add("--systems", type=some_of(*SYSTEMS), default=SYSTEMS, metavar="A,B",
        help=f"{', '.join(SYSTEMS)} (default: all)")  # fmt: skip
    add("--transactions", type=positive, metavar="N", help="transactions to drain in each pass")
    add("--scale", type=positive, metavar="S", help="pgbench's scale, 100,000 accounts each")
    add("--clients", type=positive, metavar="C", default=8,
        help="pgbench clients that make the backlog (default: 8)")  # fmt: skip
    add("--writers", type=writer_counts, metavar="W,W", help="numbers of writers to try Weft with")
    add("--repeats", type=positive, metavar="R", help="of everything, interleaved")
    add("--passes", type=some_of(*PASSES), default=PASSES, metavar="P,P",
        help="first: over fresh tables; later: over the same again (default: both)")  # fmt: skip
    add("--directory", metavar="DIR",
        help="where the servers are made (default: in Weft's cache)")  # fmt: skip
    add("--json", metavar="FILE", help="write every figure there")
    add("--json-fd", type=int, dest="json", help=argparse.SUPPRESS)
    return parser


def parse_arguments(arguments: list[str]) -> Arguments:
    given = make_parser().parse_args(arguments)
    chosen = {given.scenario: DEFAULTS[given.scenario]} if given.scenario else SMALL
    return Arguments(
        scenarios=tuple(
            Options(
                scenario=name,
                systems=given.systems,
                transactions=given.transactions or default.transactions,
                scale=given.scale or default.scale,
                clients=given.clients,
                writers=given.writers or default.writers,
                repeats=given.repeats or default.repeats,
                passes=given.passes,
            )
            for name, default in chosen.items()
        ),
        directory=given.directory,
        json=given.json,
    )
