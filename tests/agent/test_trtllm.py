import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.agent.engines import trtllm
from extproc.agent.engines.adapter import Missing
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.kinds import kind_of
from extproc.agent.engines.pagevalues import Look
from extproc.agent.engines.reading import FIRST_LOOK, MEASURED, NOT_TOLD, QUIET, EngineReading
from extproc.agent.enginesettings import EngineConfig
from extproc.agent.scrape import EnginePages
from extproc.agent.watch import EngineWatch
from extproc.core.snapshot import NodeState, ServedModel
from tests.agent import engine as misbehaviour
from tests.agent.bounds import in_bounds
from tests.agent.engine import Handler, vllm_engine
from tests.agent.trtllmpages import LABELS, trtllm_lines

MODELS = '{"object": "list", "data": [{"id": "Qwen3-0.6B", "object": "model", "owned_by": "tensorrt_llm"}]}'


class Engine:
    """Looks again and again."""

    def __init__(self) -> None:
        self.before: Look | None = None

    def __call__(self, page: str) -> EngineReading:
        reading, self.before = trtllm.read(page, self.before)
        return reading


def test_a_busy_engine_is_read() -> None:
    reading = Engine()(
        trtllm_lines(
            running=7, waiting=3, decodes=5, used=410, prompt=123456, cached=23456, ttft=(8.75, 150), finished=150
        )
    )
    assert (reading.requests_running, reading.requests_waiting) == (7, 3)
    assert (reading.active_decodes, reading.pending_prefills) == (5, 5)
    assert (reading.kv_usage, reading.kv_blocks_total, reading.kv_blocks_available) == (0.41, 1000, 590)
    assert reading.kv_block_size_tokens == 32
    assert (reading.prefill_tokens_total, reading.prefill_seconds_total, reading.first_tokens_total) == (
        100_000, 8.75, 150,
    )  # fmt: skip
    assert (reading.prefix_queries_total, reading.prefix_hits_total) == (123456, 23456)
    assert not reading.frozen
    assert reading.absent == {
        "prefill_latency_ms": FIRST_LOOK,
        "decode_ms_per_token": FIRST_LOOK,
        "adapter_slots_free": NOT_TOLD,
    }


def test_its_page_tells_whose_it_is() -> None:
    assert kind_of(trtllm_lines()) is EngineKind.TRTLLM


def test_what_came_since_the_look_before_gives_the_means() -> None:
    engine = Engine()
    engine(trtllm_lines(ttft=(1.0, 10), per_token=(0.5, 10)))
    reading = engine(trtllm_lines(ttft=(2.0, 14), per_token=(0.6, 14)))
    assert reading.prefill_latency_ms == pytest.approx(250)
    assert reading.decode_ms_per_token == pytest.approx(25)
    assert engine(trtllm_lines(ttft=(2.0, 14), per_token=(0.6, 14))).absent["prefill_latency_ms"] == QUIET


def test_the_time_in_prefill_is_taken_where_it_is_told() -> None:
    engine = Engine()
    engine(trtllm_lines(prefill=(1.0, 10)))
    assert engine(trtllm_lines(prefill=(1.4, 14), ttft=(9.0, 4))).prefill_latency_ms == pytest.approx(100)


def test_an_engine_whose_batch_is_empty_shows_its_last_one_and_is_read_as_idle() -> None:
    reading = Engine()(trtllm_lines(running=8, decodes=8, batch={0: 0, 1: 0}))
    assert (reading.requests_running, reading.active_decodes, reading.pending_prefills) == (0, 0, 0)
    reading = Engine()(trtllm_lines(running=8, decodes=8, batch={0: 0, 1: 8}))
    assert (reading.requests_running, reading.active_decodes) == (8, 8)
    reading = Engine()(trtllm_lines(running=8, decodes=8, waiting=1, batch={0: 0}))
    assert (reading.requests_running, reading.pending_prefills) == (8, 1)


def test_no_more_decode_than_run() -> None:
    reading = Engine()(trtllm_lines(running=2, decodes=9))
    assert (reading.active_decodes, reading.pending_prefills) == (2, 0)


@pytest.mark.parametrize(
    ("waiting", "batch", "frozen"),
    [(1, None, True), (0, None, False), (0, {0: 4}, True), (0, {0: 0}, False), (1, {0: 0}, True)],
)
def test_a_page_that_stands_still_is_of_a_long_step_only_if_something_tells_it_from_an_idle_engine(
    waiting: int, batch: dict[int, float] | None, frozen: bool
) -> None:
    engine = Engine()
    page = trtllm_lines(running=4, decodes=4, waiting=waiting, batch=batch)
    assert not engine(page).frozen
    assert engine(page).frozen is frozen
    assert not engine(trtllm_lines(running=4, decodes=4, waiting=waiting, batch=batch, step_s=0.011)).frozen


def test_counters_that_fall_together_are_a_restart() -> None:
    engine = Engine()
    engine(trtllm_lines(finished=9, prompt=900, cached=90, ttft=(1.0, 9)))
    assert not engine(trtllm_lines(finished=10, prompt=1000, cached=100, ttft=(1.2, 10))).restarted
    reading = engine(trtllm_lines(finished=1, prompt=100, cached=10, ttft=(0.1, 1)))
    assert reading.restarted
    assert reading.absent["prefill_latency_ms"] == FIRST_LOOK
    assert reading.prefill_tokens_total == 90
    assert not engine(trtllm_lines(finished=2, prompt=200, cached=20, ttft=(0.2, 2))).restarted


def test_prompt_tokens_computed_do_not_fall_where_a_page_stands_between_two_counters() -> None:
    engine = Engine()
    assert engine(trtllm_lines(prompt=100, cached=40)).prefill_tokens_total == 60
    assert engine(trtllm_lines(prompt=100, cached=70)).prefill_tokens_total == 60
    assert engine(trtllm_lines(prompt=200, cached=70)).prefill_tokens_total == 130


