import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.engines import llamacpp
from extproc.agent.engines.reading import FIRST_LOOK, NOT_TOLD
from extproc.core.snapshot import COUNTER_MAX, ServedModel
from tests.agent.pages import sample


def slot(
    *, tokens: int | None = None, decoded: int | None = None, busy: bool = True, size: int = 100
) -> dict[str, object]:
    made: dict[str, object] = {"id": 0, "n_ctx": size, "is_processing": busy, "params": {"seed": 1}}
    if tokens is not None:
        made["n_prompt_tokens"] = tokens
    if decoded is not None:
        made["next_token"] = [{"n_decoded": decoded, "n_remain": 5}]
    return made


def metrics(running: int = 0, waiting: int = 0, predicted: float = 0, seconds: float = 0.0) -> str:
    return (
        f"llamacpp:requests_processing {running}\nllamacpp:requests_deferred {waiting}\n"
        f"llamacpp:tokens_predicted_total {predicted}\nllamacpp:tokens_predicted_seconds_total {seconds}\n"
    )


def test_the_captured_pages_are_read() -> None:
    reading, _ = llamacpp.read(sample("llamacpp_b10434_load_2.prom"), sample("llamacpp_slots.json"), None)
    assert reading.requests_waiting == 2
    assert (reading.requests_running, reading.active_decodes) == (0, 0)  # captured when the slots were free again
    assert (reading.kv_usage, reading.kv_blocks_total, reading.kv_block_size_tokens) == (0.0, 8192, 1)
    assert reading.absent == {
        "prefill_latency_ms": NOT_TOLD,
        "decode_ms_per_token": FIRST_LOOK,
        "first_tokens_total": NOT_TOLD,
        "adapter_slots_free": NOT_TOLD,
    }
    assert (reading.prefill_tokens_total, reading.prefill_seconds_total) == (5199, 1.3645)
    assert (reading.prefix_queries_total, reading.prefix_hits_total) == (5199 + 5151, 5151)


@pytest.mark.parametrize(
    ("line", "signals"),
    [
        ("llamacpp:prompt_tokens_total", {"prefill_tokens_total", "prefix_queries_total"}),
        ("llamacpp:prompt_tokens_cached_total", {"prefix_queries_total", "prefix_hits_total"}),
        ("llamacpp:prompt_seconds_total", {"prefill_seconds_total"}),
    ],
)
@pytest.mark.parametrize("value", ["NaN", "-1", "inf", "1e300", None])
def test_a_senseless_total_is_absent_with_its_reason(line: str, signals: set[str], value: str | None) -> None:
    page = sample("llamacpp_b10434_load_2.prom")
    changed = re.sub(rf"(?m)^{line} .*$", "" if value is None else f"{line} {value}", page)
    reading, _ = llamacpp.read(changed, None, None)
    assert {name for name, reason in reading.absent.items() if line in reason} == signals


def test_a_sum_of_looked_up_tokens_out_of_range_is_absent() -> None:
    page = f"llamacpp:prompt_tokens_total {COUNTER_MAX}\nllamacpp:prompt_tokens_cached_total 2\n"
    reading, _ = llamacpp.read(page, None, None)
    assert (reading.prefill_tokens_total, reading.prefix_queries_total) == (COUNTER_MAX, None)


@pytest.mark.parametrize("counter", ["prompt_tokens_total", "prompt_tokens_cached_total"])
def test_fewer_prompt_tokens_than_before_are_a_restart(counter: str) -> None:
    _, look = llamacpp.read(f"llamacpp:{counter} 9\n", None, None)
    assert llamacpp.read(f"llamacpp:{counter} 8\n", None, look)[0].restarted


def test_slots_tell_prefills_decodes_and_kv_use() -> None:
    slots = [
        slot(tokens=40, decoded=0),
        slot(tokens=30, decoded=7),
        slot(tokens=90, decoded=0, busy=False),
        slot(busy=False),
    ]
    reading, _ = llamacpp.read(metrics(running=2, waiting=3), json.dumps(slots), None)
    assert (reading.requests_running, reading.active_decodes, reading.pending_prefills) == (2, 1, 4)
    assert (reading.kv_usage, reading.kv_blocks_total, reading.kv_blocks_available) == (70 / 400, 400, 330)


