"""Gauges that do not move as an engine's counters say they must: each is noticed, and forgiven late."""

from typing import Any

import pytest

from extproc.agent.doubts import SOUND_S
from extproc.agent.engines.reading import MEASURED, EngineReading
from extproc.agent.looks import LOOKS_MIN
from extproc.core.snapshot import SIGNALS
from tests.agent.enginemodel import BLOCKS, Engine, Lie, Watched


def absent_in(reading: EngineReading) -> set[str]:
    """What is not told; each has a reason, and nothing else has."""
    absent = {name for name in MEASURED if getattr(reading, name) is None}
    assert absent == set(reading.absent)
    return absent


def as_counter(name: str) -> Lie:
    """What a router reads that takes a counter of requests for a gauge."""
    return lambda reading, _: {name: 500 + (reading.first_tokens_total or 0)}


def stuck(name: str, value: float) -> Lie:
    return lambda *_: {name: value}


GAUGES = ("requests_running", "active_decodes", "requests_waiting", "pending_prefills")
BUSY: dict[str, Any] = {"per_tick": 0.5, "batch": 64, "decode_ticks": 20}


@pytest.mark.parametrize("name", GAUGES)
def test_a_counter_where_a_gauge_belongs_is_noticed(name: str) -> None:
    """Alone, without others that contradict it."""

    def lie(reading: EngineReading, look: int) -> dict[str, Any]:
        return dict.fromkeys(GAUGES) | {"kv_blocks_total": None} | as_counter(name)(reading, look)

    watched = Watched(Engine(**BUSY), lie)
    assert getattr(watched.look_for(LOOKS_MIN - 1), name) is not None
    seen = watched.look_for(15)
    assert getattr(seen, name) is None
    assert seen.absent[name] == f"{name} counts up, and is no number of requests"
    assert seen.kv_usage is not None
    assert seen.first_tokens_total is not None


def test_a_counter_of_an_engine_that_tells_no_seconds_is_noticed_when_no_batch_is_so_large() -> None:
    def told(reading: EngineReading, look: int) -> dict[str, Any]:
        return {
            "requests_running": 100 * look,
            "kv_blocks_total": None,
            "decode_seconds_total": None,
            "prefill_seconds_total": None,
            "pending_prefills": None,
        }

    watched = Watched(Engine(**BUSY), told)
    assert watched.look_for(41).requests_running == 4100
    assert watched.look_for(2).requests_running is None


def test_a_counter_that_begins_anew_is_a_gauge_that_fell() -> None:
    watched = Watched(Engine(**BUSY), as_counter("requests_running"))
    assert watched.look_for(LOOKS_MIN + 15).requests_running is None
    watched.lie = lambda *_: {}
    assert watched.look_for(int(SOUND_S) - 1).requests_running is None
    assert watched.look_for(2).requests_running is not None


@pytest.mark.parametrize(
    ("name", "value", "doubted"),
    [
        ("requests_running", 0, {"requests_running", "active_decodes", "pending_prefills"}),
        ("active_decodes", 0, {"active_decodes"}),
        ("pending_prefills", 0, set()),
        ("kv_usage", 0.0, {"kv_usage", "kv_blocks_available"}),
        ("kv_blocks_available", BLOCKS, {"kv_blocks_available"}),
        ("kv_usage", 0.123, {"kv_usage", "kv_blocks_available"}),
        ("kv_blocks_available", BLOCKS - 1000, {"kv_blocks_available"}),
        ("prefill_seconds_total", 0.0, {"prefill_seconds_total"}),
        ("prefill_seconds_total", 1.0, {"prefill_seconds_total"}),
    ],
)
def test_what_stands_still_while_tokens_are_computed_is_noticed(name: str, value: float, doubted: set[str]) -> None:
    """As a metric that was removed and is read as 0."""
    made_of_it = {"active_decodes": 0} if name == "requests_running" else {}
    watched = Watched(Engine(**BUSY), lambda *_: {name: value} | made_of_it)
    assert absent_in(watched.look_for(LOOKS_MIN - 1)) == set()
    seen = watched.look_for(10)
    assert absent_in(seen) == doubted
    if not doubted:
        return  # no more than eight wait here: those that get their first token in one step are not seen
    assert all(len(reason) < 80 for reason in seen.absent.values())
    # It stays doubted while the engine has nothing to do, and when it has again.
    watched.engine.per_tick = 0.0
    assert absent_in(watched.look_for(200)) >= {name}
    watched.engine.per_tick = 0.5
    assert absent_in(watched.look_for(3)) >= {name}
    watched.lie = lambda *_: {}
    assert name in absent_in(watched.look_for(int(SOUND_S) - 1))
    assert absent_in(watched.look_for(10)) == set()


def test_running_that_stands_still_at_little_is_noticed() -> None:
    """Where many times as many decode."""
    alone = {"requests_waiting": 0, "pending_prefills": None, "active_decodes": None}
    for value, is_noticed in ((2, True), (8, False)):
        watched = Watched(Engine(0.5, batch=64), lambda *_, value=value: alone | {"requests_running": value})
        assert (watched.look_for(60).requests_running is None) == is_noticed


def test_running_that_stands_still_at_much_is_noticed() -> None:
    """As the gauge of a process that died."""
    watched = Watched(Engine(0.5, batch=64, decode_ticks=5), stuck("requests_running", 200))
    seen = watched.look_for(LOOKS_MIN + 5)
    assert "stands still" in seen.absent["requests_running"]


def test_pending_prompts_that_nobody_sees_are_noticed() -> None:
    watched = Watched(Engine(clients=40, batch=8, decode_ticks=10), stuck("pending_prefills", 0))
    assert watched.look_for(LOOKS_MIN + 1).pending_prefills is None


def test_an_idle_engine_that_says_nothing_is_believed_whatever_it_says() -> None:
    watched = Watched(Engine(), stuck("requests_running", 0))
    assert absent_in(watched.look_for(100)) == set()


def test_a_cache_whose_size_nobody_tells_is_doubted_for_much_only() -> None:
    def zero(reading: EngineReading, _: int) -> dict[str, Any]:
        return {"kv_usage": 0.0, "kv_blocks_total": None, "kv_blocks_available": None}

    assert Watched(Engine(0.5, tokens=2000), zero).look_for(60).kv_usage == 0.0
    assert Watched(Engine(0.5, tokens=20_000), zero).look_for(60).kv_usage is None


def test_reasons_are_few_and_for_known_signals() -> None:
    """Each is logged once, and shown as a label's neighbour: whatever is told, they do not become more."""
    reasons: set[str] = set()
    for name in GAUGES:
        for lie in (as_counter(name), stuck(name, 0), stuck(name, 9_999)):
            watched = Watched(Engine(**BUSY), lie)
            for _ in range(60):
                absent = watched.look().absent
                assert absent.keys() <= SIGNALS
                reasons |= {f"{signal}: {why}" for signal, why in absent.items()}
    assert len(reasons) < 40
    assert all(reason.isprintable() for reason in reasons)
