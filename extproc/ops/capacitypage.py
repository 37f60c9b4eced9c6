"""The page /capacity: the forecast for people and scripts."""

from collections.abc import Collection
from math import isfinite

import msgspec

from extproc.core.forecast import ModelForecast
from extproc.wholepages import encoded

DIGITS = 3
"""Of rates and shares; more would be a claim."""


def capacity_page(forecasts: Collection[ModelForecast], ttft_s: float) -> bytes:
    """The objective, and every field of each model's forecast, in their order.

    `null`: not known. As `saturated_in_s`: not foreseen within an hour; as `saturation`: there is work and no node is
    ready.
    """
    content = {"ttft_s": ttft_s, "models": [_model(one) for one in forecasts]}
    return encoded(content)


def _model(forecast: ModelForecast) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(forecast)
    return {name: _shown(value) for name, value in fields.items()}


def _shown(value: object) -> object:
    if not isinstance(value, float):
        return value
    return round(value, DIGITS) if isfinite(value) else None
