"""A replay's own state follows what was recorded, so that one decision that differs does not spoil those behind it."""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from extproc.core.chooser import Chooser, Found
from extproc.core.cost import STRATEGIES
from extproc.core.decision import Chosen, Refusal, Refused
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.router import FallBack, Standing
from extproc.core.snapshot import NodeReported, NodeView
from extproc.journal.balancer import JournaledBalancer, close
from extproc.journal.lines import Decided
from extproc.replay.follow import Follower
from extproc.replay.other import Other
from tests.core.fleet import NOW_S, SETTINGS, request, snapshot
from tests.journaled import FLEET, LIVES, NODES, Call, journaled, live, routes, write
from tests.replay.replaying import followers, replayed, state_of


def test_requests_go_where_the_journal_says() -> None:
    one = Follower(SETTINGS, NOW_S - 60)
    for node_id in "ab":
        one.observe(NodeReported(snapshot(node_id)), NOW_S)

    def loads() -> dict[str, int]:
        return {view.snapshot.node_id: view.in_flight for view in one.views()}

    def to(node_id: str) -> Decided:
        return Decided("least-added-delay", Chosen(node_id, "10.0.0.1:8000", "recorded"))

    own = one.follow(request("r0"), RoutingPolicy(), NOW_S, None).outcome
    assert isinstance(own, Chosen)
    assert loads() == {"a": 0, "b": 0}, "nobody got it"
    for number in range(1, 4):
        one.follow(request(f"r{number}"), RoutingPolicy(), NOW_S, to("a"))
    assert loads() == {"a": 3, "b": 0}
    gone = one.follow(request("r4"), RoutingPolicy(), NOW_S, to("gone")).outcome
    assert isinstance(gone, Chosen)
    assert gone.node_id == "b"
    assert loads() == {"a": 3, "b": 0}
    one.follow(request("r5", model="nobody's"), RoutingPolicy(), NOW_S, to("b"))
    assert loads() == {"a": 3, "b": 1}, "refused here, but not then"


def test_no_turn_goes_to_who_is_no_member() -> None:
    """Of names in a hostile journal there is no end, and nobody would ever forget them."""
    one = Follower(SETTINGS, NOW_S - 60)
    one.observe(NodeReported(snapshot("a")), NOW_S)
    stale_s = NOW_S + SETTINGS.nodes.fresh_s + 1
    for number in range(5):
        recorded = Decided("fallback", Chosen(f"gone-{number}", "10.0.0.1:8000", "recorded", fallback=True))
        one.follow(request(f"r{number}"), RoutingPolicy(), stale_s, recorded)
        one.follow_uninspected(f"u{number}", "", stale_s, recorded)
    for robin in (one._round_robin, one._round_robin_uninspected):
        assert robin._credits.keys() <= {"a"}


class Astray:
    """Sends some requests of a balancer elsewhere, as another version of it might: each request has its way.

    `None` is the balancer's own, "refuse" finds no room, "choose" is a node without any fallback, else it is a node, by
    the fallback where that is due. Nobody falls back who would not.
    """

    def __init__(self, one: JournaledBalancer, ways: list[str | None]) -> None:
        self.request_ids: set[str] = set()
        self._known: set[str] = set()
        self._ways = cycle(ways)
        self._way: str | None = None
        self._one = one
        self._own = one._chooser.find
        setattr(one._chooser, "find", self._find)  # noqa: B010
        for robin in (one._round_robin, one._round_robin_uninspected):
            setattr(robin, "peek", self._peek(robin.peek))  # noqa: B010
        own = one.route_uninspected

        def uninspected(request_id: str, *arguments: Any, **named: Any) -> Any:
            self._way = next(self._ways)
            self.request_ids |= {request_id} if self._way is not None else set()
            return own(request_id, *arguments, **named)

        setattr(one, "route_uninspected", uninspected)  # noqa: B010

    def _find(self, request: InferenceRequest, policy: RoutingPolicy, standing: Standing, now_s: float) -> Found:
        found = self._own(request, policy, standing, now_s)
        request_id = request.request_id
        if request_id in self._known and self._one._admission.queue.get(request_id) is None:
            return found  # it is turned away, and others with it are told the same
        self._known.add(request_id)
        way = self._way = next(self._ways)
        if way is None:
            return found
        self.request_ids.add(request_id)
        verdict = found.verdict
        if way == "refuse":
            return replace(found, verdict=replace(verdict, outcome=Refused(Refusal.OVERLOADED, "astray", 1)))
        members = {view.snapshot.node_id: view.snapshot for view in self._one.views()}
        to = members.get(max(members, default="") if way == "choose" else way)
        if to is None or (isinstance(verdict.outcome, FallBack) and way != "choose"):
            return found
        return replace(found, verdict=replace(verdict, outcome=Chosen(to.node_id, to.host, "astray")))

    def _peek(self, own: Any) -> Any:
        def peek(members: list[NodeView]) -> NodeView:
            picked: NodeView = own(members)
            return next((member for member in members if member.snapshot.node_id == self._way), picked)

        return peek


WAYS = st.lists(st.sampled_from([None, None, None, "refuse", "choose", *NODES]), min_size=1, max_size=8)
STALE: list[Call] = [*FLEET, ("wait", {"seconds": 7.0})]
TURNS: list[Call] = routes(12, policy=RoutingPolicy(strategy="round-robin"))
UNINSPECTED: list[Call] = [("uninspected", {"trace_id": ""})] * 12


@example(TURNS, ["c", None, "a", "refuse", None])
@example(STALE + TURNS, ["c", None, "a", "refuse", "choose", None])
@example(UNINSPECTED, ["c", None, "a", None, None])
@given(LIVES, WAYS)
def test_decisions_that_went_another_way_spoil_no_other(
    tmp_path_factory: pytest.TempPathFactory, life: list[Call], ways: list[str | None]
) -> None:
    path = tmp_path_factory.mktemp("replay") / "j"
    one = journaled(path)
    astray = Astray(one, ways)
    live(one, FLEET + life)
    close(one)
    with followers() as made:
        found = replayed(path)
    (again,) = made
    assert found.different <= 2 * len(astray.request_ids), "one that waits is decided about twice"
    assert found.identical == found.decisions - found.different
    assert {difference.request_id for difference in found.differences} <= astray.request_ids
    assert state_of(again) == state_of(one)


@given(LIVES, st.sampled_from(sorted(STRATEGIES)))
def test_another_policy_beside_the_recorded_ones_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, life: list[Call], strategy: str
) -> None:
    path = tmp_path_factory.mktemp("replay") / "j"
    write(path, FLEET + life)
    with followers() as made:
        beside = replayed(path, Other(strategy))
        alone = replayed(path)
    assert (beside.identical, beside.different) == (alone.identical, 0)
    assert state_of(made[0]) == state_of(made[1])


def test_a_decision_that_raises_spoils_no_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, FLEET + TURNS)
    own = Chooser.find

    def broken(self: Chooser, request: InferenceRequest, *rest: Any) -> Found:
        if request.request_id == "r5":
            raise ZeroDivisionError
        return own(self, request, *rest)

    monkeypatch.setattr(Chooser, "find", broken)
    found = replayed(path)
    assert (found.identical, found.different) == (11, 1)
    assert [difference.request_id for difference in found.differences] == ["r5"]
