"""The systems under test, by name; a new one goes here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..arguments import Options
from .base import System
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

SIMPLE: dict[str, Callable[[], System]] = {
    "publisher": Publisher,
    "physical": Physical,
    "native": Native,
    "native-text": NativeText,
    "native-parallel": NativeParallel,
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
    "weft-stock": WeftStock,
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
    if name in WITH_WRITERS:
        return [WITH_WRITERS[name](writers) for writers in options.writers]
    if name == "physical" and options.scenario == "copy":
        return [CopiedPhysical()]
    return [SIMPLE[name]()]


def chosen_systems(
    options: Options, unavailable: dict[str, str]
) -> tuple[list[System], list[Refusal]]:
    """The systems that take part, and those that do not."""
    systems: list[System] = []
    refusals: list[Refusal] = []
    for name in options.systems:
        called = systems_called(name, options)
        reason = called[0].refusal(options.scenario)
        if reason:
            refusals.append(Refusal(options.scenario, name, reason, missing=False))
        elif name in unavailable:
            refusals.append(Refusal(options.scenario, name, unavailable[name], missing=True))
        else:
            systems += called
    return systems, refusals
