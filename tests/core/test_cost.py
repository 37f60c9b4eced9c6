"""Each strategy by its formula. `load-score` has a file of its own."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.cost import (
    STRATEGIES,
    least_added_delay,
    least_inflight,
    lmetric,
    power_of_two,
    random,
    round_robin,
)
from extproc.core.policy import RoutingPolicy
from extproc.core.request import Endpoint
from extproc.core.router import Known, decide
from extproc.core.snapshot import Learned, NodeView, OwnLoad
from tests.core.fleet import NOW_S, POLICY, SETTINGS, prospects, request, view


def node(node_id: str = "a", running: int = 0, ahead: int = 0) -> NodeView:
    """A node with so many sequences in flight, and so many prompt tokens that have no first token yet."""
    return view(node_id, own=OwnLoad(prefill_tokens=ahead), requests_running=running)


# Two nodes of the same speed: one decodes 40 sequences and has no prefill, one has 8000 prompt tokens ahead.
DECODING, PREFILLING = node("decoding", running=40), node("prefilling", running=2, ahead=8000)


@pytest.mark.parametrize(
    ("ahead", "uncached", "running", "rate", "weight", "seconds"),
    [
        (0, 1, 0, 1.0, 2.0, 1.0),
        (0, 1000, 0, 1000.0, 2.0, 1.0),
        (0, 1000, 3, 1000.0, 2.0, 4.0),
        (500, 1000, 3, 1000.0, 2.0, 5.0),
        (500, 1000, 3, 2000.0, 2.0, 2.5),
        (500, 1000, 3, 1000.0, 1.0, 4.5),
        (500, 1000, 3, 1000.0, 0.0, 4.0),
        (30_000, 60, 40, 8000.0, 2.0, (60_000 + 60 * 41) / 8000),
    ],
)
def test_least_added_delay_is_the_wait_ahead_by_its_weight_and_the_own_prefill_by_all_whom_it_delays(
    ahead: int, uncached: int, running: int, rate: float, weight: float, seconds: float
) -> None:
    asked = prospects([node("a", running, ahead)], [uncached], [rate], first_token_weight=weight)
    assert least_added_delay(asked) == pytest.approx([seconds])


@pytest.mark.parametrize(
    ("output", "weight", "seconds"),
    [
        (0, 2.0, 2 * 0.5 + 0.1 * 4),
        (200, 0.0, 2 * 0.5 + 0.1 * 4),
        (200, 1.0, 2 * 0.5 + (0.1 + 0.2) * 4),
        (200, 2.0, 2 * 0.5 + (0.1 + 0.4) * 4),
        (50, 0.5, 2 * 0.5 + (0.1 + 0.025) * 4),
    ],
)
def test_an_answer_delays_all_whom_it_joins_by_its_tokens_times_their_weight(
    output: int, weight: float, seconds: float
) -> None:
    """500 tokens ahead, 100 of its own, three sequences there, 1000 tokens a second."""
    asked = prospects([node("a", 3, 500)], [100], [1000.0], output_tokens=output, output_token_weight=weight)
    assert least_added_delay(asked) == pytest.approx([seconds])


@pytest.mark.parametrize(("crowding", "seconds"), [(0.0, 1.4), (0.125, 1.5875), (1.0, 2.9)])
def test_work_ahead_counts_more_where_more_are_held_up_by_it(crowding: float, seconds: float) -> None:
    """500 tokens ahead, 100 of its own, three sequences there, 1000 tokens a second."""
    asked = prospects([node("a", 3, 500)], [100], [1000.0], crowding_weight=crowding)
    assert least_added_delay(asked) == pytest.approx([seconds])


@pytest.mark.parametrize(("output", "cheapest"), [(0, 0), (150, 0), (170, 1), (10_000, 1)])
def test_a_request_with_a_long_answer_keeps_to_where_few_are(output: int, cheapest: int) -> None:
    """(100 + 2·o)·41 against 2·8000 + (100 + 2·o)·3: equal at 160 tokens."""
    costs = least_added_delay(prospects([DECODING, PREFILLING], [100] * 2, output_tokens=output))
    assert costs.index(min(costs)) == cheapest


def test_the_expected_answers_of_a_request_are_its_models_or_what_it_allows_times_their_number() -> None:
    """Of 1000 tokens a second, 100 of the prompt, none ahead and three sequences there."""
    learned = Learned(prefill_tokens_per_s=1000.0)
    for changes, answer_tokens in (
        ({}, 300),
        ({"output_tokens_max": 40}, 40),
        ({"output_tokens_max": 900}, 300),
        ({"sequences": 4}, 1200),
        ({"endpoint": Endpoint.EMBEDDING}, 0),
    ):
        asked = request(tokens=100, **changes)
        nodes = [view(learned=learned, requests_running=3)]
        (found,) = decide(asked, nodes, POLICY, SETTINGS, Known(output_tokens=300), NOW_S).candidates
        assert found.cost == pytest.approx((100 + 2 * answer_tokens) * 4 / 1000)


def test_the_wait_ahead_is_what_is_left_of_it_now() -> None:
    """A prompt of 800 tokens, sent half a second before, of which 300 are left to a node of 1000 tokens a second."""
    learned = Learned(prefill_tokens_per_s=1000.0)
    own = OwnLoad(prefill_tokens=800, work_tokens=800.0, work_since_s=NOW_S - 0.5)
    for strategy, cost in (("least-added-delay", (2 * 300 + 100) / 1000), ("lmetric", 400)):
        policy, asked = RoutingPolicy(strategy=strategy), request(tokens=100, output_tokens_max=0)
        (found,) = decide(asked, [view(own=own, learned=learned)], policy, SETTINGS, Known(), NOW_S).candidates
        assert found.cost == pytest.approx(cost)


@pytest.mark.parametrize(
    ("ahead", "uncached", "running", "cost"),
    [(0, 1, 0, 1), (0, 100, 0, 100), (0, 100, 3, 400), (500, 100, 3, 2400)],
)
def test_lmetric_is_the_prompt_work_times_the_sequences(ahead: int, uncached: int, running: int, cost: float) -> None:
    assert lmetric(prospects([node("a", running, ahead)], [uncached])) == [cost]


def test_least_inflight_is_the_sequences_there() -> None:
    assert least_inflight(prospects([node("a", 3, 9000), node("b", 0), node("c", 70)])) == [3, 0, 70]


@pytest.mark.parametrize(
    ("uncached", "cheapest"), [(10, "decoding"), (400, "decoding"), (500, "prefilling"), (30_000, "prefilling")]
)
def test_a_prefill_heavy_request_avoids_nodes_with_many_decodes_and_a_small_one_hardly_minds(
    uncached: int, cheapest: str
) -> None:
    """u·41 against 2·8000 + u·3: equal at 421 tokens."""
    costs = least_added_delay(prospects([DECODING, PREFILLING], [uncached] * 2))
    assert ("decoding", "prefilling")[costs.index(min(costs))] == cheapest


def test_what_a_node_has_cached_draws_a_request_as_far_as_the_work_there_allows() -> None:
    """7900 of 8000 tokens cached: worth going there until others' prompts of 395,000 tokens wait there."""
    for ahead, cheapest in ((3900, 0), (4000, 1)):
        costs = least_added_delay(prospects([node("cached", 0, ahead), node("b")], [200, 8000]))
        assert costs.index(min(costs)) == cheapest


