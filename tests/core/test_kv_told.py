"""Decisions by what nodes tell of their caches, beside those that are estimated."""

from typing import Any

import pytest

from extproc.core.balancer import Balancer
from extproc.core.kvcoming import REPORTS_UNTIL_TOLD
from extproc.core.request import InferenceRequest
from extproc.core.settings import BalancerSettings, ExpectedRates, PrefixSettings
from extproc.core.snapshot import Applied, KvBlocksTold, NodeLeft, NodeReported, NotAllowed
from extproc.kvchain import token_blocks_of
from tests.core.fleet import NOW_S, POLICY, balancer, node_of, request, snapshot

TOKENS = 1000
CHAIN = token_blocks_of(range(TOKENS))
TEXT = tuple(range(20))
RATE = 1000


def fleet_of(names: str = "ab", *told: str, kv_block_size: int | None = 16, **prefix: Any) -> Balancer:
    settings = BalancerSettings(rates=ExpectedRates(prefill_tokens_per_s=RATE), prefix=PrefixSettings(**prefix))
    fleet = balancer(*(snapshot(name, kv_block_size_tokens=kv_block_size) for name in names), settings=settings)
    for name in told:
        tell(fleet, name)
    return fleet


def tell(fleet: Balancer, name: str, *stored: int, removed: tuple[int, ...] = (), everything: bool = False) -> Any:
    numbers = stored or (() if removed or everything else (1,))
    return fleet.observe(KvBlocksTold(name, "boot-1", everything, numbers, removed), NOW_S)


def asked(request_id: str = "r", tokens: int = TOKENS, **changes: Any) -> InferenceRequest:
    values: dict[str, Any] = {"prompt_blocks": TEXT, "token_blocks": CHAIN, "output_tokens_max": 0}
    return request(request_id, tokens, **values | changes)


def cached(fleet: Balancer, one: InferenceRequest) -> dict[str, int]:
    return fleet._fleet.cached(one).tokens


def report(fleet: Balancer, name: str, sequence: int) -> None:
    fleet.observe(NodeReported(snapshot(name, sequence=sequence)), NOW_S + sequence / 1000)


def test_what_a_node_tells_counts_and_not_what_was_sent_there() -> None:
    fleet = fleet_of("ab", "a")
    for name in "ab":
        fleet._fleet.caches.computed(snapshot(name), TEXT)
    estimated = cached(fleet, asked())["b"]
    assert estimated > 900
    assert cached(fleet, asked()) == {"b": estimated}
    tell(fleet, "a", *CHAIN[:7])
    assert cached(fleet, asked()) == {"a": 112, "b": estimated}
    assert cached(fleet, asked(token_blocks=())) == {"a": estimated, "b": estimated}
    tell(fleet, "a", removed=CHAIN[3:4])
    assert cached(fleet, asked())["a"] == 48


def test_a_node_that_does_not_tell_any_more_is_estimated() -> None:
    fleet = fleet_of("a", "a")
    fleet._fleet.caches.computed(snapshot("a"), TEXT)
    assert cached(fleet, asked()) == {}
    assert tell(fleet, "a", everything=True) == Applied()
    assert cached(fleet, asked())["a"] > 900
    assert fleet.kv_blocks_told("a") is None


@pytest.mark.parametrize(
    ("block_size", "tokens", "there", "found"),
    [
        (16, 160, 10, 144),
        (16, 161, 10, 160),
        (16, 161, 9, 144),
        (None, 161, 10, 160),
        (1, 161, 10, 160),
        (24, 161, 10, 160),
        (32, 161, 10, 160),
        (32, 160, 10, 128),
        (32, 161, 9, 128),
        (784, 1000, 49, 784),
        (784, 1000, 48, 0),
        (16, 1, 10, 0),
        (16, 0, 10, 0),
    ],
)
def test_engines_find_whole_blocks_of_theirs_and_never_the_whole_prompt(
    block_size: int | None, tokens: int, there: int, found: int
) -> None:
    fleet = fleet_of("a", "a", kv_block_size=block_size)
    tell(fleet, "a", *CHAIN[:there])
    assert cached(fleet, asked(tokens=tokens)).get("a", 0) == found


def test_the_prompt_goes_where_it_is_and_its_tokens_count_as_they_are() -> None:
    fleet = fleet_of("abc", "a", "b", "c")
    tell(fleet, "b", *CHAIN[:40])
    decision = fleet.route(asked(), POLICY, NOW_S)
    assert (node_of(decision), decision.uncached_tokens) == ("b", TOKENS - 640)
    assert fleet._fleet.ledger.load("b").prefill_tokens == TOKENS - 640


