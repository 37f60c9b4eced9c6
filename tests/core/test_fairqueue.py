"""Equal shares of tokens, against a queue that looks at everything each time."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.core.fairqueue import FairQueue, Shares

SIZES = st.integers(1, 20)


def queue_of(*items: tuple[str, float]) -> FairQueue[str]:
    """Items of these tenants and tokens, named by tenant and place."""
    queue = FairQueue[str]()
    for place, (tenant, tokens) in enumerate(items):
        queue.push(tenant, f"{tenant}{place}", f"{tenant}{place}", tokens)
    return queue


def drained(queue: FairQueue[str]) -> str:
    return "".join(queue.pop()[0] for _ in range(len(queue)))


def test_a_tenants_own_come_in_their_order_whatever_they_cost() -> None:
    queue = queue_of(("a", 9), ("a", 1), ("a", 5))
    assert [queue.head(), queue.pop(), queue.pop(), queue.pop()] == ["a0", "a0", "a1", "a2"]
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("items", "order"),
    [
        ("a1 a1 a1 b1 b1", "ababa"),
        ("a1 b1 c1 a1 b1 c1", "abcabc"),
        ("a4 a4 b1 b1 b1 b1 b1 b1", "abbbbabb"),  # starts: a 0, 4; b 0 … 5; at 4 a came first
        ("a2 a2 b3 b3 c6", "abcab"),  # starts: a 0, 2; b 0, 3; c 0
        ("a1 b9 a1 a1 a1", "abaaa"),
    ],
)
def test_tokens_are_shared_by_hand(items: str, order: str) -> None:
    made = queue_of(*((one[0], float(one[1:])) for one in items.split()))
    assert drained(made) == order


def test_of_tenants_who_had_the_same_goes_who_came_first() -> None:
    assert drained(queue_of(("b", 2), ("a", 1), ("c", 2), ("a", 1))) == "baca"


def test_a_tenant_who_comes_back_gains_nothing() -> None:
    """While it was away the other used 40 tokens; it does not get those now."""
    queue = queue_of(*[("a", 10)] * 8, ("b", 10))
    assert "".join(queue.pop()[0] for _ in range(6)) == "abaaaa"
    for number in range(3):
        queue.push("b", f"new{number}", "b", 10)
    assert drained(queue) == "bababa"


def test_a_tenant_who_leaves_at_once_after_each_turn_gains_nothing_either() -> None:
    queue = queue_of(*[("a", 10)] * 6)
    served = ""
    for number in range(6):
        queue.push("b", f"b{number}", "b", 10)
        served += queue.pop()[0]
        served += queue.pop()[0]
    assert abs(served.count("a") - served.count("b")) <= 1


def test_who_is_gone_before_its_turn_is_not_paid_for() -> None:
    queue = queue_of(("a", 100), ("a", 1), ("b", 2))
    assert queue.remove("a", "a0") == "a0"
    assert drained(queue) == "ab"


def test_shares_are_one_over_all_queues_that_have_them_in_common() -> None:
    shares = Shares()
    one, other = FairQueue[str](shares), FairQueue[str](shares)
    for number in range(4):
        one.push("a", f"a{number}", f"a{number}", 10)
    other.push("a", "a9", "a9", 10)
    other.push("b", "b", "b", 10)
    assert other.head() == "a9", "it came before b"
    assert [one.pop(), one.pop()] == ["a0", "a1"]
    assert other.head() == "b", "it has had nothing, and a has"
    assert (one.turn, other.turn) == ((20.0, 2), (0.0, 5))


def test_who_was_held_up_in_another_queue_sets_nobodys_clock_back() -> None:
    """Else whoever comes then would go before those who have waited through all the time that it waited."""
    shares = Shares()
    one, other = FairQueue[str](shares), FairQueue[str](shares)
    one.push("a", "a0", "a0", 10)
    for number in range(40):
        other.push("b", f"b{number}", f"b{number}", 10)
    for _ in range(30):
        other.pop()
    assert one.pop() == "a0"
    for number in range(5):
        other.push("c", f"c{number}", f"c{number}", 10)
    assert "".join(other.pop()[0] for _ in range(8)) == "cbcbcbcb"


def test_another_item_in_its_place_keeps_the_place_and_the_price() -> None:
    queue = queue_of(("a", 5), ("a", 5), ("b", 6))
    queue.replace("a", "a0", "other")
    assert queue.tokens == 16
    assert [queue.pop(), queue.pop(), queue.pop()] == ["other", "b2", "a1"]


def test_what_it_remembers_is_bounded_by_who_waits() -> None:
    """A tenant whose next gives up, again and again, leaves nothing in the heap."""
    queue = queue_of(("b", 1), *[("a", 2)] * 2000)
    for number in range(1, 2001):
        queue.remove("a", f"a{number}")
        assert len(queue._heads) <= 2 * len(queue._tenants) + 16
    assert drained(queue) == "b"
    assert (queue._heads, queue._tenants, queue._shares._clock, queue.tokens) == ([], {}, 0.0, 0.0)


@given(st.data(), st.integers(2, 4), st.lists(st.tuples(st.integers(0, 3), SIZES), max_size=40))
def test_nobody_gets_more_than_one_request_above_another_who_waits(
    data: Any, tenants: int, more: list[tuple[int, int]]
) -> None:
    """From when both wait: what one got is at most what the other got, and one item of each."""
    queue = FairQueue[tuple[int, int]]()
    largest: dict[int, int] = defaultdict(int)
    got: dict[int, int] = defaultdict(int)
    waits: dict[int, int] = defaultdict(int)
    together: dict[tuple[int, int], tuple[int, int]] = {}
    number = 0

    def push(tenant: int, size: int) -> None:
        nonlocal number
        number += 1
        queue.push(str(tenant), str(number), (tenant, size), size)
        largest[tenant] = max(largest[tenant], size)
        waits[tenant] += 1
        if waits[tenant] == 1:
            for other in range(4):
                if other != tenant and waits[other]:
                    together[tenant, other] = (got[tenant], got[other])

    for tenant in range(tenants):
        for _ in range(5):
            push(tenant, data.draw(SIZES))
    for tenant, size in more:
        push(tenant, size)
        went, tokens = queue.pop()
        got[went] += tokens
        for (one, other), (one_had, other_had) in list(together.items()):
            lead = (got[one] - one_had) - (got[other] - other_had)
            assert abs(lead) <= largest[one] + largest[other]
        waits[went] -= 1
        if not waits[went]:
            for pair in [pair for pair in together if went in pair]:
                del together[pair]


@given(st.integers(1, 5), st.integers(1, 100), st.lists(SIZES, min_size=1, max_size=5))
def test_whoever_waits_goes_before_others_have_had_much_more_than_it_costs(
    others: int, tokens: int, sizes: list[int]
) -> None:
    """However many keep coming: each of them gets its price and one item at most before."""
    queue = FairQueue[str]()
    for tenant in range(others):
        queue.push(f"other{tenant}", f"{tenant}-0", f"other{tenant}", sizes[0])
    queue.push("one", "one", "one", tokens)
    got: dict[str, int] = defaultdict(int)
    for turn in range(1, 10_000):
        went = queue.pop()
        if went == "one":
            break
        size = sizes[got[went] % len(sizes)]
        got[went] += size
        queue.push(went, f"{went}-{turn}", went, sizes[got[went] % len(sizes)])
    else:
        raise AssertionError("it never went")
    assert all(had <= tokens + 2 * max(sizes) for had in got.values())


class Model(RuleBasedStateMachine):
    """The same, but every start is looked at each time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue[str]()
        self.waiting: dict[str, list[tuple[str, int, int]]] = {}
        self.start: dict[str, int] = {}
        self.clock = 0
        self.number = 0

    def next(self) -> tuple[int, int, str]:
        return min((self.start[tenant], own[0][2], tenant) for tenant, own in self.waiting.items())

    def take_out(self, tenant: str, place: int) -> str:
        item, _, _ = self.waiting[tenant].pop(place)
        if not self.waiting[tenant]:
            del self.waiting[tenant], self.start[tenant]
        if not self.waiting:
            self.clock = 0
        return item

    @rule(tenant=st.sampled_from("abcd"), tokens=st.integers(1, 50))
    def push(self, tenant: str, tokens: int) -> None:
        self.number += 1
        name = f"{tenant}{self.number}"
        self.queue.push(tenant, name, name, tokens)
        self.start.setdefault(tenant, self.clock)
        self.waiting.setdefault(tenant, []).append((name, tokens, self.number))

    @precondition(lambda self: self.waiting)
    @rule()
    def pop(self) -> None:
        start, _, tenant = self.next()
        self.clock = max(self.clock, start)
        self.start[tenant] += self.waiting[tenant][0][1]
        assert self.queue.pop() == self.take_out(tenant, 0)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        tenant = data.draw(st.sampled_from(sorted(self.waiting)))
        place = data.draw(st.integers(0, len(self.waiting[tenant]) - 1))
        name = self.waiting[tenant][place][0]
        assert self.queue.remove(tenant, name) == self.take_out(tenant, place)

    @invariant()
    def the_same_waits_and_the_same_is_next(self) -> None:
        assert len(self.queue) == sum(map(len, self.waiting.values()))
        assert self.queue.tokens == sum(tokens for own in self.waiting.values() for _, tokens, _ in own)
        assert len(self.queue._heads) <= 2 * len(self.waiting) + 16
        if self.waiting:
            _, _, tenant = self.next()
            assert self.queue.head() == self.waiting[tenant][0][0]


TestAgainstANaiveOne = Model.TestCase