def test_more_hits_than_queries_are_neither() -> None:
    reading = Engine()(trtllm_lines(prompt=10, cached=11))
    for name in ("prefill_tokens_total", "prefix_queries_total", "prefix_hits_total"):
        assert "is over" in reading.absent[name]


def test_an_engine_without_step_statistics_has_totals_only() -> None:
    page = "\n".join(line for line in trtllm_lines(prompt=9).split("\n") if 'pid="7"' not in line)
    reading = Engine()(page)
    assert reading.prefill_tokens_total == 9
    assert reading.absent["requests_running"] == "trtllm_num_requests_running is missing"
    assert reading.absent["kv_usage"] == "trtllm_kv_cache_utilization is missing"
    assert reading.pending_prefills is None


def test_an_older_version_tells_the_cache_by_its_share_alone() -> None:
    page = f"trtllm_kv_cache_utilization{{{LABELS}}} 0.41\n"
    reading = Engine()(page)
    assert reading.kv_usage == 0.41
    assert reading.absent["kv_blocks_available"] == "trtllm_kv_cache_max_blocks is missing"


def test_a_cache_without_blocks_has_a_share_and_no_size() -> None:
    reading = Engine()(trtllm_lines(blocks=0, tokens_per_block=0))
    assert reading.kv_usage == 0.0
    assert (reading.kv_blocks_total, reading.kv_blocks_available, reading.kv_block_size_tokens) == (None, None, None)


def test_more_blocks_used_than_there_are_say_nothing() -> None:
    reading = Engine()(trtllm_lines(used=1001))
    assert (reading.kv_usage, reading.kv_blocks_total, reading.kv_blocks_available) == (None, None, None)


def test_a_page_that_did_not_come_keeps_what_was_known() -> None:
    known = Engine()
    known(trtllm_lines(ttft=(1.0, 10)))
    reading, before = trtllm.ADAPTER.read({"/prometheus/metrics": Missing("it is late")}, known.before)
    assert set(reading.absent.values()) == {"it is late"}
    reading, _ = trtllm.ADAPTER.read({"/prometheus/metrics": trtllm_lines(ttft=(2.0, 20))}, before)
    assert reading.prefill_latency_ms == pytest.approx(100)


def config(length: str, **more: str) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in (more | {"max_model_len": length}).items())
    return f"trtllm_model_config_info{{{LABELS},{labels}}} 1.0\n"


@pytest.mark.parametrize(
    ("metrics", "length"),
    [
        (None, None), ("", None), (config("8192"), 8192), (config("None"), None), (config("-1"), None),
        (config("8192") + config("8192", pid="9"), 8192), (config("8192") + config("4096"), None),
    ],
)  # fmt: skip
def test_the_model_has_the_length_that_the_metrics_tell(metrics: str | None, length: int | None) -> None:
    assert trtllm.models_of(MODELS, metrics) == (ServedModel("Qwen3-0.6B", context_length_tokens=length),)


def test_a_length_is_not_guessed_for_several_models() -> None:
    models = trtllm.models_of('{"data": [{"id": "a"}, {"id": "b", "max_model_len": 5}]}', config("8192"))
    assert models == (ServedModel("a"), ServedModel("b", context_length_tokens=5))


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        ({"/v1/models": Missing("/v1/models answers 503")}, "/v1/models answers 503"),
        ({"/v1/models": "garbage"}, "/v1/models is no OpenAI model list"),
    ],
)
def test_no_list_is_told_with_its_reason(pages: dict[str, str | Missing], reason: str) -> None:
    assert trtllm.ADAPTER.models_of(pages) == reason


@pytest.mark.parametrize(("metrics", "looks"), [("[]", 1), (404, 1), (misbehaviour.never, 2)])
async def test_it_is_found_where_its_metrics_are_whatever_stands_at_the_usual_place(
    metrics: str | int | Handler, looks: int
) -> None:
    async with vllm_engine() as engine, EnginePages(engine.url, 100_000) as pages:
        engine.pages |= {"/metrics": metrics, "/prometheus/metrics": trtllm_lines(running=3) + config("4096")}
        engine.pages["/v1/models"] = MODELS
        watch = EngineWatch(pages, EngineConfig.model_validate({"node_id": "n", "engine": engine.url}), 0.2, 3600)
        for _ in range(looks):
            seen = await watch.look()
        assert (seen.state, seen.reading.requests_running) == (NodeState.READY, 3)
        engine.asked.clear()
        await watch.look()
        assert "/metrics" not in engine.asked


async def test_a_server_without_metrics_says_where_they_were_looked_for() -> None:
    async with vllm_engine() as engine, EnginePages(engine.url, 100_000) as pages:
        engine.pages["/metrics"] = "[]"
        told = {"node_id": "n", "engine": engine.url, "engine_kind": "trtllm"}
        seen = await EngineWatch(pages, EngineConfig.model_validate(told), 5.0, 3600).look()
    assert seen.state is NodeState.READY
    assert seen.reading.absent["requests_running"] == "/prometheus/metrics answers 404"


NUMBERS = st.one_of(st.floats(), st.integers(-2, 2**60), st.just("garbage"))
NAMES = sorted(trtllm._WANTED)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), NUMBERS), max_size=3))
def test_whatever_it_tells_nothing_is_raised_and_nothing_is_out_of_bounds(looks: list[dict[str, object]]) -> None:
    engine = Engine()
    for look in looks:
        reading = engine("".join(f"{name} {value}\n" for name, value in look.items()))
        assert in_bounds(reading)
        assert reading.absent.keys() == {name for name in MEASURED if getattr(reading, name) is None}
