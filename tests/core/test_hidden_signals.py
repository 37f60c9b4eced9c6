"""What the router knows of a node that hides a signal. What of it is compared with others: see test_comparable.py.

| hidden | what counts in its view |
|---|---|
| requests running or waiting | what we have open there |
| all signals | all that we sent and that has not begun |
| the same, and no first token is told | what it would have left at its rate |
| pending prefills | the engine's queue, at least |
| its totals | the fleet's rate; prompts of others as long as any node has them |
| how long its steps take | those of the others |
| its prefix hits | our own idea of its cache |
| free KV blocks | nothing: it may have room |
| its adapter slots | that it has none |
"""

from typing import Any

import pytest

from extproc.core.balancer import Balancer
from extproc.core.loads import prefill_tokens_ahead
from extproc.core.outcome import Answered, Ending
from extproc.core.room import TOO_FEW_BLOCKS
from extproc.core.snapshot import NodeReported, NodeView, Snapshot
from tests.core.fleet import MODEL, NOW_S, POLICY, SETTINGS, balancer, request, snapshot

COUNTS = ("requests_running", "requests_waiting", "pending_prefills", "active_decodes")
ALL = (*COUNTS, "kv_usage", "kv_block_size_tokens", "kv_blocks_total", "kv_blocks_available", "gpu_utilization")


def report(sequence: int, hidden: tuple[str, ...], **told: Any) -> Snapshot:
    """A report that lacks some signals."""
    one = {"first_tokens_total": None} | told
    return snapshot("a", sequence=sequence, **(one | dict.fromkeys(hidden)))


def busy(hidden: tuple[str, ...]) -> Balancer:
    """One node with six requests of ours, of 100 tokens each: two decode, two are pending, two were sent since."""
    fleet = balancer(report(1, hidden))
    for number in range(4):
        fleet.route(request(f"r{number}"), POLICY, NOW_S)
    for number in range(2):
        fleet.first_token(f"r{number}", NOW_S + 0.5)
    told = {"requests_running": 3, "requests_waiting": 1, "pending_prefills": 2, "active_decodes": 2}
    fleet.observe(NodeReported(report(2, hidden, **told)), NOW_S + 1)
    for number in range(4, 6):
        fleet.route(request(f"r{number}"), POLICY, NOW_S + 1)
    return fleet


def only(fleet: Balancer) -> NodeView:
    (view,) = fleet.views()
    return view


def test_an_honest_node_has_six_in_flight_and_four_prompts_ahead() -> None:
    assert (only(busy(())).in_flight, only(busy(())).prefill_tokens_pending) == (6, 400)


@pytest.mark.parametrize("hidden", [("requests_running",), ("requests_waiting",), COUNTS, ALL])
def test_a_node_that_hides_its_requests_has_those_that_we_sent(hidden: tuple[str, ...]) -> None:
    assert only(busy(hidden)).in_flight == 6


@pytest.mark.parametrize("hidden", [ALL, (*COUNTS, "kv_usage")])
def test_a_node_that_hides_everything_has_all_prompts_ahead_that_we_know_of(hidden: tuple[str, ...]) -> None:
    """Its samples say nothing, so they are all alike, and take nothing over."""
    assert only(busy(hidden)).prefill_tokens_pending == 400


def test_a_node_that_hides_pending_prefills_has_its_queue_ahead_at_least() -> None:
    """Of the two that the sample shows one waits in the queue; the other cannot be told from a decode."""
    assert only(busy(("pending_prefills",))).prefill_tokens_pending == 300


def test_a_node_that_hides_its_totals_has_the_rate_of_the_fleet() -> None:
    fleet = balancer()
    for second in range(60):
        for name, told in (("a", None), ("b", second * 4000)):
            seconds = None if told is None else float(second * 10)
            one = snapshot(name, sequence=second + 1, prefill_tokens_total=told, prefill_seconds_total=seconds)
            fleet.observe(NodeReported(one), NOW_S + second)
    hiding, telling = (view.learned.prefill_tokens_per_s for view in fleet.views())
    assert hiding == pytest.approx(telling, rel=0.05)


