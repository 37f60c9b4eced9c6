from collections import Counter

import pytest

from extproc.core.admissionsettings import PriorityClass
from extproc.core.balancer import Balancer
from extproc.core.decision import Chosen, Decision, Outcome, Queued, Refused, Unknown
from extproc.core.policy import RoutingPolicy
from extproc.core.room import Limits
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeReported
from extproc.sim.routers import Routers
from extproc.sim.traces import Arrival
from tests.core.fleet import snapshot
from tests.sim.fleets import MODEL_LISTED

NOW_S = 100.0


def routers(count: int = 1, lost_share: float = 0.0) -> Routers:
    made = Routers(count, RoutingPolicy(strategy="round-robin"), BalancerSettings(), 0.0, lost_share)
    for node_id in ("a", "b"):
        roomy = snapshot(node_id, models=MODEL_LISTED, kv_blocks_total=100_000, kv_blocks_available=100_000)
        made.observe(NodeReported(roomy), NOW_S)
    return made


def route(made: Routers, request_id: str) -> str:
    outcome = made.route(request_id, Arrival(0.0, 100, 10), NOW_S)
    assert isinstance(outcome, Chosen), outcome
    return outcome.node_id


def test_an_end_closes_the_request_at_the_router_that_had_it() -> None:
    made = routers(3)
    for index in range(30):
        route(made, str(index))
    assert made.requests_open == 30
    for index in range(10):
        made.ended(str(index), 10, NOW_S)
        made.ended(str(index), 10, NOW_S)
    for index in range(10, 20):
        made.first_token(str(index), NOW_S)
        made.unreachable(str(index), NOW_S)
    assert made.requests_open == 10


def test_as_many_ends_are_lost_as_shall_be() -> None:
    for share, least, most in ((0.0, 0, 0), (0.25, 60, 140), (0.5, 150, 250), (1.0, 400, 400)):
        made = routers(2, share)
        for index in range(400):
            route(made, f"7-{index}")
            made.ended(f"7-{index}", 10, NOW_S)
        assert least <= made.requests_open <= most


def small(*, queue_ms_max: int, count: int = 1) -> tuple[Routers, list[str]]:
    """Routers that know one node, with room for one request of 1000 tokens; and what they say of more room."""
    said: list[str] = []
    settings = BalancerSettings(classes={"some": PriorityClass(queue_ms_max=queue_ms_max)}, default_class="some")
    policy = RoutingPolicy(limits=Limits(kv_blocks_required=True))
    made = Routers(count, policy, settings, 0.0, 0.0, lambda: said.append("room"))
    # 1000 tokens and the 256 of the answer that is expected.
    room = {"kv_block_size_tokens": 16, "kv_blocks_total": 100, "kv_blocks_available": 80, "kv_usage": 0.2}
    made.observe(NodeReported(snapshot("a", models=MODEL_LISTED, **room)), NOW_S)
    return made, said


def ask(made: Routers, request_id: str, now_s: float = NOW_S) -> Outcome:
    return made.route(request_id, Arrival(0.0, 1000, 10), now_s, "some", "tenant")


def test_one_that_waits_goes_when_there_is_room_and_is_told_once() -> None:
    made, said = small(queue_ms_max=1000)
    assert isinstance(ask(made, "first"), Chosen)
    second = ask(made, "second")
    assert isinstance(second, Queued)
    assert second.until_s == NOW_S + 1
    assert (said, made.admit(NOW_S + 0.5)) == ([], [])
    made.ended("first", 10, NOW_S + 0.5)
    assert said
    (decision,) = made.admit(NOW_S + 0.5)
    assert (decision.request_id, decision.priority, decision.queued_s) == ("second", "some", 0.5)
    assert isinstance(decision.outcome, Chosen)
    assert made.admit(NOW_S + 2) == []


def test_one_that_waits_is_refused_when_its_time_is_up_and_not_before() -> None:
    made, said = small(queue_ms_max=1000)
    ask(made, "first")
    ask(made, "second")
    assert made.admit(NOW_S + 0.999) == []
    (decision,) = made.admit(NOW_S + 1)
    assert isinstance(decision.outcome, Refused)
    assert said == []


def test_routers_without_room_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = small(queue_ms_max=1000, count=3)
    asked: list[Balancer] = []

    def admit(balancer: Balancer, _: float) -> list[Decision]:
        asked.append(balancer)
        return []

    monkeypatch.setattr(Balancer, "admit", admit)
    for index in range(20):
        ask(made, str(index))
    assert made.admit(NOW_S + 0.5) == []
    assert asked == []
    made.ended("0", 10, NOW_S + 0.5)
    made.admit(NOW_S + 0.5)
    made.admit(NOW_S + 0.6)
    assert len(asked) == 1


def test_each_router_takes_turns_of_its_own() -> None:
    one, three = routers(1), routers(3)
    assert [route(one, str(index)) for index in range(4)] == ["a", "b", "a", "b"]
    chosen = [route(three, str(index)) for index in range(300)]
    assert chosen != ["a", "b"] * 150
    assert Counter(chosen)["a"] in range(147, 154)


def test_a_router_without_nodes_cannot_tell() -> None:
    made = Routers(1, RoutingPolicy(), BalancerSettings(), 0.0, 0.0)
    assert isinstance(made.route("r", Arrival(0.0, 1, 1), NOW_S), Unknown)


def test_nodes_that_say_nothing_for_long_are_forgotten_by_all() -> None:
    made = routers(3)
    made.tick(NOW_S + 1e6)
    for index in range(20):
        assert isinstance(made.route(str(index), Arrival(0.0, 1, 1), NOW_S + 1e6), Unknown)
