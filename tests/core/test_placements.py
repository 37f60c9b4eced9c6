"""Prompts that other routers sent somewhere, and those of ours that they shall know of."""

import pytest

from extproc.core import promptcaches
from extproc.core.peershares import PromptPlaced
from extproc.core.promptcaches import ON_THE_WAY_SHARE, PUT_OFF_MAX, SENT_TOLD_BLOCKS_MIN, PromptCaches
from extproc.core.request import PROMPT_BLOCK_TOKENS
from extproc.core.settings import PrefixSettings
from extproc.core.snapshot import NodeLeft, NodeReported
from tests.core.fleet import NOW_S, POLICY, balancer, node_of, request, snapshot

CAPACITY = 100
A = snapshot("a", kv_block_size_tokens=PROMPT_BLOCK_TOKENS, kv_blocks_total=CAPACITY)


def chain(first: int, blocks: int = 40) -> tuple[int, ...]:
    return tuple(range(1000 * first, 1000 * first + blocks))


@pytest.fixture
def caches() -> PromptCaches:
    return PromptCaches(PrefixSettings())


def test_a_prompt_that_another_router_sent_draws_those_that_begin_alike() -> None:
    for computed in (False, True):
        fleet = balancer(snapshot("a"), snapshot("b"))
        for node_id in "ab":
            fleet.peer(PromptPlaced(node_id, chain(ord(node_id)), computed=computed), NOW_S)
        for node_id in "abab":
            asked = request(f"r{computed}{node_id}", 4000, prompt_blocks=chain(ord(node_id)))
            assert node_of(fleet.would_route(asked, POLICY, NOW_S)) == node_id


def test_prompts_at_nodes_that_are_not_known_are_of_no_use() -> None:
    fleet = balancer(snapshot("a"))
    assert fleet.peer(PromptPlaced("a", chain(1), computed=True), NOW_S)
    assert not fleet.peer(PromptPlaced("x", chain(1), computed=True), NOW_S)
    assert fleet._fleet.caches.match(chain(1)) == {"a": 40}
    fleet.observe(NodeReported(snapshot("x")), NOW_S)
    assert fleet._fleet.caches.match(chain(1)) == {"a": 40}
    fleet.observe(NodeLeft("a", "boot-1"), NOW_S)
    assert fleet._fleet.caches.match(chain(1)) == {}


def test_what_others_only_sent_pushes_out_nothing_that_was_computed() -> None:
    """Anybody can send long prompts, through any router, which engines refuse at once."""
    fleet = balancer(A)
    fleet.peer(PromptPlaced("a", chain(0), computed=True), NOW_S)
    for number in range(1, 1000):
        fleet.peer(PromptPlaced("a", chain(number), computed=False), NOW_S)
    caches = fleet._fleet.caches
    assert caches.match(chain(0)) == {"a": 40}
    assert caches.match(chain(999)) == {"a": CAPACITY // ON_THE_WAY_SHARE}
    assert [number for number in range(1, 1000) if caches.match(chain(number))] == [999]


def test_what_others_had_computed_is_bounded_by_the_cache() -> None:
    fleet = balancer(A)
    for number in range(4):
        fleet.peer(PromptPlaced("a", chain(number), computed=True), NOW_S)
    assert [len(fleet._fleet.caches.match(chain(number))) for number in range(4)] == [0, 1, 1, 1]


def test_nothing_is_kept_for_others_before_they_ask_nor_what_they_told_themselves() -> None:
    fleet = balancer(A)
    fleet.route(request("r1", 1000, prompt_blocks=chain(1)), POLICY, NOW_S)
    assert fleet.placed() == []
    fleet.route(request("r2", 1000, prompt_blocks=chain(2)), POLICY, NOW_S)
    fleet.peer(PromptPlaced("a", chain(3), computed=True), NOW_S)
    fleet.first_token("r2", NOW_S + 1)
    fleet.route(request("r3", 1000), POLICY, NOW_S + 1)
    assert fleet.placed() == [
        PromptPlaced("a", chain(2), computed=False),
        PromptPlaced("a", chain(2), computed=True),
    ], "and nothing of a prompt without blocks"
    assert fleet.placed() == []


@pytest.mark.parametrize(
    ("blocks", "told"), [(SENT_TOLD_BLOCKS_MIN - 1, [True]), (SENT_TOLD_BLOCKS_MIN, [False, True])]
)
def test_short_prompts_are_told_only_when_they_are_computed(
    caches: PromptCaches, blocks: int, told: list[bool]
) -> None:
    caches.take_placed()
    caches.sent(A, chain(1, blocks))
    caches.computed(A, chain(1, blocks))
    assert [one.computed for one in caches.take_placed()] == told


def test_a_request_that_another_node_serves_is_told_there() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"))
    fleet.placed()
    first = node_of(fleet.route(request("r", 1000, prompt_blocks=chain(1)), POLICY, NOW_S))
    other = "b" if first == "a" else "a"
    fleet.served("r", snapshot(other).host, NOW_S)
    assert [one.node_id for one in fleet.placed()] == [first, other]


def test_of_too_many_blocks_that_nobody_takes_the_oldest_go(
    caches: PromptCaches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promptcaches, "PLACED_BLOCKS_MAX", 100)
    caches.take_placed()
    for number in (1, 2):
        caches.sent(A, chain(number, 50))
    caches.computed(A, chain(3, 1))
    assert [one.blocks[0] for one in caches.take_placed()] == [2000, 3000]
    for number in (1, 2):
        caches.sent(A, chain(number, 50))
    assert [one.blocks[0] for one in caches.take_placed()] == [1000, 2000], "as many as may be"
    caches.sent(A, chain(1, 101))
    assert caches.take_placed() == []
    caches.sent(A, chain(1, 100))
    assert len(caches.take_placed()) == 1


def test_prompts_that_nobody_asks_for_do_not_pile_up(caches: PromptCaches) -> None:
    for number in range(PUT_OFF_MAX):
        caches.computed(A, chain(number, 1), tell=False)
    assert (len(caches._computed), len(caches._waiting)) == (0, PUT_OFF_MAX)
    for number in range(10):
        caches.computed(A, chain(PUT_OFF_MAX + number, 1), tell=False)
    assert (len(caches._computed), len(caches._waiting)) == (10, PUT_OFF_MAX)
    caches.settle()
    assert len(caches._computed) == CAPACITY