def test_a_slow_node_gets_as_much_less_as_it_is_slower() -> None:
    """The same request costs the same at a node three times slower as behind two more at the fast one, w being 1."""
    fast, slow = node("fast", ahead=200), node("slow")
    costs = least_added_delay(prospects([fast, slow], [100, 100], [3000.0, 1000.0], first_token_weight=1.0))
    assert costs[0] == pytest.approx(costs[1])


def test_others_prompts_count_by_their_mean() -> None:
    learned = Learned(prefill_tokens_mean=700.0)
    busy = view(own=OwnLoad(prefill_tokens=50, prefills_of_others=3), learned=learned)
    assert least_added_delay(prospects([busy], [1], [1.0])) == [2 * (50 + 3 * 700) + 1]


@given(number=st.integers(), running=st.lists(st.integers(0, 100), min_size=2, max_size=9))
def test_power_of_two_takes_the_better_of_two(number: int, running: list[int]) -> None:
    nodes = [node(f"n{index}", one) for index, one in enumerate(running)]
    costs = power_of_two(prospects(nodes, request_id=f"r{number}"))
    thrown = [index for index, cost in enumerate(costs) if cost != float("inf")]
    assert len(thrown) == 2
    assert [costs[index] for index in thrown] == [running[index] for index in thrown]