def test_the_older_form_of_a_slot_is_read() -> None:
    old = slot(tokens=10) | {"next_token": {"n_decoded": 3}}
    assert llamacpp.read(metrics(), json.dumps([old]), None)[0].active_decodes == 1


@pytest.mark.parametrize("slots", [None, "", "{}", "[]", '[{"n_ctx": 0, "is_processing": true}]', "[" * 100_000,
                                   '[{"n_ctx": -5, "is_processing": true}]', '[{"n_ctx": "x"}]'])  # fmt: skip
def test_without_slots_the_queues_come_from_the_metrics_alone(slots: str | None) -> None:
    reading, _ = llamacpp.read(metrics(running=2, waiting=1), slots, None)
    assert (reading.requests_running, reading.requests_waiting) == (2, 1)
    assert (reading.kv_usage, reading.active_decodes, reading.pending_prefills) == (None, None, None)
    assert "/slots" in reading.absent["kv_usage"]


def test_without_metrics_the_slots_still_tell_what_runs() -> None:
    reading, _ = llamacpp.read(None, json.dumps([slot(tokens=1, decoded=1)]), None)
    assert (reading.requests_running, reading.requests_waiting, reading.pending_prefills) == (1, None, None)


def test_the_time_of_a_token_is_the_mean_of_the_interval() -> None:
    _, look = llamacpp.read(metrics(predicted=100, seconds=2.0), None, None)
    reading, look = llamacpp.read(metrics(predicted=150, seconds=2.5), None, look)
    assert reading.decode_ms_per_token == pytest.approx(10)


def test_a_fallen_counter_is_a_restart() -> None:
    _, look = llamacpp.read(metrics(predicted=100, seconds=2.0), None, None)
    reading, _ = llamacpp.read(metrics(predicted=3, seconds=0.1), None, look)
    assert reading.restarted
    assert reading.absent["decode_ms_per_token"] == FIRST_LOOK


def listing(entries: list[str]) -> str:
    return f'{{"data": [{",".join(entries)}]}}'


MODELS = '{"data": [{"id": "m", "meta": %s}]}'


@pytest.mark.parametrize(
    ("meta", "props", "tokens"),
    [
        ('{"n_ctx": 1024, "n_ctx_train": 8192}', '{"default_generation_settings": {"n_ctx": 512}}', 512),
        ('{"n_ctx": 1024, "n_ctx_train": 8192}', None, 1024),
        ('{"n_ctx_train": 8192}', "garbage", 8192),
        ("null", None, None),
    ],
)
def test_the_context_length_is_what_one_slot_holds(meta: str, props: str | None, tokens: int | None) -> None:
    assert llamacpp.models_of(MODELS % meta, props) == (ServedModel("m", context_length_tokens=tokens),)


def test_the_captured_props_give_the_context_length() -> None:
    models = llamacpp.models_of(MODELS % "null", sample("llamacpp_props.json"))
    assert models == (ServedModel("m", context_length_tokens=2048),)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"data": 5}', '{"data": [{"id": 5}]}', '{"data": [{"id": ""}]}', '{"data": [{"id": "a\\u0000"}]}',
     '{"data": [{"id": "%s"}]}' % ("x" * 257), listing(['{"id": "m"}'] * 257), "[" * 100_000],
)  # fmt: skip
def test_a_list_of_models_that_is_none_is_a_reason(text: str) -> None:
    assert isinstance(llamacpp.models_of(text, None), str)


def test_the_largest_allowed_list_and_name_pass() -> None:
    entry = '{"id": "%s", "max_model_len": 99999999999}' % ("x" * 256)
    models = llamacpp.models_of(listing([entry] * 256), None)
    assert len(models) == 256


@given(st.text(), st.text(), st.text())
def test_no_text_raises(page: str, slots: str, props: str) -> None:
    llamacpp.read(page, slots, None)
    llamacpp.models_of(slots, props)
