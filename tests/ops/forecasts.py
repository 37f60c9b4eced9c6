"""Readings of a forecast for tests of what shows them."""

from extproc.core.forecast import ModelForecast


def forecast_of(
    model: str = "m", nodes_needed: int = 3, *, saturation: float = 1.25, saturated_in_s: float | None = 0.0
) -> ModelForecast:
    return ModelForecast(
        model,
        nodes_needed=nodes_needed,
        nodes_ready=2,
        nodes_coming=1,
        saturation=saturation,
        saturated_in_s=saturated_in_s,
        cold_start_s=75.0,
        requests_per_s=1.23456,
        prompt_tokens_per_s=1000.0,
        output_tokens_per_s=200.0,
        node_tokens_per_s=8000.0,
    )