def test_power_of_two_throws_every_pair_evenly() -> None:
    nodes = [node(name) for name in "abcd"]
    pairs = Counter[str]()
    for number in range(6000):
        costs = power_of_two(prospects(nodes, request_id=f"r{number}"))
        pairs["".join(name for name, cost in zip("abcd", costs, strict=True) if cost == 0)] += 1
    assert set(pairs) == {"ab", "ac", "ad", "bc", "bd", "cd"}
    assert all(850 < count < 1150 for count in pairs.values())


def test_one_node_is_thrown_alone() -> None:
    assert power_of_two(prospects([node("a", 7)])) == [7]


def test_random_spreads_evenly_and_throws_the_same_for_the_same_request() -> None:
    nodes = [node(name, running) for name, running in zip("abcd", (0, 50, 100, 0), strict=True)]
    served = Counter[str]()
    for number in range(4000):
        costs = random(prospects(nodes, request_id=f"r{number}"))
        assert costs == random(prospects(nodes, request_id=f"r{number}"))
        served["abcd"[costs.index(min(costs))]] += 1
    assert all(850 < count < 1150 for count in served.values())


@pytest.mark.parametrize(("turn", "cheapest"), [(0, "a"), (1, "b"), (2, "c"), (3, "a"), (10**12 + 1, "c")])
def test_round_robin_gives_each_node_its_turn_by_id_then_the_ones_behind_it(turn: int, cheapest: str) -> None:
    costs = round_robin(prospects([node("b"), node("c"), node("a")], turn=turn))
    order = sorted("bca", key=lambda name: costs["bca".index(name)])
    assert order[0] == cheapest
    assert "".join(order) in "abcabc"


FLEETS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 10**6)), min_size=1, max_size=8)


@given(
    loads=FLEETS, uncached=st.integers(1, 10**6), rate=st.floats(1, 1e6), strategy=st.sampled_from(sorted(STRATEGIES))
)
def test_every_strategy_gives_each_node_one_cost_that_can_be_compared(
    loads: list[tuple[int, int]], uncached: int, rate: float, strategy: str
) -> None:
    nodes = [node(f"n{index}", running, ahead) for index, (running, ahead) in enumerate(loads)]
    costs = STRATEGIES[strategy](prospects(nodes, [uncached] * len(nodes), [rate] * len(nodes)))
    assert len(costs) == len(nodes)
    assert all(cost >= 0 for cost in costs)


@given(
    load=st.tuples(st.integers(0, 1000), st.integers(0, 10**6), st.integers(1, 10**6), st.floats(1, 1e6)),
    output=st.integers(0, 10**6),
    more=st.tuples(st.integers(0, 1000), st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1e6)),
    strategy=st.sampled_from(["least-added-delay", "lmetric", "least-inflight"]),
)
def test_more_work_never_makes_a_node_cheaper(
    load: tuple[int, int, int, float], output: int, more: tuple[int, int, int, float], strategy: str
) -> None:
    """More in flight, more prompt tokens ahead, fewer cached, a lower rate."""
    running, ahead, uncached, rate = load
    nodes = [node("a", running, ahead), node("b", running + more[0], ahead + more[1])]
    asked = prospects(nodes, [uncached, uncached + more[2]], [rate + more[3], rate], output_tokens=output)
    before, after = STRATEGIES[strategy](asked)
    assert after >= before
