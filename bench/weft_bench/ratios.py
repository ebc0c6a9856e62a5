"""Calculations on figures: paired ratios, percentiles, shares."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .figures import Figure, Summary, faster, summarize

# What must be alike of two figures whose ratio is meant to mean something.
PAIRED_BY = ("scenario", "variant", "pass_", "clients", "rate", "metric", "process", "repeat")


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that is not below "percent" of the values (nearest rank), so that it
    is always one that was measured."""
    if not values:
        raise ValueError("no values")
    ranked = sorted(values)
    return ranked[max(math.ceil(percent / 100 * len(ranked)), 1) - 1]


def key_of(figure: Figure) -> tuple:
    return tuple(getattr(figure, name) for name in PAIRED_BY)


def paired_ratios(figures: Sequence[Figure], reference: Sequence[Figure]) -> list[float]:
    """How many times as fast as the reference, of each repeat that both have: what slows the
    machine down for some minutes slows down both."""
    values = {key_of(figure): figure.value for figure in reference}
    return [
        faster(figure.metric, figure.value, values[key_of(figure)])
        for figure in figures
        if key_of(figure) in values
    ]


def paired(figures: Sequence[Figure], reference: Sequence[Figure]) -> Summary | None:
    """Median, minimum and maximum of the paired ratios."""
    ratios = paired_ratios(figures, reference)
    return summarize(ratios) if ratios else None


def per(amount: float, number: float) -> float:
    """Amount per one of them; of none, none."""
    return amount / number if number else 0.0


def slowdown(alone: float, rate: float) -> float:
    """By how many percent a rate is lower than that of the publisher alone."""
    return 100 * (1 - rate / alone) if alone else 0.0
