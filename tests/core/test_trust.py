"""How far the router trusts its own idea of a node's prefix cache: `cache_trust`."""

from itertools import pairwise

import pytest

from extproc.core.balancer import Balancer
from extproc.core.cachetrust import TRUST_MIN, TRUST_WINDOW_TOKENS
from extproc.core.learned import LearnedRates
from extproc.core.request import TokenCount
from extproc.core.settings import ExpectedRates
from extproc.core.snapshot import NodeReported
from tests.core.fleet import NOW_S, POLICY, balancer, request, snapshot

BLOCKS = tuple(range(10))


class Cache:
    """A node that finds a share of what the router expects in its cache."""

    def __init__(self) -> None:
        self.learned = LearnedRates(ExpectedRates())
        self.hits_total = 0
        self.look()

    def look(self, expected: int = 0, found: float = 0) -> float:
        self.learned.expected_hits("a", expected)
        self.hits_total += int(found)
        return self.learned.observe(snapshot("a", prefix_hits_total=self.hits_total), 1.0).cache_trust


def test_trust_falls_when_hits_stay_away_and_returns_with_them() -> None:
    cache = Cache()
    falling = [cache.look(5000, 0) for _ in range(200)]
    assert falling[0] == 1.0, "a few tokens prove nothing"
    assert all(later < before + 0.05 for before, later in pairwise(falling))
    assert falling[-1] < 0.1
    rising = [cache.look(5000, 5000) for _ in range(400)]
    assert all(later > before - 0.05 for before, later in pairwise(rising))
    assert rising[-1] == 1.0


@pytest.mark.parametrize(("share", "trust"), [(0.9, 1.0), (0.55, 1.0), (0.3, 0.3), (0.1, 0.1)])
def test_trust_is_the_share_of_hits_and_whole_where_most_come(share: float, trust: float) -> None:
    """Others' hits and the moment of counting blur it anyway."""
    cache = Cache()
    for _ in range(1000):
        found = cache.look(5000, 5000 * share)
    assert found == pytest.approx(trust, abs=0.05)
    assert share > TRUST_MIN or found < TRUST_MIN


def test_hits_of_others_do_not_buy_trust_for_ever() -> None:
    """However many came before: once ours stay away, a few windows of expected tokens say so."""
    cache = Cache()
    for _ in range(1000):
        assert cache.look(0, 10**6) == 1.0
    assert min(cache.look(10_000, 0) for _ in range(round(4 * TRUST_WINDOW_TOKENS / 10_000))) < TRUST_MIN


def test_a_counter_that_falls_begins_anew() -> None:
    cache = Cache()
    for _ in range(100):
        cache.look(10_000, 0)
    cache.hits_total = -5
    assert cache.look() == 1.0


def test_a_node_that_tells_no_hits_is_trusted() -> None:
    learned = LearnedRates(ExpectedRates())
    learned.observe(snapshot("a"), 1.0)
    learned.expected_hits("a", 10**9)
    learned.expected_hits("never seen", 10**9)
    assert learned.observe(snapshot("a"), 2.0).cache_trust == learned.of("never seen").cache_trust == 1.0


def talk(fleet: Balancer, request_id: str) -> int:
    """One round of a chat of 1050 tokens, 100 of them in each of its ten blocks; what the node has to compute."""
    decision = fleet.route(request(request_id, 1050, prompt_blocks=BLOCKS), POLICY, NOW_S)
    fleet.finish(request_id, NOW_S)
    assert decision.uncached_tokens is not None
    return decision.uncached_tokens


def test_a_request_counts_by_what_the_node_really_caches() -> None:
    """Hits that were expected are counted when a request is over, so that the engine has had the time to find them."""
    fleet = balancer(snapshot("a", prefix_hits_total=0))
    assert [talk(fleet, "r1"), talk(fleet, "r2")] == [1050, 50]
    for number in range(3, 200):
        talk(fleet, f"r{number}")
    fleet.observe(NodeReported(snapshot("a", sequence=2, prefix_hits_total=0)), NOW_S)
    (view,) = fleet.views()
    trust = view.learned.cache_trust
    assert trust == pytest.approx(20_000 / (20_000 + 198 * 1000))
    distrusted = 1050 - int(1000 * trust)
    assert talk(fleet, "r200") == distrusted
    opened = request("r201", 1050, prompt_blocks=BLOCKS)
    fleet.route(opened, POLICY, NOW_S)
    (view,) = fleet.views()
    assert view.own.prefill_tokens == distrusted
    fleet.recount(request("r201", 2100))
    (view,) = fleet.views()
    assert view.own.prefill_tokens == 2100 - int(2000 * trust), "what is cached has twice the tokens, too"


@pytest.mark.parametrize(("counted", "to_compute"), [(2100, 100), (525, 25), (21, 1), (1, 1)])
def test_a_count_that_comes_late_changes_what_is_cached_as_well(counted: int, to_compute: int) -> None:
    fleet = balancer(snapshot("a"))
    talk(fleet, "r1")
    fleet.route(request("r2", 1050, prompt_blocks=BLOCKS), POLICY, NOW_S)
    fleet.recount(request("r2", prompt=TokenCount(counted, exact=True)))
    (view,) = fleet.views()
    assert view.own.prefill_tokens == to_compute


def test_requests_that_were_never_looked_up_cost_no_trust() -> None:
    """As those that an engine refuses at once, and those whose clients hang up while they wait."""
    fleet = balancer(snapshot("a", prefix_hits_total=0, prefix_queries_total=0))
    for number in range(200):
        talk(fleet, f"r{number}")
    fleet.observe(NodeReported(snapshot("a", sequence=2, prefix_hits_total=0, prefix_queries_total=5000)), NOW_S)
    (view,) = fleet.views()
    assert view.learned.cache_trust == 1.0
    for number in range(200, 400):
        talk(fleet, f"r{number}")
    more = snapshot("a", sequence=3, prefix_hits_total=0, prefix_queries_total=205_000)
    fleet.observe(NodeReported(more), NOW_S)
    (view,) = fleet.views()
    assert view.learned.cache_trust < 0.15