def test_estimates_that_failed_say_nothing_of_what_is_told() -> None:
    fleet = fleet_of("a", "a")
    tell(fleet, "a", *CHAIN[:40])
    learned = fleet._fleet.learned
    report(fleet, "a", 2)
    fleet.observe(NodeReported(snapshot("a", sequence=3, prefix_hits_total=0)), NOW_S)
    learned.expected_hits("a", 10**6)
    fleet.observe(NodeReported(snapshot("a", sequence=4, prefix_hits_total=0)), NOW_S)
    assert learned.of("a").cache_trust < 0.1
    assert fleet.would_route(asked(), POLICY, NOW_S).uncached_tokens == TOKENS - 640
    fleet.route(asked(), POLICY, NOW_S)
    assert fleet._fleet.ledger.load("a").prefill_tokens == TOKENS - 640


def served(fleet: Balancer, first: int, count: int, *, late: bool = False) -> None:
    """So many requests whose tokens are known at once, or only once they are sent."""
    for number in range(first, first + count):
        one = asked(f"r{number}")
        fleet.route(asked(f"r{number}", token_blocks=()) if late else one, POLICY, NOW_S)
        if late:
            fleet.recount(one)
        fleet.finish(one.request_id, NOW_S)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("hits", "trust"), [(1.0, 1.0), (0.6, 1.0), (0.25, 0.3), (0.0, 0.07)])
def test_what_is_told_counts_as_far_as_the_nodes_own_hits_do_not_contradict_it(
    hits: float, trust: float, late: bool
) -> None:
    fleet = fleet_of("a", "a")
    tell(fleet, "a", *CHAIN[:40])
    fleet.observe(NodeReported(snapshot("a", sequence=2, prefix_hits_total=0, kv_block_size_tokens=16)), NOW_S)
    served(fleet, 0, 400, late=late)
    more = snapshot("a", sequence=3, prefix_hits_total=int(hits * 400 * 640), kv_block_size_tokens=16)
    fleet.observe(NodeReported(more), NOW_S)
    found = fleet._fleet.learned.of("a").told_trust
    assert found == pytest.approx(trust, abs=0.01)
    uncached = TOKENS - int(640 * found)
    assert fleet.would_route(asked(), POLICY, NOW_S).uncached_tokens == uncached
    for one in ("at once", "late"):
        fleet.route(asked(one, token_blocks=CHAIN if one == "at once" else ()), POLICY, NOW_S)
        if one == "late":
            fleet.recount(asked(one))
        assert fleet._fleet.ledger.load("a").prefill_tokens == uncached
        fleet.finish(one, NOW_S)


def test_requests_that_were_sent_by_estimates_cost_a_node_that_tells_no_trust() -> None:
    fleet = fleet_of("a")
    fleet.observe(NodeReported(snapshot("a", sequence=2, prefix_hits_total=0)), NOW_S)
    fleet._fleet.caches.computed(snapshot("a"), TEXT)
    served(fleet, 0, 200)
    tell(fleet, "a", *CHAIN[:40])
    fleet.observe(NodeReported(snapshot("a", sequence=3, prefix_hits_total=0)), NOW_S)
    learned = fleet._fleet.learned.of("a")
    assert learned.cache_trust < 0.2
    assert learned.told_trust == 1.0


def test_a_node_that_claims_everybodys_blocks_is_seen_through() -> None:
    fleet = fleet_of("ab", "a", "b")
    for name in "ab":
        fleet.observe(NodeReported(snapshot(name, sequence=2, prefix_hits_total=0, kv_block_size_tokens=16)), NOW_S)
        tell(fleet, name, *CHAIN[: 60 if name == "a" else 40])
    assert node_of(fleet.would_route(asked(), POLICY, NOW_S)) == "a"
    served(fleet, 0, 200)
    for name in "ab":
        sample = snapshot(name, sequence=3, prefix_hits_total=0, kv_block_size_tokens=16)
        fleet.observe(NodeReported(sample), NOW_S)
    assert node_of(fleet.would_route(asked(), POLICY, NOW_S)) == "b"


def test_a_request_that_went_elsewhere_proves_nothing_of_either_node() -> None:
    fleet = fleet_of("ab", "a", "b")
    tell(fleet, "a", *CHAIN[:40])
    for name in "ab":
        fleet.observe(NodeReported(snapshot(name, sequence=2, prefix_hits_total=0)), NOW_S)
    for number in range(200):
        fleet.route(asked(f"r{number}"), POLICY, NOW_S)
        fleet.served(f"r{number}", snapshot("b").host, NOW_S)
        fleet.finish(f"r{number}", NOW_S)
    for name in "ab":
        fleet.observe(NodeReported(snapshot(name, sequence=3, prefix_hits_total=0)), NOW_S)
        assert fleet._fleet.learned.of(name).told_trust == 1.0


