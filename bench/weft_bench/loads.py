"""Which contents belong to which options."""

from __future__ import annotations

from collections.abc import Callable

from .arguments import Options
from .contents import (
    Contents,
    CopyContents,
    LargeContents,
    MixedContents,
    PgbenchContents,
    WideContents,
)
from .keyed_contents import CompositeContents, UuidContents
from .tpcc_contents import TpccContents

LOADS: dict[str, Callable[[int], Contents]] = {
    "mixed": MixedContents,
    "wide": WideContents,
    "uuid": UuidContents,
    "composite": CompositeContents,
    "tpcc": TpccContents,
}


def contents_of(options: Options, keyed: bool) -> Contents:
    if options.scenario == "large":
        return LargeContents(options)
    if options.scenario == "copy":
        return CopyContents(options)
    if options.load in LOADS:
        return LOADS[options.load](options.scale)
    return PgbenchContents(options.scale, keyed)
