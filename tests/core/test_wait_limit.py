"""The objective for the first token: who would wait for too much of it on the node that is chosen does not go there."""

from math import ceil, floor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from extproc.core.admissionsettings import PriorityClass
from extproc.core.cost import STRATEGIES
from extproc.core.decision import Chosen, Queued, Refusal, Refused
from extproc.core.fleetparts import RATES_KNOWN_S
from extproc.core.loads import prefill_tokens_ahead
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.router import ALONE, Known, Standing, decide
from extproc.core.snapshot import NodeView, OwnLoad
from tests.core.fleet import NOW_S, SETTINGS, request, view
from tests.core.test_router_properties import FLEETS, KNOWN, REQUESTS, sensible
from tests.core.waiters import Crowd, models

SECOND = 8000
"""Tokens that the nodes of these tests compute in one."""
TTFT = RoutingPolicy(ttft_s=2.0, wait_fraction=0.5)
"""Half of it may be waited for: a second."""


def busy(node_id: str, tokens: int, **changes: Any) -> NodeView:
    """A node with so many prompt tokens ahead."""
    return view(node_id, OwnLoad(prefill_tokens=tokens), **changes)


def outcome(nodes: list[NodeView], policy: RoutingPolicy = TTFT, standing: Standing = ALONE, **known: Any) -> Any:
    return decide(request(), nodes, policy, SETTINGS, Known(**known), NOW_S, standing).outcome


@pytest.mark.parametrize(
    ("ttft_s", "fraction", "share", "most_s"),
    [(2.0, 0.5, 1.0, 1.0), (2.0, 0.5, 0.5, 0.5), (1.0, 0.25, 1.0, 0.25), (0.5, 10, 1.0, 5.0), (3600, 0.0, 1.0, 0.0)],
)
def test_so_much_prompt_work_may_be_before_it_and_no_more(
    ttft_s: float, fraction: float, share: float, most_s: float
) -> None:
    policy = RoutingPolicy(ttft_s=ttft_s, wait_fraction=fraction)
    at_most = int(most_s * SECOND)
    assert isinstance(outcome([busy("a", at_most)], policy, Standing(share)), Chosen)
    refused = outcome([busy("a", at_most + 1)], policy, Standing(share))
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.OVERLOADED


def test_without_an_objective_there_is_no_such_limit() -> None:
    assert isinstance(outcome([busy("a", 10**9)], RoutingPolicy()), Chosen)
    assert isinstance(outcome([busy("a", 10**9)], RoutingPolicy(), Standing(0.5)), Chosen)


def test_until_rates_are_known_nobody_is_refused_for_them() -> None:
    assert isinstance(outcome([busy("a", 10**9)], rates_known=False), Chosen)


def test_it_is_the_chosen_node_that_counts() -> None:
    """The other has a shorter queue, but many whom the request would hold up: it is no better place for it."""
    nodes = [busy("a", 10_000), busy("b", 0, requests_running=2000)]
    assert outcome(nodes, RoutingPolicy()).node_id == "a"
    assert isinstance(outcome(nodes), Refused)


def test_a_full_node_is_passed_over_before_anything_is_asked_of_its_queue() -> None:
    nodes = [busy("full", 0, requests_waiting=100), busy("long", 9000), busy("longer", 9001)]
    assert "wait 1.12 s on the best node" in outcome(nodes).message
    assert outcome([*nodes[:2], busy("free", 8000, requests_running=1)]).node_id == "free"


def test_the_refusal_says_why_and_when_to_come_again() -> None:
    verdict = decide(request(), [busy("a", 5 * SECOND), busy("b", 9 * SECOND)], TTFT, SETTINGS, Known(), NOW_S)
    assert verdict.outcome == Refused(
        Refusal.OVERLOADED,
        "The model `llama` is overloaded: it would wait 5.00 s on the best node, and may wait 1.00 s. Retry in 4 s.",
        4,
    )
    assert [(one.node_id, one.excluded) for one in verdict.candidates] == [
        ("a", "prompt work of 5.0 s before it"),
        ("b", None),
    ]
    assert verdict.uncached_tokens is None


@pytest.mark.parametrize(("tokens", "retry_after_s"), [(8001, 1), (16_001, 2), (10**9, 60)])
def test_when_to_come_again_is_bounded(tokens: int, retry_after_s: int) -> None:
    assert outcome([busy("a", tokens)]).retry_after_s == retry_after_s


