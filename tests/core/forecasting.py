"""Nodes and traffic for tests of the forecast."""

from dataclasses import replace
from random import Random

from extproc.core.forecast import Forecast, ModelForecast
from extproc.core.forecastsettings import ForecastSettings
from extproc.core.loads import view_of
from extproc.core.settings import ExpectedRates, NodeLimits
from extproc.core.snapshot import NO_LOAD, Learned, NodeState, NodeView, ServedModel, Snapshot

LIMITS = NodeLimits()
RATE = 10_000.0
LATER_S = 10_000.0
"""Long after the start."""


def snapshot(
    node_id: str = "a",
    state: NodeState = NodeState.READY,
    *,
    models: tuple[str, ...] | None = ("m",),
    boot_id: str = "one",
    kv_blocks_total: int | None = 25_000,
) -> Snapshot:
    return Snapshot(
        node_id,
        f"10.0.0.1:{1000 + sum(map(ord, node_id))}",
        boot_id,
        1,
        0.0,
        state,
        models=None if models is None else tuple(ServedModel(name) for name in models),
        kv_blocks_total=kv_blocks_total,
        kv_block_size_tokens=16,
    )


def view(one: Snapshot, sampled_at_s: float, rate: float = RATE) -> NodeView:
    return view_of(one, sampled_at_s, 0.0, NO_LOAD, Learned(rate / 0.8, 1000.0))


def nodes(now_s: float, ready: int = 1, loading: int = 0, models: tuple[str, ...] | None = ("m",)) -> list[NodeView]:
    one = snapshot(models=models)
    return [view(replace(one, node_id=f"r{number}"), now_s) for number in range(ready)] + [
        view(replace(one, node_id=f"l{number}", state=NodeState.LOADING), now_s) for number in range(loading)
    ]


def forecast(started_s: float = 0.0, **settings: float) -> Forecast:
    # Nobody answered yet: answers are taken to have no tokens, so that prompts alone are work.
    rates = ExpectedRates(prefill_tokens_per_s=RATE / 0.8, output_tokens=0)
    return Forecast(ForecastSettings.model_validate(settings), LIMITS, rates, started_s)


def steady(
    to: Forecast, from_s: float, until_s: float, per_s: float, tokens: int = 1000, model: str = "m", growth: float = 0.0
) -> float:
    """Requests one after the other at this rate, which rises by `growth` a second; the time when they are over."""
    due = 0.0
    for second in range(int(from_s), int(until_s)):
        due += max(0.0, per_s + growth * (second - from_s))
        for _ in range(int(due)):
            to.arrived(model, tokens, float(second))
        due -= int(due)
    return until_s


def at_random(to: Forecast, from_s: float, until_s: float, per_s: float, seed: int = 0, tokens: int = 1000) -> float:
    """Poisson arrivals."""
    chance, at_s = Random(seed), from_s
    while (at_s := at_s + chance.expovariate(per_s)) < until_s:
        to.arrived("m", tokens, at_s)
    return until_s


def of(read: Forecast, members: list[NodeView], now_s: float, model: str = "m") -> ModelForecast:
    return next(one for one in read.of(members, now_s) if one.model == model)
