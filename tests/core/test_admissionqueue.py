"""Who waits, for how long, and how many: against a list that is looked through each time."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from extproc.core.admissionqueue import AdmissionQueue, Lane, Waiting
from extproc.core.admissionsettings import PriorityClass
from extproc.core.request import TokenCount
from tests.core.fleet import NOW_S, POLICY, request

CLASSES = {
    "high": PriorityClass(queue_ms_max=1000, queue_requests_max=3, queue_bytes_max=1000),
    "never": PriorityClass(),
    "low": PriorityClass(queue_ms_max=5000, queue_requests_max=5, queue_bytes_max=100),
}
A, B = frozenset("a"), frozenset("ab")


def waiting(request_id: str, until_s: float = NOW_S, lane: Lane = Lane(0, A), **changes: Any) -> Waiting:  # noqa: B008
    asked = request(request_id, tenant=changes.pop("tenant", ""), body_bytes=changes.pop("body_bytes", 0))
    return Waiting(asked, POLICY, lane, changes.pop("tokens", 100), NOW_S - 1, until_s)


def queue_of(*ones: Waiting) -> AdmissionQueue:
    queue = AdmissionQueue(CLASSES)
    for one in ones:
        queue.offer(one)
    return queue


def ids(ones: Any) -> list[str]:
    return [one.request.request_id for one in ones]


def test_so_many_requests_of_a_class_wait_and_no_more() -> None:
    queue = queue_of(*(waiting(f"r{number}") for number in range(2)))
    assert queue.why_not(0, 0) is None
    queue.offer(waiting("r2"))
    assert queue.why_not(0, 0) == "3 requests of class high wait already"
    assert queue.why_not(2, 0) is None, "each class has its own room"
    queue.remove("r0")
    assert queue.why_not(0, 0) is None


def test_so_many_bytes_of_a_class_wait_and_no_more() -> None:
    queue = queue_of(waiting("r0", body_bytes=600))
    assert queue.why_not(0, 400) is None
    assert queue.why_not(0, 401) == "those of class high that wait have 600 bytes already"
    assert queue.why_not(2, 100) is None
    assert queue.why_not(2, 101) is not None
    queue.pop(Lane(0, A))
    assert queue.why_not(0, 1000) is None


def test_a_class_without_time_to_wait_never_waits() -> None:
    assert AdmissionQueue(CLASSES).why_not(1, 0) == "requests of class never do not wait"


@pytest.mark.parametrize("limits", [{"queue_requests_max": 0}, {"queue_bytes_max": 0}])
def test_limits_of_0_let_nothing_wait(limits: dict[str, int]) -> None:
    queue = AdmissionQueue({"one": PriorityClass(queue_ms_max=1, **limits)})
    assert queue.why_not(0, 1) is not None


def test_time_is_up_in_the_moment_that_was_told_and_not_before() -> None:
    queue = queue_of(waiting("later", NOW_S + 0.5), waiting("now", NOW_S), waiting("soon", NOW_S + 0.25))
    assert queue.next_deadline_s == NOW_S
    assert ids(queue.expired(NOW_S - 0.001)) == []
    assert ids(queue.expired(NOW_S)) == ["now"]
    assert queue.next_deadline_s == NOW_S + 0.25
    assert ids(queue.expired(NOW_S + 9)) == ["soon", "later"]
    assert queue.next_deadline_s is None
    assert len(queue) == 0


def test_what_is_not_taken_of_the_expired_still_waits() -> None:
    """The balancer takes a bounded number."""
    queue = queue_of(waiting("one"), waiting("two"))
    assert next(iter(queue.expired(NOW_S))).request.request_id == "one"
    assert len(queue) == 1
    assert ids(queue.expired(NOW_S)) == ["two"]


def test_a_recount_keeps_place_and_price() -> None:
    lane = Lane(0, A)
    first = waiting("r1", NOW_S + 1, body_bytes=10)
    queue = queue_of(first, waiting("r2"))
    counted = structs.replace(first.request, prompt=TokenCount(7, exact=True))
    queue.recount(counted)
    after = structs.replace(first, request=counted)
    assert queue.get("r1") == queue.head(lane) == after
    assert queue.tokens_waiting(0, A) == 200
    assert [queue.pop(lane), queue.remove("r2")] == [after, waiting("r2")]
    assert queue.depths()["high"] == (0, 0)


def test_lanes_are_those_in_which_somebody_waits() -> None:
    queue = queue_of(waiting("r1"), waiting("r2", lane=Lane(2, A)), waiting("r3", lane=Lane(2, B)))
    assert set(queue.lanes()) == {Lane(0, A), Lane(2, A), Lane(2, B)}
    assert queue.lanes(1) == [Lane(0, A)]
    assert queue.head(Lane(1, A)) is None
    queue.pop(Lane(0, A))
    assert queue.lanes(1) == []


def test_tokens_count_that_wait_for_the_same_nodes_in_no_lower_class() -> None:
    queue = queue_of(
        waiting("r1", tokens=1),
        waiting("r2", tokens=10, lane=Lane(2, B)),
        waiting("r3", tokens=100, lane=Lane(2, frozenset("b"))),
        waiting("r4", tokens=1000, lane=Lane(2, frozenset())),
    )
    assert queue.tokens_waiting(1, B) == 1
    assert queue.tokens_waiting(2, A) == 11
    assert queue.tokens_waiting(2, B) == 111
    queue.pop(Lane(2, B))
    assert queue.tokens_waiting(2, A) == 1


def test_lined_up_anew_they_stand_in_the_order_in_which_they_came() -> None:
    ones = [waiting(f"r{number}", lane=Lane(0, A if number % 2 else B), tenant="ab"[number % 2]) for number in range(6)]
    queue = queue_of(*ones)
    queue.pop(Lane(0, B))
    queue.line_up_anew(lambda one: Lane(one.lane.rank, B))
    assert queue.lanes() == [Lane(0, B)]
    assert ids(queue.pop(Lane(0, B)) for _ in range(5)) == ["r1", "r2", "r3", "r4", "r5"]
    assert len(queue) == 0
    assert queue.lanes() == []


def test_where_none_has_another_lane_nobodys_share_is_forgotten() -> None:
    queue = queue_of(*(waiting(f"a{number}", tenant="a") for number in range(4)), waiting("b", tenant="b", tokens=150))
    queue.pop(Lane(0, A))
    queue.line_up_anew(lambda one: one.lane)
    assert ids(queue.pop(Lane(0, A)) for _ in range(2)) == ["b", "a1"]


def test_a_thousand_clients_that_give_up_leave_nothing() -> None:
    queue = queue_of(*(waiting(f"r{number}", NOW_S + 999, tenant=f"t{number}") for number in range(1000)))
    queue.offer(waiting("early", NOW_S))
    for number in range(1000):
        queue.remove(f"r{number}")
        assert len(queue._deadlines) <= 2 * len(queue) + 64
    assert queue.remove("r0") is None
    queue.remove("early")
    assert queue.next_deadline_s is None
    assert (queue._lanes, queue._waiting, queue._deadlines) == ({}, {}, [])
    assert set(queue.depths().values()) == {(0, 0)}


def test_who_overtakes_stands_before_others_of_its_class() -> None:
    queue = queue_of(waiting("r1", tenant="a"))
    assert not queue.overtakes("r1"), "there are no others"
    queue.offer(waiting("r2", tenant="a"))
    assert not queue.overtakes("r2")
    queue.pop(waiting("r2").lane)
    other = Lane(waiting("r2").lane.rank, frozenset("z"))
    for name, tenant, lane, overtakes in [
        ("r3", "a", other, False),  # its own came before
        ("r4", "b", other, True),  # a has had something
        ("r5", "c", waiting("r2").lane, True),  # behind b, but before a
        ("r6", "d", Lane(2, A), False),
    ]:
        queue.offer(waiting(name, tenant=tenant, lane=lane))
        assert queue.overtakes(name) == overtakes, name
    assert not queue.overtakes("nobody")


def test_clear_lets_all_go() -> None:
    queue = queue_of(waiting("r1"), waiting("r2", lane=Lane(2, A)))
    assert ids(queue.clear()) == ["r1", "r2"]
    assert (len(queue), queue.lanes(), queue.next_deadline_s) == (0, [], None)


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = AdmissionQueue(CLASSES)
        self.ones: dict[str, Waiting] = {}
        self.now_s = NOW_S
        self.number = 0

    def held(self, rank: int) -> tuple[int, int]:
        own = [one.request.body_bytes for one in self.ones.values() if one.lane.rank == rank]
        return len(own), sum(own)

    def gone(self, one: Waiting) -> None:
        assert self.ones.pop(one.request.request_id) == one

    @rule(
        rank=st.sampled_from([0, 0, 1, 2]),
        nodes=st.sampled_from([A, B]),
        body_bytes=st.sampled_from([0, 40, 100, 400]),
        tenant=st.sampled_from("xyz"),
        tokens=st.integers(1, 50),
        for_s=st.sampled_from([0.5, 1.0, 5.0]),
    )
    def offer(self, rank: int, nodes: frozenset[str], body_bytes: int, tenant: str, tokens: int, for_s: float) -> None:
        limits = list(CLASSES.values())[rank]
        requests, held_bytes = self.held(rank)
        may = (
            limits.queue_ms_max > 0
            and requests < limits.queue_requests_max
            and held_bytes + body_bytes <= limits.queue_bytes_max
        )
        assert (self.queue.why_not(rank, body_bytes) is None) == may
        if may:
            self.number += 1
            asked = request(f"r{self.number}", tenant=tenant, body_bytes=body_bytes)
            one = Waiting(asked, POLICY, Lane(rank, nodes), tokens, self.now_s, self.now_s + for_s)
            self.queue.offer(one)
            self.ones[asked.request_id] = one

    @precondition(lambda self: self.ones)
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        one = self.queue.remove(data.draw(st.sampled_from(sorted(self.ones))))
        assert one is not None
        self.gone(one)

    @precondition(lambda self: self.ones)
    @rule(data=st.data())
    def pop(self, data: Any) -> None:
        lane = data.draw(st.sampled_from([one.lane for one in self.ones.values()]))
        head, one = self.queue.head(lane), self.queue.pop(lane)
        assert one is head
        own = [
            other for other in self.ones.values() if (other.lane, other.request.tenant) == (lane, one.request.tenant)
        ]
        assert one == own[0], "its tenant's first in the lane"
        self.gone(one)

    @precondition(lambda self: self.ones)
    @rule(data=st.data(), tokens=st.integers(1, 50))
    def recount(self, data: Any, tokens: int) -> None:
        one = self.ones[data.draw(st.sampled_from(sorted(self.ones)))]
        counted = structs.replace(one.request, prompt=TokenCount(tokens, exact=True))
        self.queue.recount(counted)
        self.ones[counted.request_id] = structs.replace(one, request=counted)

    @precondition(lambda self: self.ones)
    @rule(nodes=st.sampled_from([A, B]))
    def line_up_anew(self, nodes: frozenset[str]) -> None:
        self.queue.line_up_anew(lambda one: Lane(one.lane.rank, nodes))
        for request_id, one in self.ones.items():
            self.ones[request_id] = structs.replace(one, lane=Lane(one.lane.rank, nodes))

    @rule(passed_s=st.sampled_from([0.25, 0.5, 2.0]))
    def expire(self, passed_s: float) -> None:
        self.now_s += passed_s
        due = sorted(one.until_s for one in self.ones.values() if one.until_s <= self.now_s)
        gone = list(self.queue.expired(self.now_s))
        assert [one.until_s for one in gone] == due
        for one in gone:
            self.gone(one)

    @rule()
    def clear(self) -> None:
        for one in self.queue.clear():
            self.gone(one)

    @invariant()
    def it_holds_what_waits(self) -> None:
        tokens: dict[Lane, int] = defaultdict(int)
        for one in self.ones.values():
            tokens[one.lane] += one.tokens
            assert self.queue.get(one.request.request_id) == one
        assert len(self.queue) == len(self.ones)
        assert self.queue.depths() == {name: self.held(rank) for rank, name in enumerate(CLASSES)}
        for rank, limits in enumerate(CLASSES.values()):
            requests, held_bytes = self.held(rank)
            assert requests <= limits.queue_requests_max
            assert held_bytes <= limits.queue_bytes_max
            assert set(self.queue.lanes(rank)) == {lane for lane in tokens if lane.rank <= rank}
        assert set(self.queue.lanes()) == set(tokens)
        assert self.queue.tokens_waiting(2, B) == sum(tokens.values())
        assert len(self.queue._deadlines) <= 2 * len(self.ones) + 64

    @invariant()
    def the_next_deadline_is_the_earliest(self) -> None:
        assert self.queue.next_deadline_s == min((one.until_s for one in self.ones.values()), default=None)


TestAgainstAList = Model.TestCase
