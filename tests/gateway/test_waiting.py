"""When it is looked whether who waits may go, how often, and what becomes of those who wait."""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator

import pytest

from extproc.core.balancer import ADMITTED_AT_ONCE_MAX
from extproc.core.decision import Chosen, Decision, Refused
from extproc.core.policy import RoutingPolicy
from extproc.gateway.waiting import LOOKS_SHARE_MAX, WaitingRequests
from tests.core.fleet import request
from tests.gateway.gate import SHORT_MS, Fleet, Gate, turn
from tests.waiting import until


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate()
    yield gate
    for task in gate.tasks.values():
        task.cancel()
    await asyncio.gather(*gate.tasks.values(), return_exceptions=True)
    assert len(gate.waiting) == 0
    assert not any(map(any, gate.fleet.waiting.values()))


async def test_a_report_of_room_lets_who_waits_go(gate: Gate) -> None:
    await gate.come("r1", "r2")
    gate.fleet.report()
    for request_id in ("r1", "r2"):
        decision = await gate.decided(request_id)
        assert decision.request_id == request_id
        assert isinstance(decision.outcome, Chosen)
    assert gate.fleet.next_deadline_s is None


async def test_while_nothing_happens_nobody_looks(gate: Gate) -> None:
    await gate.come("r1")
    loop = asyncio.get_running_loop()
    until_s = loop.time() + 0.1
    await until(lambda: loop.time() > until_s)
    assert gate.fleet.looks == 0


async def test_where_nobody_waits_nothing_that_happens_is_looked_at(gate: Gate) -> None:
    gate.fleet.report()
    gate.fleet.route(request("r1"), RoutingPolicy(), time.monotonic())
    gate.fleet.finish("r1", time.monotonic())
    await turn()
    assert gate.fleet.looks == 0


async def test_several_words_are_one_look(gate: Gate) -> None:
    await gate.come("r1")
    for _ in range(100):
        gate.fleet.report(requests_waiting=100)
    await until(lambda: gate.fleet.looks)
    await turn()
    assert gate.fleet.looks == 1


async def test_looks_in_vain_take_a_tenth_of_the_time_however_much_happens(gate: Gate) -> None:
    await gate.come("r1")
    gate.fleet.takes_s = 0.004
    began_s = time.perf_counter()
    while gate.fleet.looks < 8:
        gate.fleet.report(requests_waiting=100)
        await asyncio.sleep(0)
    passed_s = time.perf_counter() - began_s
    before_the_last_s = gate.fleet.took_s * 7 / 8
    assert passed_s > before_the_last_s / LOOKS_SHARE_MAX * 0.8


async def test_a_deadline_waits_for_the_next_look_after_one_in_vain(gate: Gate) -> None:
    gate.fleet.takes_s = 0.02
    await gate.come("long")
    gate.fleet.report(requests_waiting=100)
    await until(lambda: gate.fleet.looks)  # in vain: now it rests
    looked_s = time.perf_counter()
    await gate.come(*map(str, range(20)), priority="short")
    for number in range(20):
        assert isinstance((await gate.decided(str(number))).outcome, Refused)
    assert time.perf_counter() - looked_s > 9 * 0.02 * 0.8
    assert gate.fleet.looks <= 4


async def test_looks_that_let_somebody_go_are_not_held_back(gate: Gate) -> None:
    await gate.come(*map(str, range(2 * ADMITTED_AT_ONCE_MAX + 1)))
    gate.fleet.takes_s = 0.2
    gate.fleet.report()
    began_s = time.perf_counter()
    for request_id in gate.tasks:
        await gate.decided(request_id)
    assert gate.fleet.looks == 3
    assert time.perf_counter() - began_s < 9 * 0.2


async def test_after_one_that_let_all_go_the_next_look_is_at_once(gate: Gate) -> None:
    await gate.come("r1")
    gate.fleet.takes_s = 0.1
    gate.fleet.report()
    await gate.decided("r1")
    gate.fleet.report(requests_waiting=100)
    await gate.come("r2")
    gate.fleet.report()
    began_s = time.perf_counter()
    await gate.decided("r2")
    assert time.perf_counter() - began_s < 9 * 0.1


