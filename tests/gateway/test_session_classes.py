"""Which class and which tenant a request is of, and what follows from it for those who wait."""

from collections.abc import Sequence

import pytest

from extproc.core.admissionsettings import PriorityClass
from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeReported
from extproc.gateway.conversation import BodyMode, SetDestination, Wait
from tests.core.fleet import NOW_S, balancer, snapshot
from tests.gateway.talk import Talk, admit, chat, error_of, full, headers, waiting, whole


def test_a_class_whose_queue_is_full_refuses_the_next_one() -> None:
    body = chat()
    classes = {
        "requests": PriorityClass(queue_ms_max=30_000, queue_requests_max=2),
        "bytes": PriorityClass(queue_ms_max=30_000, queue_bytes_max=2 * len(body)),
        "standard": PriorityClass(),
    }
    fleet = full(settings=BalancerSettings(classes=classes))
    for name in ("requests", "bytes"):
        policy = RoutingPolicy(priority=name)
        two = [waiting(fleet, f"{name}-{number}", policy=policy) for number in range(2)]
        third = Talk(fleet, policy=policy, request_id=f"{name}-3").say(headers(mode=BodyMode.BUFFERED), whole(body))
        assert error_of(third)["status"] == 429
        two[0].session.close(NOW_S)
        waiting(fleet, f"{name}-4", policy=policy)
        assert fleet.waiting[name][0] == 2


@pytest.mark.parametrize(
    ("policy_class", "said", "expected"),
    [
        (None, None, "standard"),
        (None, "batch", "batch"),
        (None, "interactive", "interactive"),
        ("batch", None, "batch"),
        ("batch", "interactive", "interactive"),
        ("batch", "no-such-class", "batch"),
        ("batch", "", "batch"),
        ("batch", "Interactive", "batch"),
        (None, "no-such-class", "standard"),
    ],
)
def test_the_class_is_the_one_that_the_header_names_or_else_the_policys(
    policy_class: str | None, said: str | None, expected: str
) -> None:
    policy = RoutingPolicy(priority=policy_class, priority_header="x-priority")
    talk = Talk(balancer(snapshot("a")), policy=policy)
    action = talk.say(headers(named={} if said is None else {"x-priority": said}), whole(chat()))
    assert isinstance(action, SetDestination)
    assert action.metadata["priority"] == expected


def test_a_header_that_the_policy_does_not_name_gives_no_class() -> None:
    talk = Talk(balancer(snapshot("a")))
    action = talk.say(headers(named={"x-priority": "interactive"}), whole(chat()))
    assert isinstance(action, SetDestination)
    assert action.metadata["priority"] == "standard"


def served_one_by_one(fleet: Balancer, talks: Sequence[Talk]) -> list[str]:
    """Ids in the order in which they go, where each leaves before the next has room."""
    order: list[str] = []
    sessions = {one.session.request_id: one.session for one in talks}
    for sequence in range(2, 2 + len(talks)):
        # With one place left in its queue the node is full again as soon as one has gone there.
        fleet.observe(NodeReported(snapshot("a", sequence=sequence, requests_waiting=99)), NOW_S)
        (went,) = admit(fleet, *talks)
        order.append(went)
        sessions[went].close(NOW_S)
    return order


@pytest.mark.parametrize("by", ["header", "claim"])
def test_tenants_share_what_room_there_is_whoever_came_first(by: str) -> None:
    claim = "envoy.filters.http.jwt_authn:payload.sub"
    policy = RoutingPolicy(
        priority="batch",
        tenant_header="x-tenant" if by == "header" else None,
        tenant_metadata=claim if by == "claim" else None,
    )
    fleet = full()
    talks = []
    for request_id in ("a1", "a2", "a3", "b1", "b2"):
        tenant = request_id[0]
        talk = Talk(fleet, policy=policy, request_id=request_id)
        said = {"x-tenant": tenant} if by == "header" else {"x-tenant": "the same for all"}
        talk.say(headers(named=said, tenant_claim=tenant if by == "claim" else None))
        assert isinstance(talk.say(whole(chat())), Wait)
        talks.append(talk)
    assert served_one_by_one(fleet, talks) == ["a1", "b1", "a2", "b2", "a3"]


def test_a_higher_class_goes_first_whoever_came_first() -> None:
    classes = {
        "interactive": PriorityClass(queue_ms_max=30_000),
        "standard": PriorityClass(),
        "batch": PriorityClass(queue_ms_max=30_000),
    }
    fleet = full(settings=BalancerSettings(classes=classes))
    policy = RoutingPolicy(priority_header="x-priority")
    talks = []
    for request_id in ("batch-1", "batch-2", "interactive-1", "batch-3", "interactive-2"):
        talk = Talk(fleet, policy=policy, request_id=request_id)
        talk.say(headers(named={"x-priority": request_id[:-2]}))
        assert isinstance(talk.say(whole(chat())), Wait)
        talks.append(talk)
    assert served_one_by_one(fleet, talks) == ["interactive-1", "interactive-2", "batch-1", "batch-2", "batch-3"]
