"""Engines that tell the truth are believed, however constant, full, slow or fast they are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.realvllm.recording import page_of, recorded
from extproc.agent.doubts import Doubts
from extproc.agent.engines import vllm
from extproc.agent.engines.reading import EngineReading
from tests.agent.enginemodel import Engine, Lie, Watched, honest
from tests.agent.pages import SAMPLES, sample


def doubted(watched: Watched, seconds: int) -> dict[str, str]:
    """All that was doubted in so many looks."""
    found: dict[str, str] = {}
    for _ in range(seconds):
        found |= watched.look().absent
    return found


@settings(max_examples=25)
@given(
    per_tick=st.sampled_from([0.0, 0.02, 0.3, 1.5, 4.0, 12.0]),
    clients=st.sampled_from([0, 1, 4, 40]),
    batch=st.sampled_from([1, 8, 64]),
    tokens=st.sampled_from([1, 300, 20_000]),
    prefill_ticks=st.sampled_from([1, 5, 30]),
    decode_ticks=st.sampled_from([0, 2, 30, 600]),
    seed=st.integers(0, 99),
)
def test_no_load_makes_an_honest_engine_a_liar(
    per_tick: float, clients: int, batch: int, tokens: int, prefill_ticks: int, decode_ticks: int, seed: int
) -> None:
    engine = Engine(per_tick, clients, batch, tokens, prefill_ticks, decode_ticks, seed)
    watched = Watched(engine)
    assert doubted(watched, 60) == {}
    engine.per_tick *= 3  # and then more than it can do
    assert doubted(watched, 40) == {}
    engine.per_tick = engine.clients = 0
    assert doubted(watched, 20) == {}


def test_many_prompts_that_take_one_step_are_never_seen_to_wait() -> None:
    one_step = Watched(Engine(12.0, batch=64, tokens=1, decode_ticks=0), lambda *_: {"pending_prefills": 0})
    assert doubted(one_step, 60) == {}


@pytest.mark.parametrize("seconds", [31, 120])
def test_clients_that_wait_for_their_answers_hold_everything_constant(seconds: int) -> None:
    engine = Engine(clients=8, batch=8, decode_ticks=1)
    watched = Watched(engine, lambda *_: {"requests_running": 8, "requests_waiting": 0})
    assert doubted(watched, seconds) == {}
    queued = {"requests_waiting": 32, "pending_prefills": 32}
    watched = Watched(Engine(clients=40, batch=8, decode_ticks=10), lambda *_: queued)
    assert doubted(watched, seconds) == {}


def test_a_queue_that_starves_behind_others_is_believed() -> None:
    """Requests of a higher priority pass it: it stands still, or grows, and those that are served never waited."""
    watched = Watched(Engine(0.5, batch=64), lambda *_: {"requests_waiting": 5000, "pending_prefills": 5000})
    assert doubted(watched, 90) == {}


def test_a_queue_that_a_crowd_left_behind_and_that_still_grows_is_believed() -> None:
    """Those that are served came with the crowd, when it was short."""
    engine = Engine(0.3, clients=1, batch=200, tokens=1, decode_ticks=600, seed=317355)
    watched = Watched(engine)
    for per_tick, seconds in ((0.3, 70), (0.5, 70), (6.0, 70), (0.5, 70)):
        engine.per_tick = per_tick
        assert doubted(watched, seconds) == {}


def test_a_cache_is_not_held_against_running_requests_that_lie() -> None:
    """Clients that wait for their answers keep it as it is."""
    engine = Engine(clients=8, batch=8, decode_ticks=4)

    def lie(reading: EngineReading, _: int) -> dict[str, object]:
        return {
            "requests_running": 100 + (reading.first_tokens_total or 0),
            "kv_usage": 0.1,
            "kv_blocks_available": None,
        }

    assert "kv_usage" not in doubted(Watched(engine, lie), 90)


def test_usage_that_is_rounded_to_hundredths_is_believed() -> None:
    def rounded(reading: EngineReading, _: int) -> dict[str, object]:
        return {"kv_usage": round(reading.kv_usage or 0.0, 2)}

    assert doubted(Watched(Engine(0.3, tokens=100), rounded), 90) == {}
    assert doubted(Watched(Engine(clients=8, tokens=1500), rounded), 90) == {}


def test_a_full_cache_stays_full() -> None:
    full: Lie = lambda *_: {"kv_usage": 0.98, "kv_blocks_available": 200}  # noqa: E731
    assert doubted(Watched(Engine(0.5), full), 90) == {}


def test_a_burst_while_nobody_looked_proves_nothing() -> None:
    engine = Engine()
    watched = Watched(engine)
    assert doubted(watched, 29) == {}
    engine.per_tick = 1.0
    engine.run(600)
    engine.per_tick = 0.0
    engine.run(600)
    assert doubted(watched, 40) == {}


def test_looks_that_come_fast_are_not_more_than_they_span() -> None:
    """Answers come and go between two looks of a second; of a twentieth of a second thirty are soon there."""
    watched = Watched(Engine(0.5), honest)
    assert {name: why for _ in range(300) for name, why in watched.look(0.1).absent.items()} == {}


def test_six_digits_do_not_make_a_total_fall() -> None:
    def six_digits(reading: EngineReading, _: int) -> dict[str, object]:
        return {"prefill_tokens_total": int(float(f"{10**9 + (reading.prefill_tokens_total or 0):.6g}"))}

    assert doubted(Watched(Engine(0.5), six_digits), 60) == {}
    total = [1_000_000, 999_995, 1_000_001]  # a difference of two rounded ones
    assert doubted(Watched(Engine(), lambda _, look: {"prefill_tokens_total": total[look % 3]}), 30) == {}


def test_a_restart_begins_all_anew() -> None:
    """Totals fall, and thirty looks are needed again."""
    watched = Watched(Engine(0.5), lambda _, look: {"restarted": look == 29, "requests_running": 0})
    watched.look_for(40)
    watched.engine.totals = dict.fromkeys(watched.engine.totals, 0.0)
    watched.lie = lambda _, look: {"restarted": look == 41}
    assert doubted(watched, 30) == {}


def test_captured_pages_are_believed() -> None:
    doubts, look = Doubts(), None
    for number, name in enumerate(("idle_fresh", "load_3", "after")):
        reading, look = vllm.read(sample(f"vllm_0.32.0_cpu_{name}.prom"), look)
        assert doubts.checked(reading, float(number)) == reading


@pytest.mark.parametrize("every", [2, 10])
def test_gauges_that_are_written_now_and_then_are_believed(every: int) -> None:
    """Of counters that are written at once."""
    written: dict[str, object] = {}

    def late(reading: EngineReading, look: int) -> dict[str, object]:
        if look % every == 1:
            gauges = ("requests_running", "requests_waiting", "active_decodes", "pending_prefills", "kv_usage")
            written.update({name: getattr(reading, name) for name in gauges}, kv_blocks_available=None)
        return written | {"gauges_every_s": float(every)}

    for seed in range(3):
        assert doubted(Watched(Engine(0.1, decode_ticks=10, tokens=20_000, seed=seed), late), 300) == {}


def test_totals_of_requests_that_ended_prove_nothing() -> None:
    """A queue that grows, and totals that tell of requests that came long before."""
    totals = ("prefill_seconds_total", "prefill_tokens_total", "first_tokens_total")
    engine = Engine(1.0, batch=50, decode_ticks=900)
    held: list[dict[str, object]] = []

    def ended(reading: EngineReading, look: int) -> dict[str, object]:
        held.append({name: getattr(reading, name) for name in totals})
        return {"decode_seconds_total": None, **held[max(0, look - 120)]}

    assert doubted(Watched(engine, ended), 300) == {}


def test_a_recorded_run_of_a_real_vllm_is_believed() -> None:
    """With preemptions, requests that were given up, a sleep and a restart."""
    doubts, look, pages = Doubts(), None, recorded(SAMPLES / "vllm_0.32.0_run.jsonl").pages
    for at_s, series in pages:
        reading, look = vllm.read(page_of(series), look)
        assert doubts.checked(reading, at_s) is reading
    assert len(pages) > 100
