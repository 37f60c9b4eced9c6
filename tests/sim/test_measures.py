from dataclasses import replace
from math import ceil

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from extproc.sim.engine import Engine
from extproc.sim.enginesettings import EngineSettings
from extproc.sim.events import Finished, FirstToken, Request
from extproc.sim.measures import Served, isolated, measure, percentile
from extproc.sim.steptime import StepCost

GOOD = Served(
    arrival=0,
    node="a",
    sent_s=10.0,
    first_token_s=11.0,
    finished_s=12.0,
    prompt_tokens=100,
    output_tokens=21,
    cached_tokens=0,
    refused=False,
    failed=False,
    isolated_prefill_s=0.5,
    isolated_e2e_s=1.0,
)


def served(**fields: object) -> Served:
    return structs.replace(GOOD, **fields)


REFUSED = served(node="", first_token_s=None, finished_s=None, refused=True)
FAILED = served(first_token_s=None, finished_s=None, failed=True)
CUT = served(finished_s=None)


@pytest.mark.parametrize(
    ("one", "good"),
    [
        (GOOD, True),
        (served(first_token_s=12.499, finished_s=13), True),
        (served(first_token_s=12.5, finished_s=13), False),
        (served(first_token_s=11.999, isolated_prefill_s=0.1), True),
        (served(first_token_s=12.0, isolated_prefill_s=0.1), False),
        (served(first_token_s=11.0, finished_s=12.999), True),
        (served(first_token_s=11.0, finished_s=13.0), False),
        (served(first_token_s=11.0, finished_s=11.0, output_tokens=1), True),
        (served(first_token_s=11.0, finished_s=11.125, output_tokens=2), False),
        (REFUSED, False),
        (FAILED, False),
        (CUT, False),
        (served(failed=True), False),
        (served(refused=True), False),
    ],
)
def test_a_request_is_good_if_it_is_complete_and_within_both_objectives(one: Served, good: bool) -> None:
    assert one.good is good
    assert measure([one], 0, ["a"]).ngood == good


def test_measures_of_a_run() -> None:
    run = [
        GOOD,
        served(node="b", first_token_s=13.0, finished_s=14.0, cached_tokens=50),
        served(first_token_s=10.5, finished_s=15.0, prompt_tokens=300, cached_tokens=150),
        REFUSED,
        FAILED,
        structs.replace(CUT, cached_tokens=10),
    ]
    measures = measure(run, 7, ["a", "b", "idle"])
    assert msgspec.to_builtins(measures) == {
        "requests": 6,
        "refused": 1,
        "failed": 2,
        "ngood": 1 / 6,
        "ttft_p50_s": 1.0,
        "ttft_p90_s": 3.0,
        "ttft_p99_s": 3.0,
        "tpot_p99_s": 4.5 / 20,
        "slowdown": (2.0 + 4.0 + 5.0) / 3,
        "preemptions": 7,
        "prefix_hit_share": 200 / 500,
        "node_shares": {"a": 0.8, "b": 0.2, "idle": 0.0},
        "ngood_accepted": 1 / 5,
        "classes": {},
    }


def test_measures_of_classes_are_those_of_their_requests_and_in_the_given_order() -> None:
    run = [
        served(priority="low"),
        served(priority="low", first_token_s=18.0, finished_s=19.0, queued_s=7.0),
        served(priority="low", node="", first_token_s=None, finished_s=None, refused=True),
        served(priority="low", first_token_s=None, finished_s=None, failed=True, queued_s=9.0),
        served(priority="high", first_token_s=10.5),
    ]
    measures = measure(run, 0, ["a"], ["high", "low", "nobody"])
    assert msgspec.to_builtins(measures.classes) == {
        "high": {
            "requests": 1,
            "refused": 0,
            "ngood": 1.0,
            "ngood_accepted": 1.0,
            "ttft_p50_s": 0.5,
            "ttft_p90_s": 0.5,
            "ttft_p99_s": 0.5,
            "queued_p90_s": 0.0,
        },
        "low": {
            "requests": 4,
            "refused": 1,
            "ngood": 0.25,
            "ngood_accepted": 1 / 3,
            "ttft_p50_s": 1.0,
            "ttft_p90_s": 8.0,
            "ttft_p99_s": 8.0,
            "queued_p90_s": 7.0,
        },
        "nobody": {
            "requests": 0,
            "refused": 0,
            "ngood": None,
            "ngood_accepted": None,
            "ttft_p50_s": None,
            "ttft_p90_s": None,
            "ttft_p99_s": None,
            "queued_p90_s": None,
        },
    }
    assert list(measures.classes) == ["high", "low", "nobody"]
    assert (measures.ngood, measures.ngood_accepted) == (2 / 5, 2 / 4)


