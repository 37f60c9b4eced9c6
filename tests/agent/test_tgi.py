"""Text Generation Inference's adapter: a queue and a batch, steps, and two pages that tell the model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.engines import kinds, pagevalues, tgi
from extproc.agent.engines.adapter import Missing
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.reading import FIRST_LOOK, NOT_TOLD, QUIET, EngineReading
from extproc.core.snapshot import ServedModel
from tests.agent.anypages import assert_sane, pages

INFO = '{"model_id": "m", "max_concurrent_requests": 128, "max_input_tokens": 4095, "max_total_tokens": 4096}'
MODELS = '{"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "m"}]}'


def page(
    *,
    queue: float = 0,
    batch: float = 0,
    prefill: tuple[float, float] | None = (0.0, 0),
    decode: tuple[float, float] | None = (0.0, 0),
    token: tuple[float, float] | None = (0.0, 0),
) -> str:
    lines = f"""
tgi_queue_size {queue}
tgi_batch_current_size {batch}
tgi_batch_current_max_tokens 14336
tgi_batch_next_size_sum 7777.0
tgi_request_count 150
tgi_request_queue_duration_sum 7777.0
tgi_request_queue_duration_count 7777.0
"""
    for method, pair in (("prefill", prefill), ("decode", decode)):
        if pair is not None:
            lines += f'tgi_batch_inference_count{{method="{method}"}} {pair[1]}\n'
            lines += f'tgi_batch_inference_duration_sum{{method="{method}"}} {pair[0]}\n'
            lines += f'tgi_batch_inference_duration_count{{method="{method}"}} {pair[1]}\n'
    if token is not None:
        lines += f"tgi_request_mean_time_per_token_duration_sum {token[0]}\n"
        lines += f"tgi_request_mean_time_per_token_duration_count {token[1]}\n"
    return lines


class Engine:
    """Looks again and again."""

    def __init__(self) -> None:
        self.before: pagevalues.Look | None = None

    def __call__(self, text: str) -> EngineReading:
        reading, self.before = tgi.read(text, self.before)
        return reading


def test_a_page_is_read() -> None:
    reading = Engine()(page(queue=3, batch=7))
    assert (reading.requests_running, reading.requests_waiting) == (7, 3)
    assert (reading.active_decodes, reading.pending_prefills) == (7, 3)
    assert reading.absent["prefill_latency_ms"] == reading.absent["decode_ms_per_token"] == FIRST_LOOK


def test_a_batchs_token_budget_is_no_use_of_a_cache() -> None:
    reading = Engine()(page(batch=7))
    for signal in ("kv_usage", "kv_blocks_total", "kv_block_size_tokens", "kv_blocks_available"):
        assert reading.absent[signal] == NOT_TOLD


def test_the_steps_of_the_last_interval_tell_the_times() -> None:
    engine = Engine()
    engine(page(prefill=(1.0, 10), decode=(4.0, 200), token=(90.0, 3)))
    reading = engine(page(prefill=(1.6, 12), decode=(5.0, 250), token=(99.0, 4)))
    assert reading.prefill_latency_ms == pytest.approx(300)
    assert reading.decode_ms_per_token == pytest.approx(20)
    assert engine(page(prefill=(1.6, 12), decode=(5.0, 250))).absent["prefill_latency_ms"] == QUIET


def test_without_steps_the_requests_own_means_stand_in_for_tokens() -> None:
    engine = Engine()
    engine(page(prefill=None, decode=None, token=(0.3, 10)))
    reading = engine(page(prefill=None, decode=None, token=(0.6, 20)))
    assert reading.decode_ms_per_token == pytest.approx(30)
    assert "prefill" in reading.absent["prefill_latency_ms"]
    assert "decode" in Engine()(page(decode=None, token=None)).absent["decode_ms_per_token"]


def test_a_page_that_stands_still_with_work_is_frozen() -> None:
    engine = Engine()
    engine(page(batch=2, decode=(1.0, 9)))
    assert engine(page(batch=2, decode=(1.0, 9))).frozen
    assert not engine(page(batch=2, decode=(1.0, 10))).frozen
    engine(page(decode=(1.0, 10)))
    assert not engine(page(decode=(1.0, 10))).frozen


def test_fallen_counters_are_a_restart_though_some_are_not_back_yet() -> None:
    engine = Engine()
    busy = page(prefill=(1.0, 10), decode=(4.0, 200), token=(0.3, 10))
    engine(busy)
    assert not engine("tgi_queue_size 0\n").restarted
    assert engine("tgi_queue_size 0\ntgi_request_count 1\n").restarted
    assert not engine("tgi_queue_size 0\ntgi_request_count 2\n").restarted


@pytest.mark.parametrize(
    ("before", "after", "signals"),
    [
        ("tgi_queue_size 0", "tgi_queue_sizes 0", ("requests_waiting", "pending_prefills")),
        ("tgi_queue_size 0", "tgi_queue_size -1", ("requests_waiting", "pending_prefills")),
        ("tgi_batch_current_size 0", "", ("requests_running", "active_decodes")),
        ("tgi_batch_current_size 0", "tgi_batch_current_size NaN", ("requests_running", "active_decodes")),
    ],
)
def test_what_is_missing_or_senseless_has_a_reason_that_names_it(
    before: str, after: str, signals: tuple[str, ...]
) -> None:
    text = page()
    assert before in text
    reading = Engine()(text.replace(before, after))
    for signal in signals:
        assert getattr(reading, signal) is None
        assert before.split(maxsplit=1)[0] in reading.absent[signal]


def test_the_page_is_known_by_the_beginning_of_a_line_only() -> None:
    assert kinds.kind_of(page()) is EngineKind.TGI
    assert kinds.kind_of('# tgi_x\na{b="tgi_x"} 1\nte_queue_size 1\nxtgi_ 1\n') is None


@pytest.mark.parametrize(
    ("info", "models", "wanted"),
    [
        (INFO, MODELS, (ServedModel("m", context_length_tokens=4096),)),
        (INFO, Missing("404"), (ServedModel("m", context_length_tokens=4096),)),
        (Missing("404"), MODELS, (ServedModel("m"),)),
        ("garbage", MODELS, (ServedModel("m"),)),
        ("garbage", Missing("404"), "/info tells no model"),
        (Missing("late"), Missing("404"), "late"),
        ("[" * 100_000, Missing("404"), "/info tells no model"),
        (INFO, "garbage", "/v1/models is no OpenAI model list"),
        ('{"model_id": "m", "max_total_tokens": 0}', Missing("404"), (ServedModel("m"),)),
    ],
)
def test_two_pages_tell_the_model(info: str | Missing, models: str | Missing, wanted: object) -> None:
    assert tgi.ADAPTER.models_of({"/info": info, "/v1/models": models}) == wanted


@given(st.lists(pages(tgi._WANTED, {"method": ["prefill", "decode"], "err": ["x"]}), max_size=2), st.text())
def test_whatever_a_page_shows_every_signal_is_sane_or_absent(looks: list[str], info: str) -> None:
    engine = Engine()
    for text in looks:
        assert_sane(engine(text))
        assert_sane(engine(page(batch=1) + text))
    tgi.models_of(info, None)
