"""A node that says it has nothing to do, while we hold streams of requests that it has not answered."""

from dataclasses import replace

import pytest

from extproc.core.balancer import Balancer
from extproc.core.snapshot import NodeReported
from tests.core.fleet import NOW_S, POLICY, balancer, node_of, request, snapshot


def claim(fleet: Balancer, second: int) -> None:
    """Both report: the liar that it is idle, and has just computed a lot; the other what it holds."""
    for view in list(fleet.views()):
        later = replace(view.snapshot, sequence=second + 2)
        if view.snapshot.node_id == "liar":
            later = replace(later, prefill_tokens_total=second * 100_000, prefill_seconds_total=second * 0.01)
        else:
            later = replace(later, requests_running=view.own.sequences_open, first_tokens_total=second)
        fleet.observe(NodeReported(later), NOW_S + second)


@pytest.mark.parametrize("lasts_s", [10, 60])
def test_who_says_that_it_is_idle_does_not_get_everything(lasts_s: int) -> None:
    """Answers take so long; the liar's rate is taken to be up to sixteen times the other's, which it may be."""
    fleet = balancer(snapshot("liar"), snapshot("other"))
    sent: list[str] = []
    for second in range(120):
        claim(fleet, second)
        for number in range(5):
            sent.append(node_of(fleet.route(request(f"r{second}-{number}"), POLICY, NOW_S + second)))
        if second >= lasts_s:
            for number in range(5):
                fleet.finish(f"r{second - lasts_s}-{number}", NOW_S + second)
    (liar,) = (one for one in fleet.views() if one.snapshot.node_id == "liar")
    assert liar.in_flight >= liar.own.requests_held > 0
    late = sent[len(sent) // 2 :]
    assert late.count("other") > len(late) / 32


def test_a_request_that_was_left_is_held_no_more() -> None:
    fleet = balancer(snapshot("a"))
    for name in ("r1", "r2"):
        fleet.route(request(name), POLICY, NOW_S)
    fleet.observe(NodeReported(snapshot("a", sequence=2, first_tokens_total=2)), NOW_S + 1)
    fleet.leave("r1", NOW_S + 1)
    fleet.leave("r1", NOW_S + 1)
    (view,) = fleet.views()
    assert (view.in_flight, view.own.requests_held) == (1, 1)
    fleet.finish("r1", NOW_S + 2)
    (view,) = fleet.views()
    assert view.own.requests_held == 1, "the other's stream is open"
    fleet.finish("r2", NOW_S + 2)
    (view,) = fleet.views()
    assert view.own.requests_held == 0


def test_answers_of_one_request_that_end_before_the_others_are_the_samples_matter() -> None:
    """Of eight the engine has three left: one at least, as the stream is open, is all that we know."""
    fleet = balancer(snapshot("a"))
    fleet.route(request("r", sequences=8), POLICY, NOW_S)
    fleet.observe(NodeReported(snapshot("a", sequence=2, requests_running=3)), NOW_S + 1)
    (view,) = fleet.views()
    assert view.in_flight == 3
