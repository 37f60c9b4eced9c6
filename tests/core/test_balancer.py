from collections import Counter

import pytest
from msgspec.structs import replace

from extproc.core.fleetstate import BOOT_S_MIN
from extproc.core.request import TokenCount
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NO_LOAD, NodeLeft, NodeReported, ServedModel
from tests.core.fleet import LOAD_SCORE, MODEL, NOW_S, POLICY, balancer, counts_of, node_of, request, snapshot


def test_requests_between_two_snapshots_do_not_all_go_to_the_same_node() -> None:
    """The ledger counts a request in the moment of choosing, so the next choice sees it."""
    fleet = balancer(snapshot("a"), snapshot("b"), snapshot("c"))
    served = Counter(node_of(fleet.route(request(f"r{number}"), POLICY, NOW_S)) for number in range(30))
    assert set(served.values()) == {10}


def test_finishing_gives_the_place_back() -> None:
    fleet = balancer(snapshot("a"), snapshot("b", kv_usage=0.01))
    first = fleet.route(request("r1"), LOAD_SCORE, NOW_S)
    assert node_of(first) == "a"
    assert node_of(fleet.route(request("r2"), LOAD_SCORE, NOW_S)) == "b"
    fleet.finish("r1", NOW_S)
    fleet.finish("r1", NOW_S)
    fleet.finish("nobody", NOW_S)
    assert fleet.requests_open == 1
    assert node_of(fleet.route(request("r3"), LOAD_SCORE, NOW_S)) == "a"


def test_a_snapshot_takes_over_what_it_shows() -> None:
    fleet = balancer(snapshot("a"))
    fleet.route(request("r1", tokens=160), POLICY, NOW_S)
    (view,) = fleet.views()
    assert (view.own.sequences_open, view.own.sequences_unseen, view.own.kv_blocks_unseen) == (1, 1, 10)
    fleet.observe(NodeReported(snapshot("a", sequence=2, sample_age_s=0.5, requests_running=1)), NOW_S + 1)
    (view,) = fleet.views()
    assert (view.own.sequences_open, view.own.sequences_unseen, view.own.kv_blocks_unseen) == (1, 0, 0)
    assert view.in_flight == 1


def test_a_snapshot_that_says_what_the_one_before_said_takes_nothing_over() -> None:
    """An engine tells of its last finished step: of a long prompt that reaches an idle one nothing for a second."""
    fleet = balancer(snapshot("a"))
    fleet.route(request("r1", tokens=8000), POLICY, NOW_S)
    for sequence in (2, 3):
        fleet.observe(NodeReported(snapshot("a", sequence=sequence)), NOW_S + sequence)
        (view,) = fleet.views()
        assert (view.in_flight, view.prefill_tokens_pending) == (1, 8000)
    fleet.observe(NodeReported(snapshot("a", sequence=4, first_tokens_total=1)), NOW_S + 4)
    (view,) = fleet.views()
    assert (view.in_flight, view.prefill_tokens_pending) == (1, 0), "its first token came; its stream is open"


def test_a_snapshot_of_another_boot_says_something_new_whatever_it_says() -> None:
    fleet = balancer(snapshot("a"))
    fleet.route(request("r1"), POLICY, NOW_S)
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), NOW_S + BOOT_S_MIN)
    (view,) = fleet.views()
    assert (counts_of(view.own), view.in_flight) == (NO_LOAD, 0)


