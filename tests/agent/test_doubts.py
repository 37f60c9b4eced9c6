"""Numbers that cannot be true, contradictions, and totals that fall: noticed, and forgiven late."""

import dataclasses
from typing import Any

import pytest

from extproc.agent.contradictions import contradictions
from extproc.agent.doubts import SOUND_LOOKS, SOUND_S, TORN_LOOKS, Doubts
from extproc.agent.engines.reading import MEASURED, EngineReading, unread
from extproc.core.snapshot import COUNTER_MAX, REQUESTS_MAX

SOUND = EngineReading(
    kv_usage=0.5,
    kv_block_size_tokens=16,
    kv_blocks_total=1000,
    kv_blocks_available=500,
    pending_prefills=3,
    active_decodes=4,
    requests_running=5,
    requests_waiting=2,
    prefill_latency_ms=10.0,
    decode_ms_per_token=10.0,
    prefill_tokens_total=1000,
    prefill_seconds_total=10.0,
    first_tokens_total=10,
    prefix_queries_total=100,
    prefix_hits_total=50,
    adapter_slots_free=1,
)


def changed(reading: EngineReading, **changes: Any) -> EngineReading:
    return dataclasses.replace(reading, **changes)


def absent_in(reading: EngineReading) -> set[str]:
    """What is not told; each has a reason, and nothing else has."""
    absent = {name for name in MEASURED if getattr(reading, name) is None}
    assert absent == set(reading.absent)
    return absent


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_usage", -0.01),
        ("kv_usage", 1.01),
        ("kv_usage", float("nan")),
        ("kv_block_size_tokens", 0),
        ("kv_blocks_total", 0),
        ("kv_blocks_total", 10**9 + 1),
        ("requests_running", -1),
        ("requests_running", REQUESTS_MAX + 1),
        ("requests_waiting", 1.5),
        ("requests_waiting", float("inf")),
        ("decode_ms_per_token", float("inf")),
        ("prefill_latency_ms", 3_600_001.0),
        ("prefill_seconds_total", float("nan")),
        ("prefill_tokens_total", COUNTER_MAX + 1),
        ("adapter_slots_free", 10_001),
    ],
)
def test_what_no_snapshot_may_hold_is_absent_at_once(name: str, value: Any) -> None:
    seen = Doubts().checked(changed(SOUND, **{name: value}), 0.0)
    assert getattr(seen, name) is None
    assert name in seen.absent[name]


def test_a_sound_reading_passes_as_it_is_and_so_does_an_empty_one() -> None:
    assert Doubts().checked(SOUND, 0.0) is SOUND
    empty = unread("/metrics answers 404")
    assert Doubts().checked(empty, 0.0) is empty


@pytest.mark.parametrize(
    ("changes", "doubted"),
    [
        ({"kv_blocks_available": 1001, "kv_usage": None}, {"kv_blocks_available", "kv_blocks_total"}),
        ({"prefix_hits_total": 101}, {"prefix_hits_total", "prefix_queries_total"}),
    ],
)
def test_what_routers_would_refuse_is_absent_at_once(changes: dict[str, Any], doubted: set[str]) -> None:
    seen = Doubts().checked(changed(SOUND, **changes), 0.0)
    assert set(seen.absent) == doubted


CONTRADICTED: list[tuple[dict[str, Any], set[str]]] = [
    ({"pending_prefills": 8}, {"pending_prefills", "requests_running", "requests_waiting", "active_decodes"}),
    ({"active_decodes": 8}, {"pending_prefills", "requests_running", "requests_waiting", "active_decodes"}),
    ({"requests_running": 1001}, {"requests_running", "active_decodes", "pending_prefills"}),
    ({"kv_usage": 0.81}, {"kv_usage", "kv_blocks_available"}),
    ({"kv_blocks_available": 190}, {"kv_usage", "kv_blocks_available"}),
]


@pytest.mark.parametrize(("changes", "doubted"), CONTRADICTED)
def test_other_contradictions_are_doubted_if_they_stay(changes: dict[str, Any], doubted: set[str]) -> None:
    """A page may have been written in the midst of a step."""
    doubts = Doubts()
    for look in range(1, TORN_LOOKS + 1):
        seen = doubts.checked(changed(SOUND, **changes), float(look))
        assert absent_in(seen) == (doubted if look == TORN_LOOKS else set())
    doubts = Doubts()
    for look in range(20):
        reading = SOUND if look % TORN_LOOKS == 0 else changed(SOUND, **changes)
        assert absent_in(doubts.checked(reading, float(look))) == set()


