"""What the words of an `extproc plan` mean, and what it found for machines."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from extproc import plannednode
from extproc.core.settings import GOT_CHARS_MAX, Fault
from extproc.runprogress import counted, duration
from extproc.sim import demand as demands
from extproc.sim import engineprofile, fleetsize
from extproc.sim.comparison import Contender
from extproc.sim.demand import Demand, Span
from extproc.sim.fleetplan import FleetPlan, PlannedNode
from extproc.sim.fleetsize import Sized, Sizing
from extproc.sim.nodesneeded import Objective
from extproc.sim.simulation import Setup
from extproc.sim.steptime import StepCost
from extproc.simulationoptions import contenders, seconds
from extproc.strategytext import OPTION

OBJECTIVE_S_MIN: Final = 0.001
OBJECTIVE_S_MAX: Final = 3600.0
FOR_S_MIN: Final = 1.0
WINDOW_S_MIN: Final = 1.0
LEAD_IN_S_MAX: Final = 3600.0
INTERVAL_S_MIN: Final = 0.01
INTERVAL_S_MAX: Final = 60.0
"""As `nodes.report_interval_s` of serve."""
DELAY_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class Planning:
    """What an `extproc plan` asks for."""

    strategy: str
    """As it was named."""
    sizing: Sizing


def understood(
    *,
    trace: str,
    requests: int,
    for_: str | None,
    rate_factor: float,
    node: Path | None,
    shape: dict[str, Any],
    kv_memory: str | None,
    model: str | None,
    kv_fp8: bool,
    ttft: str,
    tpot: str | None,
    share: float,
    nodes_max: int,
    seeds: int,
    window: str | None,
    lead_in: str,
    strategy: str,
    policy: Path | None,
    profile: Path | None,
    snapshot_interval: str,
    delay: str,
) -> Planning | list[Fault]:
    """What the options mean, or every fault in them.

    `shape` is what options say of a node, by the keys of a fleet file; `None`: nothing. Whole numbers are those that
    the command line has checked.
    """
    demand = _demand(trace, requests, for_, rate_factor)
    span = demands.span(demand) if isinstance(demand, Demand) else demand
    objective = _objective(ttft, tpot, share)
    memory = plannednode.memory(kv_memory, model, fp8=kv_fp8, blocks=shape.get("kv_blocks"))
    sequence_tokens = span.mean_tokens if isinstance(span, Span) else 1
    planned = memory if isinstance(memory, list) else plannednode.node(node, shape, memory, sequence_tokens, nodes_max)
    contender = _contender(strategy, policy)
    cost = StepCost() if profile is None else engineprofile.read(profile)
    interval_s = seconds("--snapshot-interval", snapshot_interval, INTERVAL_S_MIN, INTERVAL_S_MAX)
    delay_s = seconds("--delay", delay, 0.0, DELAY_S_MAX)
    lead_in_s = seconds("--lead-in", lead_in, 0.0, LEAD_IN_S_MAX)
    window_s = None if window is None else seconds("--window", window, WINDOW_S_MIN, demands.SPAN_S_MAX)
    if isinstance(span, Span) and isinstance(window_s, float):
        window_s = _windows_bounded(span, window_s)
    faults: list[Fault] = []
    for found in (span, objective, planned, contender, cost, interval_s, delay_s, lead_in_s, window_s):
        if isinstance(found, Fault):
            faults.append(found)
        elif isinstance(found, list):
            faults += found
    if faults:
        return faults
    assert isinstance(objective, Objective)
    assert isinstance(planned, PlannedNode)
    assert isinstance(contender, Contender)
    assert isinstance(cost, StepCost)
    assert isinstance(interval_s, float)
    assert isinstance(delay_s, float)
    assert isinstance(lead_in_s, float)
    assert window_s is None or isinstance(window_s, float)
    assert isinstance(demand, Demand)
    assert isinstance(span, Span)
    setup = Setup(
        fleet=FleetPlan((planned,)),
        policy=contender.policy,
        cost=cost,
        snapshot_interval_s=interval_s,
        delay_s=delay_s,
    )
    sizing = Sizing(
        demand=demand,
        span=span,
        setup=setup,
        objective=objective,
        nodes_max=nodes_max,
        seeds=seeds,
        window_s=window_s,
        lead_in_s=lead_in_s,
    )
    return Planning(contender.name, sizing)


def announced(planning: Planning, jobs: int) -> str:
    """What is about to be done."""
    sizing, span = planning.sizing, planning.sizing.span
    has = span.trace_requests
    requests = counted(span.requests, "request")
    if has is not None and has > span.requests:
        requests = f"the first {span.requests:,} of {counted(has, 'request')}"
    rate = "" if span.rate_per_s is None else f", {span.rate_per_s:.3g} per second"
    seeds = "" if sizing.seeds == 1 else f", {sizing.seeds} runs of each number"
    nodes = counted(sizing.nodes_max, "node")
    return f"up to {nodes} for {requests} in {duration(span.span_s)}{rate}{seeds}, {jobs} at a time"


def as_json(planning: Planning, sized: Sized) -> dict[str, Any]:
    """All of it for machines."""
    sizing = planning.sizing
    engine = sizing.setup.fleet.nodes[0].engine
    return {
        "nodes": sized.needed.nodes,
        "tried": [msgspec.to_builtins(one) for one in sized.needed.tried],
        "enough_below": list(sized.needed.enough_below),
        "slow_alone": sized.slow_alone,
        "cut": sized.cut,
        "windows": None if sizing.window_s is None else [msgspec.to_builtins(one) for one in sized.windows],
        "nodes_mean": sized.nodes_mean,
        "settings": {
            "trace": sizing.demand.trace,
            **msgspec.to_builtins(sizing.span),
            "rate_per_s": sizing.span.rate_per_s,
            "for_s": sizing.demand.for_s,
            "rate_factor": sizing.demand.rate_factor,
            **msgspec.to_builtins(sizing.objective),
            "node": {
                name: getattr(engine, name)
                for name in ("speed", "kv_blocks", "sequences_max", "step_tokens_max", "context_length_tokens")
            },
            "strategy": planning.strategy,
            "nodes_max": sizing.nodes_max,
            "seeds": sizing.seeds,
            "window_s": sizing.window_s,
            "lead_in_s": sizing.lead_in_s,
            "snapshot_interval_s": sizing.setup.snapshot_interval_s,
            "delay_s": sizing.setup.delay_s,
            "cost": msgspec.to_builtins(sizing.setup.cost),
        },
    }


def _objective(ttft: str, tpot: str | None, share: float) -> Objective | list[Fault]:
    ttft_s = seconds("--ttft", ttft, OBJECTIVE_S_MIN, OBJECTIVE_S_MAX)
    tpot_s = None if tpot is None else seconds("--tpot", tpot, OBJECTIVE_S_MIN, OBJECTIVE_S_MAX)
    faults = [one for one in (ttft_s, tpot_s) if isinstance(one, Fault)]
    if not 0 < share <= 1:
        faults.append(Fault("--share", "over 0, up to 1, as 0.95", f"{share:g}"))
    if faults:
        return faults
    assert isinstance(ttft_s, float)
    assert not isinstance(tpot_s, Fault)
    return Objective(ttft_s=ttft_s, tpot_s=tpot_s, share=share)


def _demand(trace: str, requests: int, for_: str | None, rate_factor: float) -> Demand | list[Fault]:
    for_s = None if for_ is None else seconds("--for", for_, FOR_S_MIN, demands.SPAN_S_MAX)
    faults = [for_s] if isinstance(for_s, Fault) else []
    least, most = demands.RATE_FACTOR_MIN, demands.RATE_FACTOR_MAX
    if not least <= rate_factor <= most:
        faults.append(Fault("--rate-factor", f"{least:g} to {most:g}", f"{rate_factor:g}"))
    if faults:
        return faults
    assert not isinstance(for_s, Fault)
    return Demand(trace=trace, requests=requests, for_s=for_s, rate_factor=rate_factor)


def _contender(strategy: str, policy: Path | None) -> Contender | list[Fault]:
    found = contenders(strategy, policy)
    if isinstance(found, list):
        return found
    if len(found) > 1:
        return [Fault(OPTION, "one strategy", strategy[:GOT_CHARS_MAX])]
    return found[0]


def _windows_bounded(span: Span, window_s: float) -> float | Fault:
    if fleetsize.windows_of(span.span_s, window_s) <= fleetsize.WINDOWS_MAX:
        return window_s
    least_s = math.ceil(span.span_s / fleetsize.WINDOWS_MAX) + 1
    wanted = f"at most {fleetsize.WINDOWS_MAX} windows in {span.span_s:.0f} s, as {least_s}s makes"
    return Fault("--window", wanted, f"{window_s:g} s")
