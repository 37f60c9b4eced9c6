"""Prompts that were computed at a node, and those on their way to it."""

import pytest

from extproc.core.balancer import Balancer
from extproc.core.fleetstate import BOOT_S_MIN, COMPUTED_FASTER_MAX
from extproc.core.promptcaches import ON_THE_WAY_SHARE, PromptCaches
from extproc.core.request import PROMPT_BLOCK_TOKENS
from extproc.core.settings import BalancerSettings, ExpectedRates, PrefixSettings
from extproc.core.snapshot import NodeReported
from tests.core.fleet import NOW_S, POLICY, balancer, node_of, request, snapshot

BLOCKS = 40
CAPACITY = 100
"""Blocks that a node's cache holds."""


def chain(first: int, blocks: int = BLOCKS) -> tuple[int, ...]:
    return tuple(range(1000 * first, 1000 * first + blocks))


@pytest.fixture
def caches() -> PromptCaches:
    return PromptCaches(PrefixSettings())


A = snapshot("a", kv_block_size_tokens=PROMPT_BLOCK_TOKENS, kv_blocks_total=CAPACITY)


def test_a_prompt_counts_from_the_moment_of_its_sending(caches: PromptCaches) -> None:
    caches.sent(A, chain(1, 20))
    assert caches.match(chain(1)) == {"a": 20}
    caches.computed(A, chain(1, 10))
    assert caches.match(chain(1)) == {"a": 20}, "whichever is longer"
    caches.computed(A, chain(1, 30))
    assert caches.match(chain(1)) == {"a": 30}


def test_what_was_never_computed_pushes_out_nothing_that_was(caches: PromptCaches) -> None:
    caches.computed(A, chain(0))
    for number in range(1, 1000):
        caches.sent(A, chain(number))
    assert caches.match(chain(0)) == {"a": BLOCKS}
    on_the_way = [number for number in range(1, 1000) if caches.match(chain(number))]
    assert on_the_way == [999], "a quarter of a cache holds no two"
    assert caches.match(chain(999)) == {"a": CAPACITY // ON_THE_WAY_SHARE}


def test_what_was_computed_pushes_out_the_oldest(caches: PromptCaches) -> None:
    for number in range(4):
        caches.computed(A, chain(number))
    assert [len(caches.match(chain(number))) for number in range(4)] == [0, 1, 1, 1]


def test_a_node_that_is_forgotten_has_nothing(caches: PromptCaches) -> None:
    caches.sent(A, chain(1))
    caches.computed(A, chain(2))
    caches.forget("a")
    assert caches.match(chain(1)) == caches.match(chain(2)) == {}


RATE = 1000
TOKENS = 4000
SOONEST_S = TOKENS / RATE / COMPUTED_FASTER_MAX


def fleet_of(names: str) -> Balancer:
    settings = BalancerSettings(rates=ExpectedRates(prefill_tokens_per_s=RATE))
    return balancer(*(snapshot(name) for name in names), settings=settings)


def ask(fleet: Balancer, request_id: str, first: int, at_s: float) -> tuple[str, int | None]:
    """A prompt of 40 blocks of about 100 tokens: who gets it, and what it has to compute."""
    blocks = chain(first)
    decision = fleet.route(request(request_id, TOKENS, prompt_blocks=blocks, output_tokens_max=0), POLICY, at_s)
    return node_of(decision), decision.uncached_tokens


@pytest.mark.parametrize("told", ["its end", "its first token", "its first token, then that it is left"])
@pytest.mark.parametrize(("took_s", "cached"), [(SOONEST_S, True), (SOONEST_S * 0.99, False)])
def test_a_prompt_is_computed_if_it_took_as_long_as_that_takes(told: str, took_s: float, cached: bool) -> None:
    """Else it was refused, or its client hung up: it is in no cache, and pushes out nothing."""
    fleet = fleet_of("a")
    ask(fleet, "r", 1, NOW_S)
    if told == "its end":
        fleet.finish("r", NOW_S + took_s)
    else:
        fleet.first_token("r", NOW_S + took_s)
    if told.endswith("left"):
        fleet.leave("r", NOW_S + took_s)
    fleet.settle()
    assert fleet._fleet.caches._computed.match(chain(1)) == ({"a": BLOCKS} if cached else {})


def test_what_an_engine_computed_before_it_began_anew_is_in_no_cache() -> None:
    fleet = fleet_of("a")
    ask(fleet, "r", 1, NOW_S)
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), NOW_S + BOOT_S_MIN)
    fleet.finish("r", NOW_S + 9)
    assert ask(fleet, "next", 1, NOW_S + 9) == ("a", TOKENS)


def test_requests_that_are_refused_at_once_leave_affinity_as_it_was() -> None:
    """As a client may send, with as many answers as no engine makes."""
    fleet = fleet_of("ab")
    home, _ = ask(fleet, "first", 0, NOW_S)
    fleet.finish("first", NOW_S + 2)
    for number in range(1, 500):
        ask(fleet, f"r{number}", number, NOW_S + 2)
        fleet.finish(f"r{number}", NOW_S + 2.01)
    node, uncached = ask(fleet, "next", 0, NOW_S + 3)
    assert node == home
    assert uncached is not None
    assert uncached < TOKENS / BLOCKS


def test_others_that_begin_alike_follow_a_prompt_before_its_end() -> None:
    """A second before it is computed, when waiting for it takes less than doing it once more."""
    fleet = fleet_of("abcd")
    home, _ = ask(fleet, "first", 0, NOW_S)
    assert {ask(fleet, f"r{number}", 0, NOW_S + 3)[0] for number in range(5)} == {home}
