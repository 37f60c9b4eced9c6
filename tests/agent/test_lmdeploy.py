"""LMDeploy's adapter: gauges that are late, a cache that may have had prompts, versions before and after 0.10."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.engines import kinds, lmdeploy, pagevalues
from extproc.agent.engines.adapter import Missing
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.reading import FIRST_LOOK, NOT_TOLD, QUIET, EngineReading
from extproc.core.snapshot import ServedModel
from tests.agent.anypages import assert_sane, pages
from tests.agent.pages import started


def page(
    engine: int = 0,
    *,
    running: float = 0,
    waiting: float = 0,
    api_waiting: float | None = 0,
    usage: float = 0.0,
    hit_rate: float | None = 0.0,
    prompt: float = 0,
    first_tokens: tuple[float, float] = (0.0, 0),
    prefill: tuple[float, float] | None = (0.0, 0),
    decode: tuple[float, float] = (0.0, 0),
    gaps_s: float = 0.0,
) -> str:
    label = f'{{engine="{engine}",model_name="m"}}'
    lines = f"""
lmdeploy:num_requests_running{label} {running}
lmdeploy:num_requests_waiting{label} {waiting}
lmdeploy:num_requests_unfinished{label} 7777.0
lmdeploy:gpu_cache_usage_perc{label} {usage}
lmdeploy:prompt_tokens_total{label} {prompt}
lmdeploy:generation_tokens_total{label} {decode[1]}
lmdeploy:request_success_total{{engine="{engine}",finished_reason="FINISH"}} 0.0
lmdeploy:iter_token_latency_sum{label} {gaps_s}
lmdeploy:iter_token_latency_count{label} {decode[1]}
"""
    for name, value in (("num_api_requests_waiting", api_waiting), ("prefix_cache_hit_rate", hit_rate)):
        lines += "" if value is None else f"lmdeploy:{name}{label} {value}\n"
    for name, pair in (
        ("time_to_first_token_seconds", first_tokens),
        ("request_prefill_time_seconds", prefill),
        ("time_per_output_token_seconds", decode),
    ):
        if pair is not None:
            lines += f"lmdeploy:{name}_sum{label} {pair[0]}\nlmdeploy:{name}_count{label} {pair[1]}\n"
    return lines


class Engine:
    """Looks again and again."""

    def __init__(self) -> None:
        self.before: pagevalues.Look | None = None

    def __call__(self, text: str) -> EngineReading:
        reading, self.before = lmdeploy.read(text, self.before)
        return reading


def read(text: str) -> EngineReading:
    return Engine()(text)


def test_a_page_is_read() -> None:
    reading = read(page(running=4, waiting=2, api_waiting=3, usage=0.25, prompt=900, first_tokens=(3.0, 6), gaps_s=8.0))
    assert (reading.requests_running, reading.requests_waiting, reading.kv_usage) == (4, 5, 0.25)
    assert (reading.prefill_tokens_total, reading.prefill_seconds_total, reading.first_tokens_total) == (900, 3.0, 6)
    assert reading.decode_seconds_total == 8.0
    assert (reading.active_decodes, reading.pending_prefills, reading.kv_blocks_total) == (None, None, None)
    assert reading.absent["active_decodes"] == reading.absent["kv_blocks_total"] == NOT_TOLD


def test_older_versions_tell_less() -> None:
    reading = read(page(waiting=2, api_waiting=None, hit_rate=None, prompt=900))
    assert reading.requests_waiting == 2
    assert "prefix_cache_hit_rate is missing" in reading.absent["prefill_tokens_total"]


@pytest.mark.parametrize("rate", [0.2, "NaN", -1])
def test_prompts_that_the_cache_may_have_had_were_not_computed(rate: float) -> None:
    reading = read(page(prompt=900) + page(1, prompt=900, hit_rate=rate))
    assert reading.prefill_tokens_total is None
    assert "prefix cache" in reading.absent["prefill_tokens_total"]


def test_data_parallel_engines_are_summed_and_their_usage_is_the_mean() -> None:
    reading = read(page(0, running=1, waiting=2, usage=0.2, prompt=3) + page(1, running=4, api_waiting=5, usage=0.6))
    assert (reading.requests_running, reading.requests_waiting, reading.prefill_tokens_total) == (5, 7, 3)
    assert reading.kv_usage == pytest.approx(0.4)


def test_means_are_of_the_last_interval() -> None:
    engine = Engine()
    assert engine(page(prefill=(1.0, 10), decode=(5.0, 100))).absent["prefill_latency_ms"] == FIRST_LOOK
    reading = engine(page(prefill=(1.6, 12), decode=(5.0, 100)))
    assert reading.prefill_latency_ms == pytest.approx(300)
    assert reading.absent["decode_ms_per_token"] == QUIET


def test_without_prefill_times_those_of_first_tokens_stand_in() -> None:
    engine = Engine()
    engine(page(first_tokens=(1.0, 10), prefill=None))
    assert engine(page(first_tokens=(2.0, 20), prefill=None)).prefill_latency_ms == pytest.approx(100)


def test_a_fallen_page_is_a_restart_and_one_that_stands_still_no_long_step() -> None:
    engine = Engine()
    engine(page(running=1, waiting=1, prompt=500))
    assert not engine(page(running=1, waiting=1, prompt=500)).frozen
    assert engine(page(prompt=3)).restarted
    assert not engine(page(prompt=3)).restarted
    engine(started(1) + page(prompt=3))
    assert engine(started(2) + page(prompt=3)).restarted


@pytest.mark.parametrize(
    ("before", "after", "signal"),
    [
        ("num_requests_running{", "gone{", "requests_running"),
        ("num_requests_waiting{", "gone{", "requests_waiting"),
        ('api_requests_waiting{engine="0",model_name="m"} 0', "api_requests_waiting NaN", "requests_waiting"),
        ("gpu_cache_usage_perc{", "gone{", "kv_usage"),
        ('usage_perc{engine="0",model_name="m"} 0.0', "usage_perc 25", "kv_usage"),
        ("first_token_seconds_count{", "gone{", "first_tokens_total"),
        ("lmdeploy:prompt_tokens_total{", "gone{", "prefill_tokens_total"),
    ],
)
def test_what_is_missing_or_senseless_has_a_reason_that_names_it(before: str, after: str, signal: str) -> None:
    text = page()
    assert before in text
    reading = read(text.replace(before, after))
    assert getattr(reading, signal) is None
    assert "lmdeploy:" in reading.absent[signal]


def test_the_page_is_known_by_the_beginning_of_a_line_only() -> None:
    assert kinds.kind_of(page()) is EngineKind.LMDEPLOY
    assert kinds.kind_of('# lmdeploy:x\na{b="lmdeploy:x"} 1\n xlmdeploy:y 1\n') is None


def test_models_have_no_length() -> None:
    told = lmdeploy.ADAPTER.models_of({"/v1/models": '{"data": [{"id": "m", "root": "m", "parent": null}]}'})
    assert told == (ServedModel("m"),)
    assert lmdeploy.ADAPTER.models_of({"/v1/models": Missing("late")}) == "late"


@given(
    st.lists(
        pages(lmdeploy._WANTED, {"engine": ["0", "1"], "finished_reason": ["FINISH"], "model_name": ["m"]}), max_size=2
    )
)
def test_whatever_a_page_shows_every_signal_is_sane_or_absent(looks: list[str]) -> None:
    engine = Engine()
    for text in looks:
        assert_sane(engine(text))
        assert_sane(engine(page(running=1, prompt=5) + text))
