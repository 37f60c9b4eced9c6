"""How each signal went with the first tokens that followed: values only."""

import enum
import math
from collections.abc import Sequence

from msgspec import Struct

from extproc.correlate.gather import Gathered
from extproc.correlate.ranks import PAIRS_MIN, Rho, beside, medians_of_fifths, of_ranks, ranks, with_interval
from extproc.correlate.signals import OWN_SIZE, SIGNALS, Signal

TELLS_MIN = 0.3
"""A signal tells something if its ρ is surely over this,"""
NOTHING_MAX = 0.1
"""and nothing if it is surely under this."""


class Says(enum.Enum):
    """What a signal says of the first token's time, beside the request's own size."""

    TELLS = "tells"
    A_LITTLE = "a little"
    NOTHING = "nothing"
    FALLS = "falls"
    """The first token came sooner where it was higher."""
    UNSURE = "unsure"
    """Too few requests to say."""
    CONSTANT = "constant"
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
    """Median time to the first token where the signal was lowest, up to where it was highest."""


class Correlated(Struct, frozen=True):
    """All of it."""

    requests: int
    """With a first token, and a fresh snapshot of their node."""
    chosen: int
    """All that went to a node."""
    stale: int
    moved: int
    left_out: int
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    lines: int
    lines_damaged: int
    rows: tuple[Row, ...]


def correlated(found: Gathered) -> Correlated:
    """The signals, those that tell most first."""
    rows = sorted((_row(signal, found) for signal in SIGNALS), key=_order)
    ordered = sorted(found.ttft_s)
    return Correlated(
        len(ordered),
        found.chosen,
        found.stale,
        found.moved,
        found.left_out,
        ordered[len(ordered) // 2] if ordered else None,
        ordered[len(ordered) * 9 // 10] if ordered else None,
        found.replayed.lines,
        found.replayed.damaged,
        tuple(rows),
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


def _row(signal: Signal, found: Gathered) -> Row:
    values, target, own = pairs_of(found, signal.name)
    known = len(values) / len(found.ttft_s) if found.ttft_s else 0.0
    if not values:
        return Row(signal.name, signal.text, known, Says.ABSENT)
    if len(values) < PAIRS_MIN:
        return Row(signal.name, signal.text, known, Says.UNSURE)
    ranked, ranked_target = ranks(values), ranks(target)
    plain = of_ranks(ranked, ranked_target)
    if plain is None:
        return Row(signal.name, signal.text, known, Says.CONSTANT)
    left = None if signal.name == OWN_SIZE else _beside(plain, ranked, ranked_target, ranks(own))
    rho = with_interval(plain, len(values))
    rho_beside = None if left is None else with_interval(left, len(values))
    return Row(
        signal.name, signal.text, known, _says(rho_beside or rho), rho, rho_beside, medians_of_fifths(values, target)
    )


def _beside(plain: float, ranked: Sequence[float], target: Sequence[float], own: Sequence[float]) -> float | None:
    with_own, target_with_own = of_ranks(ranked, own), of_ranks(target, own)
    if with_own is None or target_with_own is None:
        return plain  # all requests are of one size
    return beside(plain, with_own, target_with_own)


def _says(rho: Rho) -> Says:
    if rho.low >= TELLS_MIN:
        return Says.TELLS
    if rho.low > -NOTHING_MAX and rho.high < NOTHING_MAX:
        return Says.NOTHING
    if rho.high < 0:
        return Says.FALLS
    return Says.A_LITTLE if rho.low > 0 else Says.UNSURE


def _order(row: Row) -> tuple[bool, float]:
    best = row.rho_beside or row.rho
    return best is None, 0.0 if best is None else -best.value
