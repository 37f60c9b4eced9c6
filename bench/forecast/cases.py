"""What is forecast: the demands, of which more than one node is needed where the forecast shall say something."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from bench.strategies import cases
from extproc.core.settings import Fault
from extproc.sim import workloads
from extproc.sim.demand import Demand, arrivals
from extproc.sim.traces import Arrival

APART_S: Final = 10.0
"""Between the same request of two copies: the minutes' rise and fall is kept, no burst of a second is multiplied."""


@dataclass(frozen=True, slots=True)
class Case:
    """One demand."""

    name: str
    setting: str
    """Of `bench.strategies`, whose trace it is."""
    minutes: int
    """As much of it is played, or all that there is."""
    copies: int = 1
    """So many of it at once, each `APART_S` after the other; they share no prompts."""
    rate_factor: float = 1.0


CASES: Final[Mapping[str, Case]] = MappingProxyType(
    {
        one.name: one
        for one in (
            Case("azure", "azure", 60),
            Case("azure, 5 at once", "azure", 40, copies=5),
            Case("mooncake", "mooncake", 60),
            Case("conv", "conv", 40),
        )
    }
)


def at_hand(folder: Path | None) -> list[str]:
    """The names of the cases whose traces are in the folder, or are generated."""
    settings = {one.name for one in cases.at_hand(folder)}
    return [one.name for one in CASES.values() if one.setting in settings]


def demanded(case: Case, folder: Path | None) -> list[Arrival] | Fault:
    """In order of time, the first at 0 s; or what is wrong with the trace."""
    trace = cases.source(cases.SETTINGS[case.setting], folder)
    assert trace is not None, "it is at hand"
    for_s = 60.0 * case.minutes
    asked = Demand(trace=trace, requests=workloads.REQUESTS_MAX, for_s=for_s, rate_factor=case.rate_factor)
    once = arrivals(asked, seed=0)
    if isinstance(once, Fault) or case.copies == 1:
        return once
    blocks = 1 + max((max(one.prompt_blocks + one.answer_blocks, default=0) for one in once), default=0)
    copies = [_copy(one, place, blocks) for place in range(case.copies) for one in once]
    return sorted(copies, key=lambda one: one.at_s)


def _copy(arrival: Arrival, place: int, blocks: int) -> Arrival:
    return replace(
        arrival,
        at_s=arrival.at_s + place * APART_S,
        prompt_blocks=tuple(one + place * blocks for one in arrival.prompt_blocks),
        answer_blocks=tuple(one + place * blocks for one in arrival.answer_blocks),
        session=f"{arrival.session}/{place}" if arrival.session else "",
    )
