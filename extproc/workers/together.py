"""What several workers tell, as one page: decisions by their age, forecasts as sums."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final

import msgspec

from extproc.core.forecast import ModelForecast

_ROUNDING: Final = 1e-6
"""Pages round what they tell."""
_Models = Mapping[str, Sequence[ModelForecast]]


def decisions(pages: Mapping[int, bytes], limit: int) -> dict[str, Any]:
    """The latest decisions of all, newest first, each with `worker`."""
    told = [
        {"worker": number} | one for number, page in pages.items() for one in msgspec.json.decode(page)["decisions"]
    ]
    told.sort(key=lambda one: float(one["age_s"]))
    return {"decisions": told[:limit]}


def forecasts(pages: Mapping[int, bytes]) -> tuple[ModelForecast, ...]:
    """The forecasts of pages /capacity, summed: each worker's is of the requests that it got.

    Rates and loads add up. Nodes needed are those that the loads fill together, rounded once; or as many as the worker
    says that says most: by `nodes_min`, or while it is new. What is known of nodes alone all say alike: the one that
    knows most counts.
    """
    by_model: dict[str, list[ModelForecast]] = {}
    for page in pages.values():
        for one in msgspec.json.decode(page)["models"]:
            by_model.setdefault(one["model"], []).append(_read(one))
    return tuple(_sum(model, told) for model, told in sorted(by_model.items()))


def _read(one: dict[str, Any]) -> ModelForecast:
    saturation = one["saturation"]
    return msgspec.convert(one | {"saturation": float("inf") if saturation is None else saturation}, ModelForecast)


def _sum(model: str, told: Sequence[ModelForecast]) -> ModelForecast:
    most = max(told, key=lambda one: one.nodes_ready)
    saturation = sum(one.saturation for one in told)
    filled = sum(one.nodes_filled for one in told)
    full_in_s = [one.saturated_in_s for one in told if one.saturated_in_s is not None]
    if saturation > 1:
        full_in_s.append(0.0)
    return ModelForecast(
        model,
        max(ceil(filled - _ROUNDING), *(one.nodes_needed for one in told)),
        most.nodes_ready,
        most.nodes_coming,
        saturation,
        min(full_in_s, default=None),
        max(one.cold_start_s for one in told),
        sum(one.requests_per_s for one in told),
        sum(one.prompt_tokens_per_s for one in told),
        sum(one.output_tokens_per_s for one in told),
        most.node_tokens_per_s,
        filled,
    )
