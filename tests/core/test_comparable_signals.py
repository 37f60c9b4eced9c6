"""What counts where one of the candidates hides a signal: each comparison by itself."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from extproc.core import hidden
from extproc.core.comparable import TELLING_SHARE_MIN, judged, prefill_rates, tokens_ahead, uncached_tokens
from extproc.core.decision import Chosen, Refused
from extproc.core.policy import RoutingPolicy
from extproc.core.room import Limits, cache_full, room_of
from extproc.core.router import ALONE, Known, Standing, Verdict, decide
from extproc.core.snapshot import ALWAYS, Learned, NodeView, OwnLoad, Snapshot
from tests.core.fleet import NOW_S, SETTINGS, request, snapshot, view


def chosen_of(nodes: list[NodeView], request_id: str = "r", standing: Standing = ALONE) -> str | None:
    verdict = verdict_of(nodes, request_id, standing)
    return verdict.outcome.node_id if isinstance(verdict.outcome, Chosen) else None


def verdict_of(nodes: list[NodeView], request_id: str = "r", standing: Standing = ALONE) -> Verdict:
    policy = RoutingPolicy(strategy="least-inflight")
    return decide(request(request_id, 10), nodes, policy, SETTINGS, Known(), NOW_S, standing)


def hiding_of(one: Snapshot) -> int:
    return hidden.hides_of(one)


@pytest.mark.parametrize(
    ("signal", "bits"),
    [
        ("requests_running", hidden.REQUESTS),
        ("requests_waiting", hidden.REQUESTS | hidden.QUEUE),
        ("pending_prefills", hidden.PENDING),
        ("prefill_tokens_total", hidden.RATE),
        ("prefill_seconds_total", hidden.RATE),
        ("prefix_hits_total", hidden.HITS),
        ("kv_usage", hidden.KV_USAGE),
        ("kv_blocks_total", hidden.KV_SIZE),
        ("kv_block_size_tokens", hidden.KV_SIZE | hidden.KV_BLOCKS),
        ("kv_blocks_available", hidden.KV_BLOCKS),
        ("gpu_utilization", 0),
        ("first_tokens_total", 0),
    ],
)
def test_each_signal_that_decisions_compare_has_its_bit(signal: str, bits: int) -> None:
    whole = snapshot(prefill_tokens_total=1, prefill_seconds_total=1.0, prefix_hits_total=1, first_tokens_total=1)
    assert hiding_of(whole) == 0
    assert hiding_of(replace(whole, **{signal: None})) == bits  # type: ignore[arg-type]
    lacking: dict[str, Any] = {signal: None}
    assert view(**lacking).hides == hiding_of(snapshot(**lacking))


def full_at(limit: str, *told: float | None, required: bool = True) -> str | None:
    """Why all of these are full, or `None`: the limit counts for none of them."""
    changes: list[dict[str, Any]] = [{limit: value} for value in told]
    nodes = [view(f"n{place}", **change) for place, change in enumerate(changes)]
    room = room_of(Limits(kv_blocks_required=required), "load-score", None, 1.0)
    return judged(room, nodes, [100] * len(nodes), 0, hidden.some_hide(nodes)).full


@pytest.mark.parametrize(
    ("limit", "full", "free"),
    [("requests_waiting", 100, 99), ("kv_usage", 0.9, 0.8), ("kv_blocks_available", 6, 7)],
)
def test_a_limit_that_not_all_tell_is_one_verdict_for_all(limit: str, full: float, free: float) -> None:
    assert TELLING_SHARE_MIN == 0.5
    assert full_at(limit, full, None)
    assert full_at(limit, full, full, None)
    assert full_at(limit, full, free, None) is None
    assert full_at(limit, full, None, None) is None, "most of them may have room"
    assert full_at(limit, full, full) is None, "each for itself"
    assert full_at(limit, None, None) is None
    if limit == "kv_blocks_available":
        assert full_at(limit, full, None, required=False) is None, "the engine queues it"


def test_who_is_full_is_no_more_so_than_one_that_does_not_tell() -> None:
    """Of three one has room; which of the others has is not known."""
    nodes = [view("a", requests_waiting=500), view("b", requests_waiting=None), view("c")]
    assert {chosen_of(nodes, f"r{n}") for n in range(40)} == {"a", "b", "c"}
    assert isinstance(verdict_of(nodes[:2]).outcome, Refused)


def test_what_we_sent_is_ahead_at_all_nodes_where_one_hides_its_pending_prompts() -> None:
    own = OwnLoad(
        sequences_open=2, prefill_tokens=7000, tokens_unstarted=5000, sent_tokens=4000.0, sent_since_s=NOW_S - 0.25
    )
    told, hides = view("a", own, pending_prefills=50), view("b", own, pending_prefills=None)

    def ahead(*nodes: NodeView) -> list[float]:
        return tokens_ahead(nodes, hidden.some_hide(nodes), 8000.0, NOW_S)

    assert ahead(told, told) == [7000, 7000]
    assert ahead(told, hides) == [2000, 2000]
    assert ahead(hides, hides) == [7000, 7000], "all tell their queue"
    assert ahead(hides, view("c", own, pending_prefills=None, requests_waiting=None)) == [2000, 2000]
    fewer = structs.replace(own, tokens_unstarted=1500)
    assert ahead(view("a", fewer), hides) == [1500, 2000], "no more than has no first token"
    told_firsts = structs.replace(own, sent_since_s=ALWAYS)
    assert ahead(view("a", told_firsts), hides) == [5000, 2000], "first tokens are told as they come"
    later = structs.replace(own, sent_since_s=NOW_S + 1)
    assert ahead(view("a", later), hides) == [4000, 2000], "it does not grow"


def test_the_work_of_a_node_of_unknown_rate_does_not_shrink() -> None:
    own = OwnLoad(prefill_tokens=4000, work_tokens=4000.0, work_since_s=NOW_S - 0.25)
    totals: dict[str, Any] = {"prefill_tokens_total": 1, "prefill_seconds_total": 1.0}
    nodes = [view("a", own, **totals), view("b", own)]
    assert tokens_ahead(nodes, hidden.some_hide(nodes), 8000.0, NOW_S) == [2000, 4000]
    assert tokens_ahead(nodes[1:], hidden.some_hide(nodes[1:]), 8000.0, NOW_S) == [2000]


def test_waiting_requests_claim_the_same_nodes_as_ever() -> None:
    nodes = [view("a", requests_running=None), view("b")]
    assert chosen_of(nodes, standing=Standing(claimed=frozenset({"b"}))) == "a"


@pytest.mark.parametrize(
    ("limit", "full", "free", "required"),
    [
        ("requests_waiting", 500, 0, False),
        ("kv_usage", 0.95, 0.1, False),
        ("kv_blocks_available", 0, 900, False),
        ("kv_blocks_available", 0, 900, True),
    ],
)
def test_of_one_that_is_full_and_one_that_does_not_tell_neither_is_left_out(
    limit: str, full: float, free: float, required: bool
) -> None:
    policy = RoutingPolicy(strategy="random", limits=Limits(kv_usage_max=0.9, kv_blocks_required=required))

    def served(*told: float | None) -> set[str]:
        changes: list[dict[str, Any]] = [{limit: value} for value in told]
        nodes = [view(name, **change) for name, change in zip("abc", changes, strict=False)]
        verdicts = (decide(request(f"r{n}", 10), nodes, policy, SETTINGS, Known(), NOW_S) for n in range(40))
        return {one.outcome.node_id for one in verdicts if isinstance(one.outcome, Chosen)}

    assert served(full, free, free) == {"b", "c"}
    assert served(full, None, free) == {"a", "b", "c"}
    assert served(full, full, None) == ({"a", "b", "c"} if limit == "kv_blocks_available" and not required else set())


def test_usage_is_compared_as_samples_show_it_where_one_hides_the_size_of_its_cache() -> None:
    """A limit that what we sent since would reach is reached by none of them, whoever tells how large its cache is."""
    sent = OwnLoad(kv_blocks_unseen=200)
    told, hides = view("a", sent, kv_usage=0.8), view("b", sent, kv_usage=0.8, kv_blocks_total=None)
    room = room_of(Limits(), "load-score", None, 1.0)
    for nodes, full in (([told, told], True), ([told, hides], False)):
        seen = judged(room, nodes, [10, 10], 0, hidden.some_hide(nodes))
        assert {cache_full(node, seen) for node in nodes} == {full}


def test_a_cache_of_which_nobody_tells_whether_it_hits_is_trusted_as_little_as_any() -> None:
    def uncached(*trusts: tuple[float, int | None], told: str = "", told_trust: float = 1.0) -> list[int]:
        nodes = [
            view(f"n{place}", learned=Learned(cache_trust=trust, told_trust=told_trust), prefix_hits_total=hits)
            for place, (trust, hits) in enumerate(trusts)
        ]
        cached = {node.snapshot.node_id: 96 for node in nodes[:2]}
        return uncached_tokens(request(tokens=100), nodes, cached, told, hidden.some_hide(nodes))

    assert uncached((0.25, 9), (1.0, 9), (1.0, 9)) == [76, 4, 100]
    assert uncached((0.25, 9), (1.0, None), (1.0, 9)) == [76, 76, 100]
    assert uncached((1.0, 9), (0.25, None), (0.5, 9)) == [4, 76, 100]
    assert uncached((0.25, None), (1.0, None)) == [76, 4], "nobody tells"
    assert uncached((0.25, 9), (1.0, None), told="n1") == [76, 4], "its blocks are known"
    assert uncached((1.0, 9), (1.0, 9), told="n1", told_trust=0.25) == [4, 76], "and doubted"
    assert uncached((1.0, 9), (1.0, None), told="n1", told_trust=0.25) == [4, 76]
    telling, hiding = (
        view(name, learned=Learned(told_trust=trust), prefix_hits_total=hits)
        for name, trust, hits in (("n0", 0.25, 9), ("n1", 1.0, None))
    )
    found = uncached_tokens(
        request(tokens=100), [telling, hiding], {"n1": 96}, {"n0", "n1"}, hidden.some_hide([telling, hiding])
    )
    assert found == [100, 76], "who hides its hits is none the better"


def test_a_node_of_unknown_rate_has_the_slowest_of_the_candidates() -> None:
    def rates(*nodes: tuple[float, int | None]) -> list[float]:
        views = [
            view(f"n{n}", learned=Learned(rate), prefill_tokens_total=total, prefill_seconds_total=1.0)
            for n, (rate, total) in enumerate(nodes)
        ]
        return prefill_rates(views, hidden.some_hide(views), SETTINGS.nodes, NOW_S)

    assert rates((9000, 1), (500, 1), (4000, None)) == [9000, 500, 500]
    assert rates((9000, 1), (5000, 1), (400, None)) == [9000, 5000, 400]
    assert rates((9000, None), (5000, None)) == [9000, 5000]
