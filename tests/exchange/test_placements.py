"""Which prompts others are told of, and how theirs are taken in."""

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.exchangesettings import ExchangeSettings
from extproc.core.peershares import PromptPlaced
from extproc.exchange import chains, taking, telling
from extproc.exchange.taking import PlacementsTaken
from extproc.exchange.telling import PlacementsTold
from extproc.ops.metrics import Metrics
from tests.core.fleet import balancer, snapshot
from tests.exchange.reading import read
from tests.waiting import until


def prompts(first: int, count: int, blocks: int = 100) -> list[PromptPlaced]:
    return [PromptPlaced("a", tuple(range(n * 1000, n * 1000 + blocks)), False) for n in range(first, first + count)]


def firsts(messages: list[bytes]) -> list[int]:
    """Which of `prompts` these are."""
    found = [read(message) for message in messages]
    return sorted(one.blocks[0] // 1000 for told in found if isinstance(told, tuple) for one in told[1])


def told_of(bytes_per_s: int) -> tuple[PlacementsTold, Metrics]:
    metrics = Metrics()
    settings = ExchangeSettings(placement_bytes_per_s=bytes_per_s)
    return PlacementsTold("r1", settings, metrics.exchange, 0.0), metrics


def test_over_the_budget_the_newest_are_told_and_the_others_counted() -> None:
    told, metrics = told_of(10_000)
    assert firsts(list(told.messages(prompts(0, 30), 0.0))) == list(range(18, 30))
    assert metrics.exchange.counts["dropped"] == {"placements_budget": 18}
    assert firsts(list(told.messages(prompts(30, 30), 0.5))) == list(range(54, 60)), "half a second's budget is there"
    assert firsts(list(told.messages([], 100.0))) == []
    assert firsts(list(told.messages(prompts(60, 30), 200.0))) == list(range(78, 90)), "no more than a second's is kept"


def test_bytes_on_the_way_stay_within_the_budget() -> None:
    told, _ = told_of(50_000)
    size = sum(len(one) for look in range(20) for one in told.messages(prompts(look * 50, 50), look / 2))
    assert size <= 50_000 * (10 + telling.BURST_S)
    assert size >= 50_000 * 9


def test_a_newcomer_hears_the_recent_ones_the_newest_first_within_the_budget() -> None:
    told, _ = told_of(200_000)
    for number in range(40):
        assert len(firsts(list(told.messages(prompts(number * 10, 10), number)))) == 10
    told.newcomer()
    first = firsts(list(told.messages([], 41.0)))
    assert first[-1] == 399
    assert 200 <= len(first) < 260, "a second's budget"
    heard = set(first)
    for look in range(10):
        heard |= set(firsts(list(told.messages([], 41.5 + look / 2))))
    assert heard == set(range(400))
    assert list(told.messages([], 60.0)) == []
    told.newcomer()
    assert 400 in firsts(list(told.messages(prompts(400, 1), 61.0))), "what is new comes first"


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.booleans()), max_size=6), st.booleans()
        ),
        max_size=6,
    )
)
def test_whatever_is_told_again_beside_the_new_all_of_it_is_read(looks: list[tuple[list[Any], bool]]) -> None:
    told, _ = told_of(200_000)
    heard: dict[tuple[str, tuple[int, ...]], bool] = {}
    for number, (placed, newcomer) in enumerate(looks):
        if newcomer:
            told.newcomer()
        for message in told.messages([PromptPlaced(node, (7,) * size, done) for node, size, done in placed], number):
            found = read(message)
            assert isinstance(found, tuple), found
            heard |= {(one.node_id, one.blocks): one.computed for one in found[1]}
    said = [one for placed, _ in looks for one in placed]
    assert heard.keys() == {(node, (7,) * size) for node, size, _ in said}


def test_what_is_kept_for_newcomers_is_bounded() -> None:
    told, _ = told_of(1024 * 1024 * 1024)
    for number in range(60):
        list(told.messages(prompts(number * 100, 100, 1000), number))
    assert telling.RECENT_BYTES_MAX - 9000 < told.recent_bytes <= telling.RECENT_BYTES_MAX


def taken_of(
    counts: Callable[[str], bool] = lambda _: True,
) -> tuple[PlacementsTaken, "asyncio.Task[None]", list[str], Metrics, Callable[[tuple[int, ...]], dict[str, int]]]:
    metrics, refused = Metrics(), list[str]()
    fleet = balancer(snapshot("a", kv_blocks_total=10**9))
    taken = PlacementsTaken(fleet, counts, refused.append, lambda: 1000.0, metrics.exchange)
    return taken, asyncio.create_task(taken.run()), refused, metrics, fleet._fleet.caches.match


async def test_what_others_sent_is_taken_in_with_turns_for_the_rest() -> None:
    taken, task, _, _, match = taken_of()
    turns = 0
    many = [tuple(range(n * 10**6, n * 10**6 + 500)) for n in range(200)]
    for message in chains.messages("r1", [chains.Placed("a", chains.bytes_of(one), True) for one in many]):
        taken.came(message)
    waiting = set(many)
    while waiting:
        await asyncio.sleep(0)
        turns += 1
        waiting -= {one for one in waiting if match(one) == {"a": 500}}
    assert turns >= 200 * 500 // taking.TAKEN_AT_ONCE_BLOCKS
    task.cancel()


async def test_what_strangers_say_and_what_is_wrong_is_not_taken() -> None:
    taken, task, refused, _, match = taken_of(lambda router: router == "known")
    for router in ("stranger", "known"):
        for message in chains.messages(router, [chains.Placed("a", chains.bytes_of((len(router),)), True)]):
            taken.came(message)
    taken.came(b"\xff")
    await until(lambda: refused)
    assert refused == ["message: wanted a Placements, got 1 bytes of something else"]
    assert (match((5,)), match((8,))) == ({"a": 1}, {})
    task.cancel()


async def test_messages_that_come_faster_than_they_are_read_are_bounded() -> None:
    taken, task, _, metrics, _ = taken_of()
    for _ in range(20):
        taken.came(bytes(256 * 1024))
    assert taken.waiting_bytes == taking.WAITING_BYTES_MAX
    assert metrics.exchange.counts["dropped"] == {"placements_late": 4}
    task.cancel()
