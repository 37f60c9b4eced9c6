"""The forecast as gauges and as a page."""

import json
from math import inf

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.core.forecast import ModelForecast
from extproc.ops.capacitymetrics import CapacityGauges
from extproc.ops.capacitypage import capacity_page
from tests.ops.forecasts import forecast_of


def series(*forecasts: ModelForecast) -> dict[tuple[str, str], float]:
    page = generate_latest(CapacityGauges(forecasts)).decode()
    return {
        (one.name, one.labels["model"]): one.value
        for family in text_string_to_metric_families(page)
        for one in family.samples
    }


def test_each_model_has_its_series() -> None:
    assert series(forecast_of("a"), forecast_of('b "x"\n', 0)) == {
        (name, model): value
        for model, needed in (("a", 3), ('b "x"\n', 0))
        for name, value in (
            ("extproc_nodes_needed", needed),
            ("extproc_nodes_ready", 2),
            ("extproc_nodes_coming", 1),
            ("extproc_model_saturation", 1.25),
            ("extproc_model_saturated_in_seconds", 0),
            ("extproc_cold_start_seconds", 75),
        )
    }


def test_what_is_not_foreseen_has_no_series_and_without_a_node_saturation_is_infinite() -> None:
    found = series(forecast_of(saturated_in_s=None, saturation=inf))
    assert ("extproc_model_saturated_in_seconds", "m") not in found
    assert found["extproc_model_saturation", "m"] == inf


def test_without_models_there_are_no_series() -> None:
    assert series() == {}


def test_the_page_has_every_field_in_its_order() -> None:
    page = json.loads(capacity_page([forecast_of("a"), forecast_of("b")], 2.0))
    assert page["ttft_s"] == 2.0
    assert [one["model"] for one in page["models"]] == ["a", "b"]
    assert list(page["models"][0]) == list(ModelForecast.__struct_fields__)
    assert page["models"][0]["nodes_needed"] == 3
    assert page["models"][0]["requests_per_s"] == 1.235


@pytest.mark.parametrize("value", [inf, None])
def test_what_is_not_known_is_null(value: float | None) -> None:
    model = forecast_of(saturated_in_s=value, saturation=inf)
    page = json.loads(capacity_page([model], 2.0))["models"][0]
    assert (page["saturated_in_s"], page["saturation"]) == (None, None)