@settings(max_examples=200)
@given(
    nodes=FLEETS,
    asked=REQUESTS,
    known=KNOWN,
    strategy=st.sampled_from(sorted(STRATEGIES)),
    ttft_s=st.floats(0.001, 3600),
    fraction=st.floats(0, 10),
    share=st.floats(0.1, 1),
    rates_known=st.booleans(),
)
def test_the_objective_refuses_who_would_wait_too_long_and_changes_nothing_else(
    nodes: list[NodeView],
    asked: InferenceRequest,
    known: Known,
    strategy: str,
    ttft_s: float,
    fraction: float,
    share: float,
    rates_known: bool,
) -> None:
    known = structs.replace(sensible(asked, known), rates_known=rates_known)
    standing = Standing(share)
    plain = RoutingPolicy(strategy=strategy)
    wanting = RoutingPolicy(strategy=strategy, ttft_s=ttft_s, wait_fraction=fraction)
    without = decide(asked, nodes, plain, SETTINGS, known, NOW_S, standing)
    verdict = decide(asked, nodes, wanting, SETTINGS, known, NOW_S, standing)
    match without.outcome:
        case Chosen(node_id=node_id) if rates_known:
            (chosen,) = (one for one in nodes if one.snapshot.node_id == node_id)
            wait_s, most_s = wait_of(chosen), fraction * ttft_s * share
            if wait_s <= most_s:
                assert verdict == without
            else:
                refused = verdict.outcome
                assert isinstance(refused, Refused)
                assert refused.refusal is Refusal.OVERLOADED
                assert refused.retry_after_s == min(60, max(1, ceil(wait_s - most_s)))
                assert [one.node_id for one in verdict.candidates] == [one.node_id for one in without.candidates]
        case _:
            assert verdict == without


def wait_of(node: NodeView) -> float:
    """Seconds of prompt work, at the rate of a node that may be starting."""
    ready_s = (NOW_S - node.ready_since_s) / SETTINGS.nodes.slow_start_s
    rate = node.learned.prefill_tokens_per_s * (max(0.25, floor(8 * ready_s) / 8) if ready_s < 1 else 1.0)
    return prefill_tokens_ahead(node, NOW_S) / rate


class Learning(Crowd):
    """A fleet of one node, which has told how it computed prompts for so many busy seconds."""

    def __init__(self, busy_s: float, **settings: Any) -> None:
        super().__init__({"high": PriorityClass(queue_ms_max=5000), "low": PriorityClass()}, **settings)
        # Requests that waited as long as the time that passed: busy for half of it.
        for passed_s, total_s in [(0.0, 0.0), (2 * busy_s, 2 * busy_s)]:
            self.now_s += passed_s
            self.tells(int(total_s * SECOND / 2), total_s)

    def tells(self, tokens: int, seconds: float) -> None:
        served = models(length_tokens=None)
        self.node("a", 99, models=served, prefill_tokens_total=tokens, prefill_seconds_total=seconds)


@pytest.mark.parametrize(("busy_s", "known"), [(RATES_KNOWN_S, True), (RATES_KNOWN_S - 0.1, False)])
def test_rates_are_known_after_ten_seconds_of_prompts(busy_s: float, known: bool) -> None:
    one = Learning(busy_s)
    assert isinstance(one.comes("r1", policy=TTFT, tokens=100_000), Chosen), "nothing is before it"
    assert isinstance(one.comes("r2", policy=TTFT), Refused if known else Chosen)


def test_rates_that_are_forgotten_refuse_nobody() -> None:
    """What was known came from a node that has left."""
    one = Learning(20)
    one.leaves("a")
    one.node("b", 99, models=models(length_tokens=None))
    assert isinstance(one.comes("r1", policy=TTFT, tokens=100_000), Chosen)
    assert isinstance(one.comes("r2", policy=TTFT), Chosen)


def test_who_may_wait_goes_when_enough_is_computed() -> None:
    """As the ledger sees it: its tokens shrink with the time, and are none when the first of the answer comes."""
    one = Learning(20)
    one.comes("r1", policy=TTFT, tokens=100_000)
    told = one.comes("r2", "high", policy=TTFT)
    assert isinstance(told, Queued)
    assert "on the best node" in told.reason
    assert one.admitted() == []
    one.now_s += 0.5
    one.rooms = 0
    one.balancer.first_token("r1", one.now_s)
    assert one.rooms == 1
    assert one.admitted() == ["r2 to a"]


def test_who_waits_for_its_objective_holds_up_lower_classes() -> None:
    one = Learning(20)
    one.comes("r1", policy=TTFT, tokens=100_000)
    one.waits("r2", priority="high", policy=TTFT)
    refused = one.comes("r3")
    assert isinstance(refused, Refused)
    assert "others wait for every node" in refused.message
    assert isinstance(one.comes("r4", "high"), Queued), "its own objective may be another, but r2 came before"
