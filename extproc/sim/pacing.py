"""As many arrivals as asked for, at the rate asked for."""

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import Final

from msgspec.structs import replace

from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival

TOKEN_S_MIN: Final = StepCost().step_s
"""No engine of speed 1 makes a token sooner."""
_HALVINGS: Final = 50


def rate_per_s(arrivals: Sequence[Arrival]) -> float:
    """The mean rate over the gaps between the first arrival and the last; infinite if there is no time between them."""
    span_s = arrivals[-1].at_s - arrivals[0].at_s
    return (len(arrivals) - 1) / span_s if span_s else float("inf")


def requests(arrivals: Sequence[Arrival], wanted: int, start: int = 0) -> list[Arrival]:
    """Exactly so many arrivals, at least 1: from the `start`-th on, and from the beginning again as often as needed.

    The first is at 0 s. Another start is another sample: what a seed can change where nothing is generated. In a
    further pass sessions are new ones, and so are blocks that only one session had. Blocks that several sessions had
    stay what they were: system prompts outlive those who use them. A request without a session counts as one; so what
    two of Mooncake's requests share is kept, which matters little after an hour in which caches forgot it many times.
    """
    assert wanted >= 1
    assert arrivals
    shared: set[int] = set()
    stride = 0
    if start % len(arrivals) + wanted > len(arrivals):
        shared, stride = _shared(arrivals)
    period_s = _period_s(arrivals)
    taken = []
    begin_s = arrivals[start % len(arrivals)].at_s
    for position in range(start % len(arrivals), start % len(arrivals) + wanted):
        turn, index = divmod(position, len(arrivals))
        arrival = arrivals[index]
        at_s = arrival.at_s + turn * period_s - begin_s
        taken.append(_again(arrival, at_s, turn, turn * stride, shared) if turn else replace(arrival, at_s=at_s))
    return taken


def _period_s(arrivals: Sequence[Arrival]) -> float:
    """From the first arrival to the first of the next pass: one mean gap after the last."""
    span_s = arrivals[-1].at_s - arrivals[0].at_s
    return span_s + (span_s / (len(arrivals) - 1) if span_s else 1.0)


def _shared(arrivals: Sequence[Arrival]) -> tuple[set[int], int]:
    """The blocks of more than one session, and a number over all blocks' numbers."""
    shared: set[int] = set()
    owners: dict[int, Hashable] = {}
    for index, arrival in enumerate(arrivals):
        owner = arrival.session or index
        for block in arrival.prompt_blocks + arrival.answer_blocks:
            if owners.setdefault(block, owner) != owner:
                shared.add(block)
    return shared, max(owners, default=0) + 1


def _again(arrival: Arrival, at_s: float, turn: int, offset: int, shared: set[int]) -> Arrival:
    # What is shared is a chain's beginning: whoever shares a block shares all before it.
    blocks = arrival.prompt_blocks + arrival.answer_blocks
    own = bisect_left(blocks, 1, key=lambda block: block not in shared)
    renewed = blocks[:own] + tuple(block + offset for block in blocks[own:])
    prompt_blocks = len(arrival.prompt_blocks)
    return replace(
        arrival,
        at_s=at_s,
        prompt_blocks=renewed[:prompt_blocks],
        answer_blocks=renewed[prompt_blocks:],
        session=f"{arrival.session}/{turn + 1}" if arrival.session else "",
    )


def scaled(arrivals: Sequence[Arrival], rate: float) -> list[Arrival]:
    """The same arrivals at this mean rate per second, the first at 0 s: time is stretched, bursts and pauses with it.

    This is an open loop: a turn comes at its time, however late the answer before it is in the simulation. But it
    never comes before that answer could exist on an idle engine of speed 1 that has the whole prompt cached
    (`TOKEN_S_MIN` per token). Where a rate is so high that turns have to wait for that, everything else is compressed
    the more, so that the mean rate is still met; beyond what one session can take in a row it is not: see `rate_per_s`.
    Arrivals that are all at one moment are spread evenly.
    """
    assert arrivals
    assert 0 < rate < float("inf")
    begin_s = arrivals[0].at_s
    times = [arrival.at_s - begin_s for arrival in arrivals]
    if len(arrivals) > 1 and not times[-1]:
        times = [float(index) for index in range(len(arrivals))]
    waits = _waits(arrivals)
    moved = _moved(times, waits, _factor(times, waits, (len(arrivals) - 1) / rate))
    paced = [replace(arrival, at_s=at_s) for arrival, at_s in zip(arrivals, moved, strict=True)]
    return sorted(paced, key=lambda arrival: arrival.at_s)


def _waits(arrivals: Sequence[Arrival]) -> list[tuple[int, int, float]]:
    """For each turn after a session's first: its index, that of the turn before, and the seconds between them at least.

    In order of time.
    """
    waits = []
    latest: dict[str, int] = {}
    for index, arrival in enumerate(arrivals):
        if arrival.session:
            before = latest.get(arrival.session)
            if before is not None:
                waits.append((index, before, arrivals[before].output_tokens * TOKEN_S_MIN))
            latest[arrival.session] = index
    return waits


def _moved(times: list[float], waits: list[tuple[int, int, float]], factor: float) -> list[float]:
    moved = [at_s * factor for at_s in times]
    for index, before, wait_s in waits:
        moved[index] = max(moved[index], moved[before] + wait_s)
    return moved


def _factor(times: list[float], waits: list[tuple[int, int, float]], span_s: float) -> float:
    """What to multiply times by for this span, or one as near to it as the waits allow."""
    if not times[-1]:
        return 1.0
    low, high = 0.0, span_s / times[-1]
    span_s *= 1 + 1e-12  # room for rounding
    if max(_moved(times, waits, high)) <= span_s:
        return high
    for _ in range(_HALVINGS):
        factor = (low + high) / 2
        if max(_moved(times, waits, factor)) <= span_s:
            low = factor
        else:
            high = factor
    return low
