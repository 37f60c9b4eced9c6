"""What is over leaves nothing behind: no node that is gone, and no request."""

import gc
from collections.abc import Iterator

import pytest

from extproc.core.balancer import Balancer
from extproc.core.ejection import FAILED_KEPT
from extproc.core.outcome import Answered, Ending
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeLeft, NodeReported, ServedModel
from tests.core.fleet import NOW_S, POLICY, balancer, node_of, request, snapshot

NONE_KEPT = BalancerSettings(decisions_kept_max=0)
GONE = "the node that is gone"


def strings_of(root: object) -> Iterator[str]:
    """Every string that the object holds, however deep; classes and modules are not entered."""
    seen, left = set[int](), [root]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type) or type(one).__name__ in {"module", "function", "builtin_function"}:
            continue
        seen.add(id(one))
        if isinstance(one, str):
            yield one
        left.extend(gc.get_referents(one))
        if isinstance(one, dict):
            left.extend(one)  # the collector leaves out keys that are strings


def remains(fleet: Balancer, word: str) -> list[str]:
    return [one for one in strings_of(fleet) if word in one]


def used() -> Balancer:
    """A balancer whose nodes did all that leaves traces: prompts, failures, rates, turns, polls, open requests."""
    fleet = balancer(snapshot("stays"), settings=NONE_KEPT)
    gone = snapshot(GONE, host="10.1.1.1:1", prefill_tokens_total=0, prefill_seconds_total=0.0)
    fleet.observe(NodeReported(gone), NOW_S)
    for number in range(20):
        one = request(f"request {number}", 500, prompt_blocks=tuple(range(number, number + 5)))
        fleet.route(one, POLICY, NOW_S)
        fleet.route_uninspected(f"poll {number}", "", NOW_S)
        if number % 2:
            fleet.first_token(f"request {number}", NOW_S)
    fleet.answered(Answered("request 0", Ending.UNREACHABLE, "10.1.1.1:1"), NOW_S)
    stale_s = NOW_S + NONE_KEPT.nodes.fresh_s
    fleet.route(request("request 20"), POLICY, stale_s)
    fleet.observe(NodeReported(snapshot(GONE, host="10.1.1.2:1", boot_id="boot-2", models=None)), stale_s)
    for number in range(21, 40):
        fleet.route(request(f"request {number}"), POLICY, stale_s)
    return fleet


def finish_all(fleet: Balancer, ending: Ending = Ending.UNREACHABLE) -> None:
    for number in range(40):
        fleet.answered(Answered(f"request {number}", ending, over=False), NOW_S + 10)
        fleet.finish(f"request {number}", NOW_S + 10)


def leave(fleet: Balancer) -> None:
    fleet.observe(NodeLeft(GONE, "boot-2"), NOW_S + 10)


def fall_silent(fleet: Balancer) -> None:
    later_s = NOW_S + 10 + NONE_KEPT.nodes.member_s
    fleet.observe(NodeReported(snapshot("stays", sequence=2)), later_s)
    assert fleet.tick(later_s) == [GONE]


def test_the_walk_finds_what_is_there() -> None:
    fleet = used()
    assert len(remains(fleet, GONE)) > 0
    assert len(remains(fleet, "request ")) > 0


@pytest.mark.parametrize("goes", [leave, fall_silent])
@pytest.mark.parametrize("finished_first", [False, True])
def test_of_a_node_that_is_gone_and_whose_requests_are_over_nothing_remains(goes: object, finished_first: bool) -> None:
    """Not even where the resets of its last requests are told after its goodbye."""
    fleet = used()
    assert callable(goes)
    if finished_first:
        finish_all(fleet)
    goes(fleet)
    if not finished_first:
        assert remains(fleet, GONE), "its open requests"
        finish_all(fleet)
    assert remains(fleet, GONE) == []
    assert remains(fleet, "10.1.1.") == []


def told_late(fleet: Balancer) -> None:
    """The samples that show the end of all."""
    for name, boot in (("stays", "boot-1"), (GONE, "boot-2")):
        late = snapshot(name, sequence=9, boot_id=boot, first_tokens_total=40)
        fleet.observe(NodeReported(late), NOW_S + 20)
    assert fleet.requests_open == 0


def test_of_requests_that_are_over_nothing_remains_once_samples_have_come() -> None:
    fleet = used()
    finish_all(fleet, Ending.SERVED)
    told_late(fleet)
    trials = set(remains(fleet, "request ")) - {"request 0"}
    assert len(trials) <= len(fleet.out_until_s), "the request by which a node is on trial"
    assert node_of(fleet.route(request("next"), POLICY, NOW_S + 60))


def test_of_requests_that_failed_a_few_remain_until_their_node_begins_anew() -> None:
    """Their failure may be told again."""
    fleet = used()
    finish_all(fleet)
    told_late(fleet)
    assert len(set(remains(fleet, "request "))) <= 2 * FAILED_KEPT + len(fleet.out_until_s)
    for name in ("stays", GONE):
        fleet.observe(NodeReported(snapshot(name, boot_id="boot-3")), NOW_S + 61)
    assert remains(fleet, "request ") == []


def test_models_of_departed_nodes_are_remembered_for_a_while_only() -> None:
    fleet = balancer(snapshot("stays"), settings=NONE_KEPT)
    fleet.observe(NodeReported(snapshot(GONE, models=(ServedModel("rare model"),))), NOW_S)
    fleet.observe(NodeLeft(GONE, "boot-1"), NOW_S)
    assert remains(fleet, "rare model")
    fleet.tick(NOW_S + NONE_KEPT.nodes.member_s)
    assert remains(fleet, "rare model") == []
