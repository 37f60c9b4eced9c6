"""What the words of an `extproc simulate` mean, and what it found for machines."""

import math
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from extproc import settingtypes, strategytext, yamlfile
from extproc.comparisonprogress import counted
from extproc.core.policy import policy_from_mapping
from extproc.core.settings import GOT_CHARS_MAX, Fault, shown
from extproc.sim import comparison as comparisons
from extproc.sim import engineprofile, fleetplan, workloads
from extproc.sim.compared import Compared
from extproc.sim.comparison import Comparison, Contender
from extproc.sim.fleetplan import FleetPlan
from extproc.sim.steptime import StepCost

INTERVAL_S_MIN: Final = 0.01
INTERVAL_S_MAX: Final = 60.0
"""As `nodes.report_interval_s` of serve."""
DELAY_S_MAX: Final = 10.0
LOAD_MIN: Final = 0.01
"""Agents report in simulated time as well: at a load of nothing a run would never end."""
LOAD_MAX: Final = 100.0
JOBS_MAX: Final = 256


def jobs_default() -> int:
    """As many as there are processors to run on."""
    return min(JOBS_MAX, os.cpu_count() or 1)


def understood(
    *,
    trace: str,
    nodes: str,
    strategies: str,
    loads: str,
    snapshot_interval: str,
    delay: str,
    policy: Path | None,
    profile: Path | None,
    **numbers: Any,
) -> Comparison | list[Fault]:
    """What the options mean, or every fault in them. `numbers` are those that the command line has checked."""
    faults: list[Fault] = []
    fleet = fleetplan.plan(nodes)
    contenders = _contenders(strategies, policy)
    shares = _loads(loads)
    interval_s = _seconds("--snapshot-interval", snapshot_interval, INTERVAL_S_MIN, INTERVAL_S_MAX)
    delay_s = _seconds("--delay", delay, 0.0, DELAY_S_MAX)
    cost = StepCost() if profile is None else engineprofile.read(profile)
    supply = workloads.supply(trace)
    for found in (fleet, contenders, shares, cost):
        if isinstance(found, list):
            faults += [one for one in found if isinstance(one, Fault)]
    faults += [one for one in (interval_s, delay_s, supply) if isinstance(one, Fault)]
    if faults:
        return faults
    assert isinstance(fleet, FleetPlan)
    assert isinstance(cost, StepCost)
    assert isinstance(contenders, tuple)
    assert isinstance(shares, tuple)
    assert isinstance(interval_s, float)
    assert isinstance(delay_s, float)
    assert not isinstance(supply, Fault)
    return Comparison(
        trace=trace,
        trace_requests=supply,
        fleet=fleet,
        contenders=contenders,
        loads=shares,
        snapshot_interval_s=interval_s,
        delay_s=delay_s,
        cost=cost,
        **numbers,
    )


def repeated(comparison: Comparison) -> str | None:
    """What is to be said where a trace has fewer requests than were asked for; `None`: it has enough."""
    has = comparison.trace_requests
    if has is None or has >= comparison.requests:
        return None
    return f"the trace has {counted(has, 'request')}; repeated to make {comparison.requests:,}"


def as_json(comparison: Comparison, compared: Compared) -> dict[str, Any]:
    """All of it for machines."""
    settings: dict[str, Any] = {
        "trace": comparison.trace,
        "nodes": [node.name for node in comparison.fleet.nodes],
        "strategies": [contender.name for contender in comparison.contenders],
        "loads": list(comparison.loads),
        "trace_requests": comparison.trace_requests,
        "trace_repeated": repeated(comparison) is not None,
        "cost": msgspec.to_builtins(comparison.cost),
    }
    for name in ("requests", "seeds", "routers", "snapshot_interval_s", "first_tokens", "lost_share", "delay_s"):
        settings[name] = getattr(comparison, name)
    return {
        "rows": [msgspec.to_builtins(row) for row in compared.rows],
        "capacity_per_s": compared.capacity_per_s,
        "cut": compared.cut,
        "missed": [msgspec.to_builtins(one) for one in compared.missed],
        "settings": settings,
    }


def _contenders(strategies: str, policy: Path | None) -> tuple[Contender, ...] | list[Fault]:
    base: dict[str, Any] = {}
    if policy is not None:
        match yamlfile.load(policy):
            case Fault() as fault:
                return [fault]
            case yamlfile.Document(content):
                if not isinstance(content, dict):
                    return [Fault(str(policy), "a mapping", repr(content)[:GOT_CHARS_MAX])]
                base = content
        found = policy_from_mapping(base)
        if isinstance(found, list):
            return yamlfile.faults_in(policy, found)
        if "strategy" in base:
            wanted = f"none here, since {strategytext.OPTION} says which are compared"
            return [Fault(f"{policy}: strategy", wanted, shown(base["strategy"]))]
    names = strategies.split(",")
    if len(names) > comparisons.STRATEGIES_MAX:
        return [Fault(strategytext.OPTION, f"at most {comparisons.STRATEGIES_MAX}", str(len(names)))]
    if "" in names:
        wanted = "a name before, between and behind the commas"
        return [Fault(strategytext.OPTION, wanted, repr(strategies)[:GOT_CHARS_MAX])]
    if twice := [name for name in names if names.count(name) > 1]:
        return [Fault(strategytext.OPTION, "each of them once", f"{twice[0][:GOT_CHARS_MAX]} twice")]
    contenders = [comparisons.contender(name, base) for name in names]
    faults = [fault for one in contenders if isinstance(one, list) for fault in one]
    return faults or tuple(one for one in contenders if isinstance(one, Contender))


def _loads(text: str) -> tuple[float, ...] | list[Fault]:
    try:
        loads = tuple(map(float, text.split(",")))
    except ValueError:
        loads = ()
    different = len(set(loads)) == len(loads) <= comparisons.LOADS_MAX
    if loads and different and all(LOAD_MIN <= load <= LOAD_MAX for load in loads):
        return loads
    wanted = f"different shares of the capacity, {LOAD_MIN:g} to {LOAD_MAX:g}, as 0.6,0.75"
    return [Fault("--load", wanted, text[:GOT_CHARS_MAX])]


def _seconds(option: str, text: str, least: float, most: float) -> float | Fault:
    try:
        value = settingtypes.seconds(text)
    except ValueError:
        value = math.nan
    if least <= value <= most:
        return value
    return Fault(option, f"{least:g} to {most:g} seconds, as 500ms, 2s, 0.1m or 0.5", text[:GOT_CHARS_MAX])
