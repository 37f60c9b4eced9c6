import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.agent.engines import triton
from extproc.agent.engines.adapter import Missing
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.kinds import kind_of
from extproc.agent.engines.pagevalues import Look
from extproc.agent.engines.reading import MEASURED, NOT_TOLD, EngineReading
from extproc.core.snapshot import ServedModel
from tests.agent.bounds import in_bounds
from tests.agent.trtllmpages import triton_lines


class Engine:
    """Looks again and again."""

    def __init__(self) -> None:
        self.before: Look | None = None

    def __call__(self, page: str) -> EngineReading:
        reading, self.before = triton.read(page, self.before)
        return reading


def test_a_busy_engine_is_read() -> None:
    reading = Engine()(triton_lines(active=249, scheduled=239, generation=231, used=600, blocks=2448))
    assert (reading.requests_running, reading.requests_waiting) == (239, 10)
    assert (reading.active_decodes, reading.pending_prefills) == (231, 18)
    assert (reading.kv_usage, reading.kv_blocks_total, reading.kv_blocks_available) == (600 / 2448, 2448, 1848)
    assert reading.kv_block_size_tokens == 64
    assert set(reading.absent.values()) == {NOT_TOLD}
    assert "prefill_tokens_total" in reading.absent


def test_its_page_tells_whose_it_is() -> None:
    assert kind_of("nv_inference_count 1\n" + triton_lines()) is EngineKind.TRITON


def test_an_engine_that_just_became_idle_shows_its_last_batch_and_is_read_as_idle() -> None:
    page = triton_lines(active=0, scheduled=3, generation=3)
    assert 'request_type="waiting"} -3' in page
    reading = Engine()(page)
    assert (reading.requests_running, reading.requests_waiting) == (0, 0)
    assert (reading.active_decodes, reading.pending_prefills) == (0, 0)


def test_a_counter_of_requests_is_not_what_runs() -> None:
    reading = Engine()(triton_lines(active=1, scheduled=1, succeeded=100_000))
    assert reading.requests_running == 1


def test_several_models_are_summed_and_their_caches_weigh_by_their_blocks() -> None:
    reading = Engine()(
        triton_lines("a", active=3, scheduled=2, generation=1, used=100, blocks=100)
        + triton_lines("b", active=0, scheduled=5, generation=5, used=0, blocks=300)
    )
    assert (reading.requests_running, reading.requests_waiting) == (2, 1)
    assert reading.active_decodes == 2  # no more than run
    assert (reading.kv_usage, reading.kv_blocks_total, reading.kv_blocks_available) == (0.25, 400, 300)
    assert reading.kv_block_size_tokens == 64


def test_models_with_blocks_of_different_sizes_have_no_one_size() -> None:
    reading = Engine()(triton_lines("a", tokens_per_block=64) + triton_lines("b", tokens_per_block=32))
    assert "or several" in reading.absent["kv_block_size_tokens"]


def test_without_counted_blocks_the_shares_count() -> None:
    page = triton_lines("a", fraction=0.5, blocks=100) + triton_lines("b", fraction=1.0, blocks=300)
    reading = Engine()("\n".join(line for line in page.split("\n") if '"used"' not in line))
    assert reading.kv_usage == pytest.approx(0.875)
    assert reading.kv_blocks_total == 400
    assert reading.absent["kv_blocks_available"].endswith("{kv_cache_block_type=used} is missing")


def test_a_fresh_engine_has_no_blocks_yet() -> None:
    reading = Engine()(triton_lines(blocks=0, tokens_per_block=0))
    assert reading.kv_usage == 0.0
    assert reading.absent["kv_blocks_total"].endswith("{kv_cache_block_type=max} is 0")


def test_static_batching_tells_no_decodes() -> None:
    reading = Engine()(triton_lines(active=2, scheduled=1, generation=None))
    assert (reading.requests_running, reading.requests_waiting) == (1, 1)
    assert (reading.active_decodes, reading.pending_prefills) == (None, None)
    assert "generation_requests" in reading.absent["pending_prefills"]


@pytest.mark.parametrize("gone", ["active", "scheduled"])
def test_requests_of_a_model_that_lacks_one_number_are_not_known(gone: str) -> None:
    page = triton_lines("a", active=2, scheduled=1) + triton_lines("b", active=2, scheduled=1)
    lines = [line for line in page.split("\n") if not (f'"{gone}"' in line and '"b"' in line)]
    reading = Engine()("\n".join(lines))
    assert (reading.requests_running, reading.requests_waiting, reading.pending_prefills) == (None, None, None)
    assert reading.kv_usage == 0.0


@pytest.mark.parametrize(("waiting", "frozen"), [(1, True), (0, False)])
def test_a_page_that_stands_still_is_of_a_long_step_if_something_waits(waiting: int, frozen: bool) -> None:
    engine = Engine()
    page = triton_lines(active=2 + waiting, scheduled=2, iteration=7)
    assert not engine(page).frozen
    assert engine(page).frozen is frozen
    assert not engine(triton_lines(active=2 + waiting, scheduled=2, iteration=8)).frozen


def test_counters_that_fall_are_a_restart() -> None:
    engine = Engine()
    engine(triton_lines(succeeded=9, iteration=100))
    assert not engine(triton_lines(succeeded=9, iteration=50)).restarted  # instances take turns to tell theirs
    assert engine(triton_lines(succeeded=1, iteration=60)).restarted


def test_metrics_that_are_not_there_are_told_with_where_they_are() -> None:
    reading, _ = triton.ADAPTER.read({"/metrics": Missing("/metrics answers 404")}, None)
    reason = "/metrics answers 404; Triton's metrics have a port of their own, which `metrics` must name"
    assert set(reading.absent.values()) == {reason}


def test_models_are_listed_by_the_openai_frontend_or_must_be_told() -> None:
    adapter = triton.ADAPTER
    assert adapter.models_of({"/v1/models": '{"data": [{"id": "llama"}]}'}) == (ServedModel("llama"),)
    assert adapter.models_of({"/v1/models": Missing("/v1/models answers 404")}) == (
        "/v1/models answers 404: only Triton's OpenAI frontend lists models, without it `models` must name them"
    )
    assert adapter.health == "/v2/health/ready"


NUMBERS = st.one_of(st.floats(), st.integers(-2, 10), st.integers(0, 2**60), st.just("garbage"))
SERIES = st.one_of(
    st.tuples(
        st.sampled_from(sorted(triton._TYPES)),
        st.sampled_from(
            ["active", "scheduled", "waiting", "used", "max", "fraction", "tokens_per", "iteration_counter"]
        ),
    ),
    st.tuples(st.just("nv_trt_llm_inflight_batcher_metrics"), st.just("generation_requests")),
    st.tuples(st.sampled_from(triton._COUNTERS), st.just("")),
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.tuples(SERIES, st.sampled_from("ab")), NUMBERS), max_size=3))
def test_whatever_it_tells_nothing_is_raised_and_nothing_is_out_of_bounds(
    looks: list[dict[tuple[tuple[str, str], str], object]],
) -> None:
    engine = Engine()
    for look in looks:
        page = "".join(
            f'{name}{{model="{model}",version="1",{triton._TYPES.get(name, "kind")}="{kind}"}} {value}\n'
            for ((name, kind), model), value in look.items()
        )
        reading = engine(page)
        assert in_bounds(reading)
        assert reading.absent.keys() == {name for name in MEASURED if getattr(reading, name) is None}