async def test_its_time_up_a_request_is_turned_away_and_others_wait_on(gate: Gate) -> None:
    await gate.come("r1", "r2")
    await gate.come("r3", priority="short")
    began_s = time.monotonic()
    decision = await gate.decided("r3")
    assert isinstance(decision.outcome, Refused)
    assert decision.queued_s >= SHORT_MS / 1000
    assert time.monotonic() - began_s < 5
    await turn()
    assert len(gate.waiting) == 2
    assert gate.fleet.looks <= 4, "the time that was up, and what that changed"


async def test_a_deadline_that_is_nearer_than_the_first_ones_is_kept(gate: Gate) -> None:
    await gate.come("patient")
    await gate.come("short", priority="short")
    assert isinstance((await gate.decided("short")).outcome, Refused)


async def test_a_client_that_goes_leaves_no_future_and_takes_no_room(gate: Gate) -> None:
    await gate.come(*map(str, range(10)))
    for number in range(0, 10, 2):
        gate.tasks[str(number)].cancel()
    await turn()
    assert len(gate.waiting) == 5
    assert gate.fleet.waiting["patient"][0] == 5
    gate.fleet.report()
    for number in range(1, 10, 2):
        assert isinstance((await gate.decided(str(number))).outcome, Chosen)
    await turn()
    assert gate.fleet.requests_open == 0


async def test_a_client_that_goes_between_its_admission_and_the_news_leaves_nothing(gate: Gate) -> None:
    await gate.come("r1")
    gate.fleet.report()
    await until(lambda: gate.fleet.requests_open or gate.tasks["r1"].done())
    gate.tasks["r1"].cancel()
    await asyncio.gather(gate.tasks["r1"], return_exceptions=True)
    assert gate.fleet.requests_open == 0


async def test_an_error_while_looking_releases_all_who_wait_with_it(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    await gate.come("r1", "r2", "r3")
    gate.fleet.fails = True
    gate.fleet.report(requests_waiting=100)
    gate.tasks["r3"].cancel()
    for request_id in ("r1", "r2"):
        with pytest.raises(RuntimeError, match="broken for the test"):
            await gate.decided(request_id)
    assert 1 <= gate.faults <= 2, "the first who goes away is a reason to look"
    assert len(gate.waiting) == 0
    gate.fleet.fails = False
    await gate.come("r4")
    gate.fleet.report()
    assert isinstance((await gate.decided("r4")).outcome, Chosen), "it is as if nothing had been"
    gate.tasks.clear()
    gc.collect()
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


async def test_an_error_that_lasts_keeps_the_loop_no_busier_than_looks_may(gate: Gate) -> None:
    gate.fleet.fails = True
    await gate.come("r1", priority="short")
    with pytest.raises(RuntimeError):
        await gate.decided("r1")
    looks = gate.fleet.looks
    await turn(100)
    assert gate.fleet.looks - looks <= 2


async def test_a_drain_turns_away_all_who_wait_and_those_who_come_after(gate: Gate) -> None:
    await gate.come("r1", "r2")
    gate.waiting.drain()
    for request_id in ("r1", "r2"):
        assert isinstance((await gate.decided(request_id)).outcome, Refused)
    await gate.come("r3")
    await gate.come("r4")
    for request_id in ("r3", "r4"):
        assert isinstance((await gate.decided(request_id)).outcome, Refused)
    assert gate.fleet.next_deadline_s is None


async def test_a_drain_that_fails_releases_them_too(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: float) -> list[Decision]:
        msg = "broken for the test"
        raise RuntimeError(msg)

    await gate.come("r1")
    monkeypatch.setattr(gate.fleet, "drain", broken)
    gate.waiting.drain()
    with pytest.raises(RuntimeError, match="broken"):
        await gate.decided("r1")
    assert gate.faults == 1


async def test_what_is_decided_while_envoy_is_asked_for_patience_is_not_lost() -> None:
    fleet = Fleet()
    waiting = WaitingRequests(fleet, time.monotonic, lambda: None)
    fleet.queue("r1")

    async def meanwhile() -> None:
        fleet.report()
        await until(lambda: fleet.looks > 0)

    decision = await waiting.decision("r1", meanwhile())
    assert isinstance(decision.outcome, Chosen)
    fleet.report(requests_waiting=100)
    fleet.queue("r2")

    async def ends() -> None:
        waiting.drain()

    assert isinstance((await waiting.decision("r2", ends())).outcome, Refused)
    assert len(waiting) == 0
