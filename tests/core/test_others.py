"""Nodes that are named beside the chosen one, for Envoy to try where it cannot have that."""

from dataclasses import replace as changed
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from extproc.core.decision import Chosen, Outcome
from extproc.core.policy import DESTINATIONS_MAX, RoutingPolicy
from extproc.core.room import Limits
from extproc.core.snapshot import Snapshot
from tests.core.fleet import NOW_S, SETTINGS, balancer, request, snapshot

NAMES = "abcde"
HOSTS = {name: snapshot(name).host for name in NAMES}
LISTED: dict[str, Any] = {"strategy": "load-score", "destination": "override-host"}


def chosen(outcome: Outcome) -> Chosen:
    assert isinstance(outcome, Chosen), outcome
    return outcome


def fleet(**usage: float) -> list[Snapshot]:
    """Nodes in the order of their costs."""
    return [snapshot(name, kv_usage=used) for name, used in usage.items()]


def names(one: Chosen) -> str:
    return "".join(name for host in (one.host, *one.others) for name in NAMES if HOSTS[name] == host)


@pytest.mark.parametrize(("most", "told"), [(1, "b"), (2, "bd"), (3, "bda"), (16, "bdace")])
def test_they_stand_in_the_order_of_their_costs_and_are_bounded(most: int, told: str) -> None:
    policy = RoutingPolicy(**LISTED, destinations_max=most)
    one = balancer(*fleet(a=0.3, b=0.1, c=0.4, d=0.2, e=0.5))
    assert names(chosen(one.route(request(), policy, NOW_S).outcome)) == told


@pytest.mark.parametrize("destination", ["original-dst", "original-dst-metadata"])
def test_where_envoy_takes_one_node_there_are_none(destination: str) -> None:
    policy = RoutingPolicy.model_validate({"destination": destination, "destinations_max": 16})
    one = balancer(*fleet(a=0.1, b=0.2))
    for at_s in (NOW_S, NOW_S + SETTINGS.nodes.stale_s):
        assert chosen(one.route(request(f"r{at_s}"), policy, at_s).outcome).others == ()
        assert chosen(one.route_uninspected("u", "", at_s, policy).outcome).others == ()


def test_full_nodes_are_none_and_those_short_of_blocks_come_last() -> None:
    policy = RoutingPolicy(**LISTED, destinations_max=16)
    nodes = fleet(a=0.1, b=0.95, c=0.3, d=0.2, e=0.4)
    nodes[0] = changed(nodes[0], kv_blocks_available=0)
    nodes[3] = changed(nodes[3], kv_blocks_available=0)
    assert names(chosen(balancer(*nodes).route(request(), policy, NOW_S).outcome)) == "cead"
    strict = RoutingPolicy(**LISTED, destinations_max=16, limits=Limits(kv_blocks_required=True))
    assert names(chosen(balancer(*nodes).route(request(), strict, NOW_S).outcome)) == "ce"


def test_they_are_no_fewer_than_decisions_keep_candidates() -> None:
    settings = SETTINGS.model_copy(update={"candidates_kept_max": 1})
    policy = RoutingPolicy(**LISTED, destinations_max=5)
    one = balancer(*fleet(a=0.1, b=0.2, c=0.3, d=0.4, e=0.5), settings=settings)
    assert names(chosen(one.route(request(), policy, NOW_S).outcome)) == "abcde"


def test_they_stay_in_the_subset() -> None:
    policy = RoutingPolicy(**LISTED)
    one = balancer(*fleet(a=0.1, b=0.2, c=0.3))
    asked = request(subset=tuple(sorted((HOSTS["a"], HOSTS["c"]))))
    assert names(chosen(one.route(asked, policy, NOW_S).outcome)) == "ac"


@given(st.integers(1, DESTINATIONS_MAX), st.text(min_size=1, max_size=4))
def test_a_round_robin_names_other_members(most: int, request_id: str) -> None:
    policy = RoutingPolicy(**LISTED, destinations_max=most)
    one = balancer(*(snapshot(name) for name in NAMES))
    stale_s = NOW_S + SETTINGS.nodes.stale_s
    for outcome in (
        one.route(request(request_id), policy, stale_s).outcome,
        one.route(request(request_id + "2"), RoutingPolicy(**LISTED, destinations_max=most, canary=0), NOW_S).outcome,
        one.route_uninspected(request_id, "", NOW_S, policy).outcome,
    ):
        told = names(chosen(outcome))
        assert chosen(outcome).fallback
        assert len(told) == len(set(told)) == min(most, len(NAMES))


def test_the_load_of_one_that_fails_falls_on_all_others() -> None:
    policy = RoutingPolicy(**LISTED, destinations_max=2, canary=0)
    one = balancer(*(snapshot(name) for name in "abcd"))
    seconds: dict[str, set[str]] = {}
    for number in range(200):
        told = names(chosen(one.route(request(f"r{number}"), policy, NOW_S).outcome))
        seconds.setdefault(told[0], set()).add(told[1:])
    assert seconds == {name: set("abcd") - {name} for name in "abcd"}


def test_naming_them_changes_no_choice() -> None:
    plain, listed = (balancer(*fleet(a=0.3, b=0.3, c=0.3, d=0.1)) for _ in range(2))
    for number in range(50):
        asked = request(f"r{number}")
        one = chosen(plain.route(asked, RoutingPolicy(strategy="load-score"), NOW_S).outcome)
        assert replace(chosen(listed.route(asked, RoutingPolicy(**LISTED), NOW_S).outcome), others=()) == one