def test_a_page_that_stands_still_contradicts_itself_once() -> None:
    doubts, torn = Doubts(), changed(SOUND, pending_prefills=8)
    assert absent_in(doubts.checked(torn, 0.0)) == set()
    for look in range(1, 10):
        assert absent_in(doubts.checked(changed(torn, frozen=True), float(look))) == set()


@pytest.mark.parametrize(
    "changes",
    [
        {"pending_prefills": 7},
        {"active_decodes": 7},
        {"requests_running": 1000},
        {"kv_usage": 0.79},
        {"kv_blocks_available": 210},
        {"prefix_hits_total": 100},
        {"kv_blocks_available": 1000, "kv_usage": 0.29},
        {"requests_running": None, "pending_prefills": 9},
        {"kv_blocks_total": None, "requests_running": 5000},
    ],
)
def test_what_is_just_possible_is_no_contradiction(changes: dict[str, Any]) -> None:
    reading = changed(SOUND, **changes)
    told = {name: value for name in MEASURED if (value := getattr(reading, name)) is not None}
    assert contradictions(told) == []


def counted(*totals: int, started: bool = False) -> list[int | None]:
    """What is told of a total that is so at one look after the other, a second apart."""
    doubts = Doubts()
    told = []
    for look, total in enumerate(totals):
        seen = doubts.checked(changed(SOUND, first_tokens_total=total), float(look))
        told.append(seen.first_tokens_total)
        assert absent_in(seen) <= {"first_tokens_total"}
    return told


def test_a_total_that_falls_is_absent_until_it_has_passed_what_it_was_for_a_while() -> None:
    while_sound = int(SOUND_S)
    assert counted(10, 9) == [10, None]
    assert counted(10, 0, 5, 9, 10, *[11] * (while_sound - 2)) == [10] + [None] * (while_sound + 2)
    assert counted(10, 9, 10, *range(11, 11 + while_sound))[-2:] == [9 + while_sound, 10 + while_sound]
    assert counted(10, 9, 10, *range(11, 11 + while_sound))[1 : while_sound - 1] == [None] * (while_sound - 2)


def test_totals_fall_one_by_one() -> None:
    doubts = Doubts()
    doubts.checked(SOUND, 0.0)
    seen = doubts.checked(changed(SOUND, prefix_hits_total=9, prefill_seconds_total=9.9), 1.0)
    assert dict(seen.absent) == {
        "prefix_hits_total": "prefix_hits_total fell, and the engine did not begin anew",
        "prefill_seconds_total": "prefill_seconds_total fell, and the engine did not begin anew",
    }


def test_a_restart_lets_totals_fall() -> None:
    doubts = Doubts()
    doubts.checked(SOUND, 0.0)
    assert absent_in(doubts.checked(changed(SOUND, first_tokens_total=0, restarted=True), 1.0)) == set()
    assert absent_in(doubts.checked(changed(SOUND, first_tokens_total=1), 2.0)) == set()


def test_what_was_doubted_is_told_again_only_when_it_was_sound_for_a_while() -> None:
    doubts = Doubts()
    assert doubts.checked(changed(SOUND, kv_usage=2.0), 0.0).kv_usage is None
    assert doubts.checked(SOUND, SOUND_S - 0.5).kv_usage is None
    assert doubts.checked(changed(SOUND, kv_usage=2.0), SOUND_S).kv_usage is None
    for look in range(1, SOUND_LOOKS):
        # Looks that do not tell it do not show it sound.
        for reading in (SOUND, changed(SOUND, kv_usage=None, absent={"kv_usage": "gone"})):
            assert doubts.checked(reading, SOUND_S + 100 * look).kv_usage is None
    assert doubts.checked(SOUND, SOUND_S + 100 * SOUND_LOOKS).kv_usage == 0.5


def test_a_reason_of_the_adapter_stays() -> None:
    doubts = Doubts()
    doubts.checked(changed(SOUND, kv_usage=2.0), 0.0)
    seen = doubts.checked(changed(SOUND, kv_usage=None, absent={"kv_usage": "gone"}), 1.0)
    assert seen.absent["kv_usage"] == "gone"


def test_what_six_digits_may_round_does_not_add_up() -> None:
    """Each look a total is less by too little to be a fall; but it falls."""
    told = [10**6 - 9 * look for look in range(4)]
    assert counted(*told) == [*told[:2], None, None]