def test_the_work_at_a_node_is_its_samples_and_ours_since() -> None:
    """By hand: 5 in flight at the sample, 3 of them pending, one of these ours; then two more of ours."""
    fleet = balancer(snapshot("a"))
    fleet.route(request("r1", tokens=50), POLICY, NOW_S)
    told = snapshot("a", sequence=2, requests_running=4, requests_waiting=1, pending_prefills=3, sample_age_s=0.1)
    fleet.observe(NodeReported(told), NOW_S + 1)
    fleet.route(request("r2", tokens=300), POLICY, NOW_S + 1)
    fleet.route(request("r3", tokens=40, sequences=4), POLICY, NOW_S + 1)
    (view,) = fleet.views()
    assert view.in_flight == 5 + 1 + 4
    assert view.prefill_tokens_pending == 50 + 300 + 40 + 2 * 1000, "others' prompts are taken to have 1000 tokens"
    fleet.first_token("r2", NOW_S + 1.5)
    fleet.finish("r1", NOW_S + 2)
    (view,) = fleet.views()
    assert (view.in_flight, view.prefill_tokens_pending) == (9, 40 + 2 * 1000)


@pytest.mark.parametrize(("tokens", "blocks"), [(8192, 512), (8193, 0), (16_001, 0)])
def test_what_the_engine_will_refuse_takes_no_blocks(tokens: int, blocks: int) -> None:
    """Else a few prompts that no node can hold would make the fleet look full. The context has 8192 tokens."""
    fleet = balancer(snapshot("a"))
    fleet.route(request("r1", tokens, exact=False), POLICY, NOW_S)
    (view,) = fleet.views()
    assert (view.own.sequences_unseen, view.own.kv_blocks_unseen) == (1, blocks)


def test_what_exceeds_the_whole_cache_takes_no_blocks() -> None:
    """The cache has 1000 blocks: a prompt that just fits takes them all."""
    fleet = balancer(snapshot("a", models=(ServedModel(MODEL),)))
    for number, (tokens, blocks) in enumerate([(16_001, 0), (16_000, 1000)]):
        fleet.route(request(f"r{number}", tokens, exact=False), POLICY, NOW_S)
        (view,) = fleet.views()
        assert view.own.kv_blocks_unseen == blocks


def test_a_count_that_comes_late_puts_the_ledger_right() -> None:
    fleet = balancer(snapshot("a"))
    estimated = request("r1", 1600, exact=False)
    fleet.route(estimated, POLICY, NOW_S)
    fleet.recount(replace(estimated, prompt=TokenCount(160, exact=True)))
    (view,) = fleet.views()
    assert (view.own.sequences_open, view.own.sequences_unseen, view.own.kv_blocks_unseen) == (1, 1, 10)
    assert view.own.prefill_tokens == 160
    fleet.recount(replace(estimated, prompt=TokenCount(9000, exact=True)))
    (view,) = fleet.views()
    assert view.own.kv_blocks_unseen == 0, "the engine will refuse it"


def test_a_count_that_comes_too_late_changes_nothing() -> None:
    fleet = balancer(snapshot("a"))
    estimated = request("r1", 1600, exact=False)
    fleet.recount(estimated)
    assert fleet.requests_open == 0
    fleet.route(estimated, POLICY, NOW_S)
    fleet.observe(NodeLeft("a", "boot-1"), NOW_S)
    fleet.recount(estimated)
    fleet.finish("r1", NOW_S)
    fleet.recount(estimated)
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), NOW_S)
    (view,) = fleet.views()
    assert counts_of(view.own) == NO_LOAD


def test_a_refused_snapshot_changes_nothing() -> None:
    fleet = balancer(snapshot("a", sequence=3))
    fleet.route(request("r1"), POLICY, NOW_S)
    fleet.observe(NodeReported(snapshot("a", sequence=2)), NOW_S + 1)
    (view,) = fleet.views()
    assert view.own.sequences_unseen == 1
    assert view.sampled_at_s == NOW_S


def test_decisions_are_kept_newest_first_and_bounded() -> None:
    fleet = balancer(snapshot("a"), settings=BalancerSettings(decisions_kept_max=3))
    for number in range(5):
        fleet.route(request(f"r{number}"), POLICY, NOW_S)
    assert [decision.request_id for decision in fleet.decisions(10)] == ["r4", "r3", "r2"]
    assert [decision.request_id for decision in fleet.decisions(1)] == ["r4"]
    assert fleet.decisions(0) == fleet.decisions(-1) == []
