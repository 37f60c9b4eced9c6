"""Pages of several workers as one."""

import math

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.forecast import ModelForecast
from extproc.ops.capacitypage import capacity_page
from extproc.workers.together import decisions, forecasts


def forecast(
    needed: int, filled: float, *, ready: int = 2, model: str = "m", full_in_s: float | None = None
) -> ModelForecast:
    saturation = filled / ready if ready else (math.inf if filled else 0.0)
    return ModelForecast(model, needed, ready, 1, saturation, full_in_s, 60.0, 1.5, 100.0, 10.0, 8000.0, filled)


def summed(*each: ModelForecast) -> ModelForecast:
    (found,) = forecasts({number: capacity_page([one], 2.0) for number, one in enumerate(each)})
    return found


def test_loads_add_up_and_are_rounded_once() -> None:
    found = summed(forecast(1, 0.3), forecast(1, 0.4))
    assert (found.nodes_needed, found.requests_per_s, found.prompt_tokens_per_s) == (1, 3.0, 200.0)
    assert summed(forecast(2, 1.7), forecast(2, 1.6)).nodes_needed == 4
    assert (found.nodes_ready, found.nodes_coming, found.node_tokens_per_s) == (2, 1, 8000.0), "all know the same nodes"


def test_what_one_worker_wants_at_least_is_wanted() -> None:
    assert summed(forecast(9, 0.1), forecast(1, 0.1)).nodes_needed == 9, "it has just been started"


def test_together_they_may_be_too_many_though_each_part_is_not() -> None:
    found = summed(forecast(2, 1.2), forecast(2, 1.1))
    assert (found.saturation, found.saturated_in_s) == (1.15, 0.0)
    assert summed(forecast(1, 0.5, full_in_s=300.0), forecast(1, 0.5)).saturated_in_s == 300.0
    assert summed(forecast(1, 0.5), forecast(1, 0.5)).saturated_in_s is None


def test_none_ready_is_infinite_on_the_page_and_here() -> None:
    assert summed(forecast(1, 0.5, ready=0), forecast(1, 0.5, ready=0)).saturation == math.inf


def test_models_that_one_worker_alone_was_asked_for_are_there() -> None:
    pages = {0: capacity_page([forecast(1, 0.5, model="a")], 2.0), 1: capacity_page([forecast(1, 0.5, model="b")], 2.0)}
    assert [one.model for one in forecasts(pages)] == ["a", "b"]
    assert forecasts({}) == ()


@given(st.lists(st.floats(0, 50), min_size=1, max_size=16))
def test_nodes_needed_are_between_the_most_and_the_sum_of_what_each_wants(filled: list[float]) -> None:
    each = [forecast(max(1, math.ceil(one)), one) for one in filled]
    found = summed(*each).nodes_needed
    assert max(one.nodes_needed for one in each) <= found <= sum(one.nodes_needed for one in each)


def test_decisions_are_merged_newest_first_with_their_worker_and_the_limit_holds() -> None:
    pages = {
        0: b'{"decisions": [{"age_s": 1, "x": "a"}, {"age_s": 5, "x": "b"}]}',
        1: b'{"decisions": [{"age_s": 0.5, "x": "c"}, {"age_s": 3, "x": "d"}]}',
    }
    told = decisions(pages, 3)["decisions"]
    assert [(one["worker"], one["x"]) for one in told] == [(1, "c"), (0, "a"), (1, "d")]
    assert decisions(pages, 0) == {"decisions": []}