def test_others_that_begin_alike_follow_a_prompt_until_the_node_tells_it() -> None:
    fleet = fleet_of("abcd", "a", "b", "c", "d")
    home = node_of(fleet.route(asked("r1"), POLICY, NOW_S))
    assert cached(fleet, asked()) == {home: 992}
    fleet.first_token("r1", NOW_S + 1)
    fleet.finish("r1", NOW_S + 2)
    for sequence in range(2, 2 + REPORTS_UNTIL_TOLD - 1):
        report(fleet, home, sequence)
    assert cached(fleet, asked()) == {home: 992}
    tell(fleet, home, *CHAIN[:10])
    report(fleet, home, 9)
    assert cached(fleet, asked()) == {home: 160}


@pytest.mark.parametrize("ending", ["finish", "first token", "lost", "restart", "goodbye", "moved"])
def test_a_prompt_that_was_not_computed_is_on_its_way_no_more(ending: str) -> None:
    fleet = fleet_of("ab", "a", "b")
    home = node_of(fleet.route(asked("r1"), POLICY, NOW_S))
    other = "b" if home == "a" else "a"
    match ending:
        case "finish":
            fleet.finish("r1", NOW_S + 0.01)
        case "first token":
            fleet.first_token("r1", NOW_S + 0.01)
            fleet.finish("r1", NOW_S + 0.02)
        case "lost":
            fleet.leave("r1", NOW_S)
            fleet.tick(NOW_S + 601)
        case "restart":
            fleet.observe(NodeReported(snapshot(home, boot_id="boot-2")), NOW_S + 1)
        case "goodbye":
            fleet.observe(NodeLeft(home, "boot-1"), NOW_S + 1)
        case _:
            fleet.served("r1", snapshot(other).host, NOW_S + 0.1)
    assert cached(fleet, asked()) == ({other: 992} if ending == "moved" else {})
    fleet.finish("r1", NOW_S + 700)
    assert (fleet._fleet.caches._coming._blocks > 0) == (ending == "moved")


def test_a_request_that_is_counted_later_is_put_right_by_what_its_node_tells() -> None:
    fleet = fleet_of("a", "a")
    tell(fleet, "a", *CHAIN[:20])
    fleet.route(asked("r1", tokens=700, token_blocks=()), POLICY, NOW_S)
    assert fleet._fleet.ledger.load("a").prefill_tokens == 700
    fleet.recount(asked("r1"))
    assert fleet._fleet.ledger.load("a").prefill_tokens == TOKENS - 320
    assert cached(fleet, asked()) == {"a": 992}, "it is on its way there"


def test_another_model_has_other_tokens() -> None:
    assert asked().for_model("other").token_blocks == ()


@pytest.mark.parametrize(("name", "boot_id"), [("a", "boot-2"), ("z", "boot-1")])
def test_only_members_tell_and_only_of_the_boot_that_is_known(name: str, boot_id: str) -> None:
    fleet = fleet_of("a")
    refused = fleet.observe(KvBlocksTold(name, boot_id, everything=True, stored=(1,)), NOW_S)
    assert isinstance(refused, NotAllowed)
    assert refused.reason.startswith("kv_blocks: wanted those of a member")
    assert fleet.kv_blocks_told("a") is None


def test_over_the_bounds_a_node_is_estimated_and_the_others_go_on() -> None:
    fleet = fleet_of("ab", "b", kv_blocks_node_max=5)
    assert tell(fleet, "a", *CHAIN[:5]) == Applied()
    fleet.route(asked("r1"), POLICY, NOW_S)
    assert isinstance(tell(fleet, "a", *CHAIN[5:6]), NotAllowed)
    assert (fleet.kv_blocks_told("a"), fleet.kv_blocks_told("b")) == (None, 1)
    assert isinstance(tell(fleet_of("a", kv_blocks_node_max=0), "a"), NotAllowed)
    assert isinstance(tell(fleet_of("a", kv_index_bytes_max=0), "a"), NotAllowed)
    fleet.finish("r1", NOW_S + 5)


def test_without_told_blocks_nothing_is_kept_for_them() -> None:
    fleet = fleet_of("ab")
    fleet.route(asked("r1"), POLICY, NOW_S)
    fleet.first_token("r1", NOW_S + 1)
    fleet.finish("r1", NOW_S + 1)
    caches = fleet._fleet.caches
    caches.settle()
    assert (len(caches.kv), len(caches._coming), caches._kv_waiting) == (0, 0, type(caches._kv_waiting)())
