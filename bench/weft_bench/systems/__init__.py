"""The systems under test, by name; a new one goes here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..arguments import Options
from .base import System
from .deferred import NativeDeferred
from .group import WeftGroup, WeftGroup3
from .londiste import Londiste
from .native import (
    Native,
    NativeParallel,
    NativeText,
    NativeTimestamps,
    Weft,
    WeftDetect,
    WeftExact,
    WeftStock,
    WeftTimestamps,
)
from .pglogical import Pglogical
from .physical import CopiedPhysical, Physical, Publisher
from .plain import Plain
from .slony import Slony
from .variants import WeftLz4, WeftStrict

SIMPLE: dict[str, Callable[[], System]] = {
    "publisher": Publisher,
    "physical": Physical,
    "native": Native,
    "native-text": NativeText,
    "native-parallel": NativeParallel,
    "native-deferred": NativeDeferred,
    "native-timestamps": NativeTimestamps,
    "pglogical": Pglogical,
    "slony": Slony,
    "londiste": Londiste,
    "plain": Plain,
}
WITH_WRITERS: dict[str, Callable[[int], System]] = {
    "weft": Weft,
    "weft-detect": WeftDetect,
    "weft-exact": WeftExact,
    "weft-group": WeftGroup,
    "weft-group-3": WeftGroup3,
    "weft-lz4": WeftLz4,
    "weft-stock": WeftStock,
    "weft-strict": WeftStrict,
    "weft-timestamps": WeftTimestamps,
}


@dataclass(frozen=True)
class Refusal:
    """A system that was asked for and is not measured."""

    scenario: str
    system: str
    reason: str
    # A system that has no place in the scenario is missed by nobody.
    missing: bool


def systems_called(name: str, options: Options) -> list[System]:
    systems: list[System]
    if name in WITH_WRITERS:
        systems = [WITH_WRITERS[name](writers) for writers in options.writers]
    elif name == "physical" and options.scenario == "copy":
        systems = [CopiedPhysical()]
    else:
        systems = [SIMPLE[name]()]
    for system in systems:
        system.synchronous_commit = "subscription" in options.synchronous
    return systems


def chosen_systems(
    options: Options, unavailable: dict[str, str]
) -> tuple[list[System], list[Refusal]]:
    """The systems that take part, and those that do not."""
    systems: list[System] = []
    refusals: list[Refusal] = []
    for name in options.systems:
        called = systems_called(name, options)
        reason = called[0].refusal_of(options)
        if reason:
            refusals.append(Refusal(options.scenario, name, reason, missing=False))
        elif name in unavailable:
            refusals.append(Refusal(options.scenario, name, unavailable[name], missing=True))
        else:
            systems += called
    return systems, refusals