def waiting(hidden: tuple[str, ...]) -> NodeView:
    """One node with two prompts of 8000 tokens, a second each at its rate; of the first tokens none is told.

    After a second it still has both: it is slower than it is taken to be.
    """
    fleet = balancer(report(1, hidden))
    for number in range(2):
        fleet.route(request(f"r{number}", 8000, exact=False), POLICY, NOW_S)
    told = {"requests_running": 1, "requests_waiting": 1, "pending_prefills": 2}
    fleet.observe(NodeReported(report(2, hidden, **told)), NOW_S + 1)
    return only(fleet)


@pytest.mark.parametrize(
    ("hidden", "at_once", "later"),
    [
        ((), 16_000, 12_000),
        (("kv_usage", "active_decodes"), 16_000, 12_000),
        (("pending_prefills",), 8000, 4000),
        (COUNTS, 8000, 4000),
        (ALL, 8000, 4000),
    ],
)
def test_the_work_of_a_node_that_tells_nothing_shrinks_at_its_rate(
    hidden: tuple[str, ...], at_once: float, later: float
) -> None:
    """And not faster: what it hides is no sample that shows the work done."""
    view = waiting(hidden)
    assert [prefill_tokens_ahead(view, NOW_S + at_s) for at_s in (1.0, 1.5)] == [at_once, later]


def test_a_node_that_hides_its_decode_time_takes_that_of_the_others() -> None:
    """So its waits for steps count as theirs, and nobody's rate changes."""
    rates = []
    for hidden in ((), ("decode_ms_per_token",)):
        fleet = balancer()
        for second in range(60):
            for name in "ab":
                told: dict[str, Any] = {
                    "prefill_tokens_total": second * 2000,
                    "prefill_seconds_total": second * 0.8,
                    "first_tokens_total": second * 10,
                    "decode_ms_per_token": 20.0,
                }
                if name == "a":
                    told |= dict.fromkeys(hidden)
                fleet.observe(NodeReported(snapshot(name, sequence=second + 1, **told)), NOW_S + second)
        rates.append([view.learned.prefill_tokens_per_s for view in fleet.views()])
    assert rates[0] == rates[1]


def test_prompts_of_others_at_a_node_that_hides_its_totals_are_as_long_as_any_has_them() -> None:
    for hidden in ((), ("prefill_tokens_total",), ("prefill_seconds_total",), ("first_tokens_total",)):
        fleet = balancer()
        for second in range(60):
            for name, tokens, lacking in (("hides", 100, hidden), ("long", 6000, ()), ("short", 1000, ())):
                told: dict[str, Any] = {
                    "prefill_tokens_total": second * tokens,
                    "prefill_seconds_total": second * 0.5,
                    "first_tokens_total": second,
                }
                told |= dict.fromkeys(lacking)
                fleet.observe(NodeReported(snapshot(name, sequence=second + 1, **told)), NOW_S + second)
        (mean,) = (one.learned.prefill_tokens_mean for one in fleet.views() if one.snapshot.node_id == "hides")
        assert mean == pytest.approx(6000 if hidden else 100, rel=0.5)


def test_nodes_that_all_hide_their_totals_have_prompts_as_long_as_is_assumed() -> None:
    assert only(balancer(report(1, ()))).learned.prefill_tokens_mean == SETTINGS.rates.prefill_tokens


@pytest.mark.parametrize("hidden", [("kv_blocks_available",), ("kv_block_size_tokens",)])
def test_a_node_that_hides_its_blocks_gets_long_answers_as_if_it_had_room_for_them(hidden: tuple[str, ...]) -> None:
    """And one that tells that it lacks them does not, as long as another has some."""
    asked = request(tokens=160, output_tokens_max=1600)
    for lacking, excluded in (((), TOO_FEW_BLOCKS), (hidden, None)):
        changes = {"kv_blocks_available": 50} | dict.fromkeys(lacking)
        fleet = balancer(snapshot("a", **changes))
        for number in range(500):
            fleet.answered(Answered(f"x{number}", Ending.SERVED, None, MODEL, 1600), NOW_S)
        (found,) = fleet.would_route(asked, POLICY, NOW_S).candidates
        assert found.excluded == excluded


def test_hidden_blocks_are_room_and_the_ledger_still_counts_what_was_sent() -> None:
    fleet = busy(("kv_blocks_available",))
    assert only(fleet).own.kv_blocks_unseen > 0
    assert only(fleet).in_flight == 6
