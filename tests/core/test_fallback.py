from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fallback import SmoothWeightedRoundRobin
from tests.core.fleet import view


def turns(weights: dict[str, float], count: int) -> list[str]:
    robin = SmoothWeightedRoundRobin()
    members = [view(node_id, weight=weight) for node_id, weight in weights.items()]
    return [robin.pick(members).snapshot.node_id for _ in range(count)]


def test_turns_follow_the_weights_smoothly() -> None:
    assert "".join(turns({"a": 5, "b": 1, "c": 1}, 7)) == "aabacaa"


def test_the_order_of_members_does_not_matter() -> None:
    assert turns({"a": 1, "b": 2, "c": 3}, 12) == turns({"c": 3, "a": 1, "b": 2}, 12)


@given(weights=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1))
def test_every_full_cycle_serves_each_node_exactly_its_weight(weights: dict[str, int]) -> None:
    total = sum(weights.values())
    served = turns({node_id: float(weight) for node_id, weight in weights.items()}, 3 * total)
    for cycle in range(3):
        assert Counter(served[cycle * total : (cycle + 1) * total]) == weights


def test_a_million_turns_overflow_nothing() -> None:
    robin = SmoothWeightedRoundRobin()
    members = [view("a", weight=1000.0), view("b", weight=0.001)]
    for _ in range(20_000):
        robin.pick(members)
    assert all(abs(credit) <= 1001 for credit in robin._credits.values())


@given(weights=st.lists(st.floats(0.001, 1000), min_size=1, max_size=6), looks=st.lists(st.booleans(), max_size=20))
def test_looking_whose_turn_it_is_takes_no_turn(weights: list[float], looks: list[bool]) -> None:
    members = [view(f"n{number}", weight=weight) for number, weight in enumerate(weights)]
    watched, alone = SmoothWeightedRoundRobin(), SmoothWeightedRoundRobin()
    for look in looks:
        seen = watched.peek(members) if look else None
        served = watched.pick(members)
        assert served is alone.pick(members)
        assert seen is None or seen is served


@given(
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    takers=st.lists(st.none() | st.integers(0, 5), max_size=30),
)
def test_a_turn_may_be_given_to_another(weights: list[int], takers: list[int | None]) -> None:
    """Credits are as if it had been its own: whoever got more than its share waits until the others have theirs."""
    members = [view(f"n{number}", weight=weight) for number, weight in enumerate(weights)]
    robin, total = SmoothWeightedRoundRobin(), sum(weights)
    served: Counter[str] = Counter()
    for turns_taken, taker in enumerate(takers, 1):
        if taker is None:
            node_id = robin.pick(members).snapshot.node_id
        else:
            node_id = members[taker % len(members)].snapshot.node_id
            robin.take(members, node_id)
        served[node_id] += 1
        for member in members:
            own = member.snapshot
            assert robin._credits[own.node_id] == turns_taken * own.weight - served[own.node_id] * total


def test_members_may_come_and_go() -> None:
    robin = SmoothWeightedRoundRobin()
    both = [view("a"), view("b")]
    robin.pick(both)
    assert robin.pick(both[:1]).snapshot.node_id == "a"
    robin.forget("a")
    assert {robin.pick(both).snapshot.node_id for _ in range(2)} == {"a", "b"}
