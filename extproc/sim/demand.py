"""What a fleet is planned for: a trace at its own pace, or so many times faster, and how much of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from extproc.core.settings import Fault
from extproc.sim import traces, workloads
from extproc.sim.pacing import rate_per_s, scaled
from extproc.sim.traces import Arrival

SPAN_S_MAX: Final = 86_400.0
"""From the first request to the last: agents look every second of it, also when nothing comes."""
RATE_FACTOR_MIN: Final = 0.001
RATE_FACTOR_MAX: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is to be served."""

    trace: str
    """`generated:NAME`, or a trace's file."""
    requests: int
    """So many of its first ones, at most; what is generated has as many. 1 to `workloads.REQUESTS_MAX`."""
    for_s: float | None = None
    """And only those that come within so long after the first, once the pace is what it is to be."""
    rate_factor: float = 1.0
    """So many times faster than its own pace, `RATE_FACTOR_MIN` to `RATE_FACTOR_MAX`: bursts and pauses with it."""


class Span(Struct, frozen=True):
    """How much a demand is."""

    requests: int
    span_s: float
    """From the first to the last."""
    trace_requests: int | None
    """How many the file has; `None`: it is generated."""
    mean_tokens: int
    """Of a request, prompt and answer, rounded up."""

    @property
    def rate_per_s(self) -> float | None:
        """The mean over the gaps; `None` where there is no time between them."""
        return (self.requests - 1) / self.span_s if self.span_s else None


def arrivals(demand: Demand, seed: int) -> list[Arrival] | Fault:
    """At least one request, in order of time, the first at 0 s; or what is wrong with the trace.

    The seed chooses what is generated. A file is always read from its beginning, and never repeated: what comes after
    its end nobody recorded. Faster turns of a session still come no earlier than `pacing.scaled` lets them.
    """
    found = _recorded(demand, seed)
    return found if isinstance(found, Fault) else _paced(found[0], demand)


def span(demand: Demand) -> Span | Fault:
    """How much it is, with the first seed; or what is wrong with the trace."""
    found = _recorded(demand, 0)
    if isinstance(found, Fault):
        return found
    recorded, trace_requests = found
    paced = _paced(recorded, demand)
    if isinstance(paced, Fault):
        return paced
    tokens = sum(one.prompt_tokens + one.output_tokens for one in paced)
    return Span(len(paced), paced[-1].at_s, trace_requests, -(-tokens // len(paced)))


def _recorded(demand: Demand, seed: int) -> tuple[list[Arrival], int | None] | Fault:
    """As many as are wanted at most, and how many the file has."""
    if demand.trace.startswith(workloads.GENERATED):
        generated = workloads.arrivals(demand.trace, demand.requests, seed)
        return generated if isinstance(generated, Fault) else (generated, None)
    recorded = traces.read(Path(demand.trace))
    return recorded if isinstance(recorded, Fault) else (recorded[: demand.requests], len(recorded))


def _paced(recorded: list[Arrival], demand: Demand) -> list[Arrival] | Fault:
    begin_s, own_per_s = recorded[0].at_s, rate_per_s(recorded)
    if demand.rate_factor != 1.0 and 0 < own_per_s < float("inf"):
        paced = scaled(recorded, own_per_s * demand.rate_factor)
    else:
        paced = [replace(one, at_s=one.at_s - begin_s) for one in recorded]
    if demand.for_s is not None:
        paced = [one for one in paced if one.at_s < demand.for_s]
    if paced[-1].at_s > SPAN_S_MAX:
        wanted = f"at most {SPAN_S_MAX:g} s from the first request to the last (--for takes less of it)"
        return Fault("--trace", wanted, f"{paced[-1].at_s:.0f} s")
    return paced
