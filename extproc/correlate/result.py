"""How each signal went with the first tokens that followed: values only."""

import enum
import math
from typing import Final

from msgspec import Struct

from extproc.correlate.gather import Gathered
from extproc.correlate.ranks import PAIRS_MIN, Rho, medians_of_fifths, ranks, rho
from extproc.correlate.signals import OWN_SIZE, SIGNALS, Signal

TELLS_MIN: Final = 0.3
"""A signal tells something if its ρ is surely over this,"""
NOTHING_MAX: Final = 0.1
"""and nothing if it is surely under this."""


class Says(enum.Enum):
    """What a signal says of the first token's time, beside the request's own size."""

    TELLS = "tells"
    A_LITTLE = "a little"
    NOTHING = "nothing"
    FALLS = "falls"
    """The first token came surely sooner where it was higher."""
    UNSURE = "unsure"
    """Too few requests to say, or too few rushes: the interval is wide."""
    CONSTANT = "constant"
    """It was the same for all."""
    ABSENT = "absent"


class Row(Struct, frozen=True):
    """One signal."""

    signal: str
    text: str
    known: float
    """Share 0..1 of the requests of which it was known."""
    says: Says
    rho: Rho | None = None
    """With the time to the first token; `None`: too few pairs, or it never changed."""
    rho_beside: Rho | None = None
    """The same with the request's own uncached tokens held fixed."""
    ttft_s_by_fifth: tuple[float, ...] = ()
    """Median time to the first token where the signal was lowest, up to where it was highest; equal values together."""


class Correlated(Struct, frozen=True):
    """All of it."""

    requests: int
    """With a first token, and a fresh snapshot of their node."""
    chosen: int
    """All that went to a node."""
    stale: int
    moved: int
    without: int
    left_out: int
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    lines: int
    lines_damaged: int
    decisions: int
    """All of the journal: they are made again, and where they cannot be the state is not surely that of then."""
    decisions_different: int
    decisions_not_compared: int
    rows: tuple[Row, ...]


def correlated(found: Gathered) -> Correlated:
    """The signals, those that tell most first."""
    ranked = (ranks(found.ttft_s), ranks(found.signals[OWN_SIZE]))
    rows = sorted((_row(signal, found, ranked) for signal in SIGNALS), key=_order)
    ordered, replayed = sorted(found.ttft_s), found.replayed
    return Correlated(
        requests=len(ordered),
        chosen=found.chosen,
        stale=found.stale,
        moved=found.moved,
        without=found.without,
        left_out=found.left_out,
        ttft_p50_s=ordered[len(ordered) // 2] if ordered else None,
        ttft_p90_s=ordered[len(ordered) * 9 // 10] if ordered else None,
        lines=replayed.lines,
        lines_damaged=replayed.damaged,
        decisions=replayed.decisions,
        decisions_different=replayed.different,
        decisions_not_compared=sum(replayed.not_compared.values()),
        rows=tuple(rows),
    )


def pairs_of(found: Gathered, name: str) -> tuple[list[float], list[float], list[float]]:
    """A signal where it was known, the times to the first token, and the requests' own sizes."""
    kept = [place for place, value in enumerate(found.signals[name]) if not math.isnan(value)]
    own = found.signals[OWN_SIZE]
    return (
        [found.signals[name][place] for place in kept],
        [found.ttft_s[place] for place in kept],
        [own[place] for place in kept],
    )


def _row(signal: Signal, found: Gathered, all_ranked: tuple[list[float], list[float]]) -> Row:
    values, target, own = pairs_of(found, signal.name)
    known = len(values) / len(found.ttft_s) if found.ttft_s else 0.0
    if not values:
        return Row(signal.name, signal.text, known, Says.ABSENT)
    if len(values) < PAIRS_MIN:
        return Row(signal.name, signal.text, known, Says.UNSURE)
    ranked = ranks(values)
    of_target, of_own = all_ranked if len(values) == len(found.ttft_s) else (ranks(target), ranks(own))
    alone = rho(ranked, of_target)
    if alone is None:
        return Row(signal.name, signal.text, known, Says.CONSTANT)
    left = None if signal.name == OWN_SIZE else rho(ranked, of_target, of_own)
    says = _says(alone if signal.name == OWN_SIZE else left)
    return Row(signal.name, signal.text, known, says, alone, left, medians_of_fifths(values, target))


def _says(rho: Rho | None) -> Says:
    if rho is None:
        return Says.NOTHING  # that the size does not say
    if rho.low >= TELLS_MIN:
        return Says.TELLS
    if rho.low > -NOTHING_MAX and rho.high < NOTHING_MAX:
        return Says.NOTHING
    if rho.high <= -NOTHING_MAX:
        return Says.FALLS
    return Says.A_LITTLE if rho.low > 0 else Says.UNSURE


def _order(row: Row) -> tuple[bool, float]:
    best = row.rho_beside or row.rho
    return best is None, 0.0 if best is None else -best.value
