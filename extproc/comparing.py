"""What the words of an `extproc simulate` mean, and what it found for machines."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from extproc import config as configs
from extproc import yamlfile
from extproc.core.settings import GOT_CHARS_MAX, BalancerSettings, Fault
from extproc.runprogress import counted
from extproc.sim import comparison as comparisons
from extproc.sim import engineprofile, fleetplan, workloads
from extproc.sim.compared import Compared
from extproc.sim.comparison import Comparison
from extproc.sim.exchange import Exchanging
from extproc.sim.fleetplan import FleetPlan
from extproc.sim.steptime import StepCost
from extproc.simulationoptions import contenders, exchanging, seconds

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
    exchange: str = "none",
    config: Path | None = None,
    priorities: str | None = None,
    **numbers: Any,
) -> Comparison | list[Fault]:
    """What the options mean, or every fault in them. `numbers` are those that the command line has checked."""
    faults: list[Fault] = []
    fleet = fleetplan.plan(nodes)
    entrants = contenders(strategies, policy)
    shares = _loads(loads)
    interval_s = seconds("--snapshot-interval", snapshot_interval, INTERVAL_S_MIN, INTERVAL_S_MAX)
    delay_s = seconds("--delay", delay, 0.0, DELAY_S_MAX)
    told = exchanging(exchange)
    cost = StepCost() if profile is None else engineprofile.read(profile)
    settings = _settings(config)
    supply = workloads.supply(trace)
    classes: dict[str, str] | Fault = {}
    if priorities is not None and isinstance(settings, BalancerSettings) and not isinstance(supply, Fault):
        classes = _priorities(priorities, workloads.kinds(trace), settings.classes)
    for found in (fleet, entrants, shares, cost, settings):
        if isinstance(found, list):
            faults += [one for one in found if isinstance(one, Fault)]
    faults += [one for one in (interval_s, delay_s, told, supply, classes) if isinstance(one, Fault)]
    if faults:
        return faults
    assert isinstance(fleet, FleetPlan)
    assert isinstance(cost, StepCost)
    assert isinstance(settings, BalancerSettings)
    assert isinstance(entrants, tuple)
    assert isinstance(shares, tuple)
    assert isinstance(interval_s, float)
    assert isinstance(delay_s, float)
    assert not isinstance(told, Fault)
    assert not isinstance(supply, Fault)
    assert not isinstance(classes, Fault)
    return Comparison(
        trace=trace,
        trace_requests=supply,
        fleet=fleet,
        contenders=entrants,
        loads=shares,
        snapshot_interval_s=interval_s,
        delay_s=delay_s,
        exchange=told,
        settings=settings,
        cost=cost,
        priorities=classes,
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
        "classes": {name: one.model_dump() for name, one in comparison.settings.classes.items()},
        "default_class": comparison.settings.default_class,
        "priorities": dict(comparison.priorities),
        "exchange": _told(comparison.exchange),
    }
    numbers = (
        "requests",
        "seeds",
        "routers",
        "snapshot_interval_s",
        "first_tokens",
        "kv_events",
        "lost_share",
        "delay_s",
    )
    for name in numbers:
        settings[name] = getattr(comparison, name)
    return {
        "rows": [msgspec.to_builtins(row) for row in compared.rows],
        "capacity_per_s": compared.capacity_per_s,
        "cut": compared.cut,
        "missed": [msgspec.to_builtins(one) for one in compared.missed],
        "settings": settings,
    }


def _told(exchange: Exchanging | None) -> dict[str, Any] | None:
    """What routers tell each other, for machines."""
    if exchange is None:
        return None
    return {"interval_s": exchange.interval_s, "placements": exchange.placements}


def _settings(config: Path | None) -> BalancerSettings | list[Fault]:
    """What a configuration of serve says of the balancer."""
    if config is None:
        return BalancerSettings()
    found = configs.read(config)
    if isinstance(found, list):
        return yamlfile.faults_in(config, found)
    return BalancerSettings.model_validate({name: getattr(found, name) for name in BalancerSettings.model_fields})


def _priorities(text: str, kinds: Iterable[str], classes: Iterable[str]) -> dict[str, str] | Fault:
    pairs = [one.partition("=") for one in text.split(",")]
    named = {kind: name for kind, _, name in pairs}
    if len(named) == len(pairs) and set(named) <= set(kinds) and set(named.values()) <= set(classes):
        return named
    wanted = f"kind=class, each kind once, of kinds {', '.join(kinds)} and classes {', '.join(classes)}"
    return Fault("--priorities", wanted, repr(text)[:GOT_CHARS_MAX])


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