def test_a_run_without_an_answer_has_no_times() -> None:
    measures = measure([REFUSED, REFUSED], 0, ["a"])
    assert (measures.refused, measures.failed, measures.ngood) == (2, 0, 0.0)
    assert measures.ngood_accepted is None
    assert measures.ttft_p50_s is measures.tpot_p99_s is measures.slowdown is None
    assert measures.prefix_hit_share == 0.0
    assert measures.node_shares == {"a": 0.0}


def test_answers_of_one_token_have_no_gap_between_tokens() -> None:
    assert measure([served(output_tokens=1)], 0, []).tpot_p99_s is None
    assert measure([served(output_tokens=1), GOOD], 0, []).tpot_p99_s == 1 / 20


@pytest.mark.parametrize(
    ("percent", "wanted"), [(1, 1), (10, 1), (11, 2), (50, 5), (51, 6), (90, 9), (91, 10), (99, 10), (100, 10)]
)
def test_a_percentile_is_the_nearest_rank(percent: int, wanted: float) -> None:
    assert percentile(range(1, 11), percent) == wanted


def test_a_percentile_of_one_value_is_that_value_and_of_none_nothing() -> None:
    assert [percentile([3.0], percent) for percent in (1, 50, 100)] == [3.0, 3.0, 3.0]
    assert percentile([], 50) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.integers(1, 100))
def test_so_many_percent_do_not_exceed_a_percentile_and_a_smaller_value_would_not_do(
    values: list[float], percent: int
) -> None:
    found = percentile(sorted(values), percent)
    assert found in values
    needed = ceil(len(values) * percent / 100)
    assert sum(value <= found for value in values) >= needed
    assert sum(value < found for value in values) < needed


def alone(prompt_tokens: int, output_tokens: int, settings: EngineSettings) -> tuple[float, float]:
    """Seconds to the first token and to the end, as an engine gives them."""
    engine = Engine(settings)
    engine.submit(Request("alone", prompt_tokens, output_tokens), 0.0)
    first_s = end_s = 0.0
    while (step_s := engine.next_step_end_s) is not None:
        for event in engine.advance(step_s):
            match event:
                case FirstToken(_, at_s):
                    first_s = at_s
                case Finished(_, at_s):
                    end_s = at_s
    return first_s, end_s


lengths = st.integers(1, 300)
costs = st.builds(
    StepCost,
    step_s=st.floats(0.001, 0.1),
    prefill_token_s=st.floats(0, 1e-3),
    decoding_sequence_s=st.floats(0, 1e-3),
    kv_token_s=st.floats(0, 1e-5),
    attention_pair_s=st.floats(0, 1e-5),
)


@given(lengths, lengths, st.integers(4, 400), costs)
def test_the_closed_form_of_an_isolated_request_is_what_an_engine_gives(
    prompt_tokens: int, output_tokens: int, step_tokens_max: int, cost: StepCost
) -> None:
    settings = EngineSettings(sequences_max=4, step_tokens_max=step_tokens_max, cost=cost)
    found = isolated(prompt_tokens, output_tokens, cost, step_tokens_max)
    assert (found.prefill_s, found.e2e_s) == pytest.approx(alone(prompt_tokens, output_tokens, settings), rel=1e-9)


@pytest.mark.parametrize(("prompt_tokens", "output_tokens"), [(1, 1), (8192, 2), (8193, 30), (100_000, 100)])
def test_the_closed_form_holds_for_the_default_engine(prompt_tokens: int, output_tokens: int) -> None:
    settings = replace(EngineSettings(), speed=1.0)
    found = isolated(prompt_tokens, output_tokens, settings.cost)
    assert (found.prefill_s, found.e2e_s) == pytest.approx(alone(prompt_tokens, output_tokens, settings), rel=1e-9)
