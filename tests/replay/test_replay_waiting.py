"""Requests that waited for room, wait and go again as they did."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from extproc.core.decision import Chosen, Decision, Refused
from extproc.core.policy import RoutingPolicy
from extproc.core.room import Limits
from extproc.core.snapshot import NodeState, ServedModel
from extproc.journal import balancer as journal
from extproc.journal.balancer import close
from extproc.replay.other import Other
from tests.core.fleet import MODEL
from tests.journaled import FLEET, FULL, NODES, OTHER_FREE, Call, asks, journaled, live, write
from tests.replay.replaying import Edit, command, edited, followers, replayed, state_of
from tests.replay.sessions import ADMIT, CROWD, FALLBACK, HOUR, SESSION


def kinds(decisions: list[Decision]) -> set[str]:
    def kind(decision: Decision) -> str:
        match decision.outcome:
            case Chosen():
                return f"chosen {'after waiting ' if decision.queued_s else ''}{decision.model}"
            case Refused(refusal=refusal, message=message):
                after = " after waiting" if decision.queued_s else ""
                return ("ending" if "ending" in message else refusal.value) + after
            case outcome:
                return type(outcome).__name__

    return {kind(decision) for decision in decisions}


def test_a_session_with_a_queue_comes_out_the_same(path: Path) -> None:
    one = journaled(path)
    decisions = live(one, SESSION)
    close(one)
    assert kinds(decisions) == {
        *["Queued", f"chosen after waiting {MODEL}", "chosen adapter", "ending after waiting"],
        *["overloaded", "overloaded after waiting", "rate_limit_exceeded"],
    }
    with followers() as made:
        found = replayed(path)
    (again,) = made
    assert (found.identical, found.decisions, found.damage) == (len(decisions), len(decisions), ())
    assert found.good
    assert again.decisions(100) == one.decisions(100)
    assert state_of(again) == state_of(one)


STALE: list[Call] = [("wait", {"seconds": 7.0})]
NONE_FULL: list[Call] = [("report", {"node": NODES[0]}), ("report", {"node": NODES[1]})]
LOADING: list[Call] = [("report", {"node": node, "state": NodeState.LOADING}) for node in NODES]
ADAPTER = ("report", {"node": NODES[2], "models": (ServedModel("adapter"),), "requests_waiting": 100})


@pytest.mark.parametrize(
    "life",
    [
        pytest.param([*FULL, *asks(4), *STALE, ADMIT, *asks(5)], id="by the fallback, whose turns go on"),
        pytest.param(
            [*FULL, ADAPTER, *asks(1, model="adapter", priority="high"), *asks(2), *NONE_FULL, ADMIT, *asks(1), *HOUR],
            id="past one of a higher class that waits for another node",
        ),
        pytest.param([*FULL, *asks(70), *FLEET, ADMIT, ADMIT], id="more than go at once"),
        pytest.param(
            [*FULL, *asks(70), ("wait", {"seconds": 601.0}), *FULL, ADMIT, ADMIT], id="more than expire at once"
        ),
        pytest.param(
            [*FULL, *asks(3), ("left", {"node": "a", "boot_id": "boot-1"}), *FLEET, ADMIT], id="a node has left"
        ),
        pytest.param(
            [*LOADING, *asks(3), ("wait", {"seconds": 601.0}), *LOADING, ADMIT], id="in vain for nodes that load"
        ),
    ],
)
def test_whoever_goes_goes_again(path: Path, life: list[Call]) -> None:
    one = journaled(path)
    decisions = live(one, life)
    close(one)
    assert sum(bool(decision.queued_s) for decision in decisions) >= 2
    with followers() as made:
        found = replayed(path)
    assert (found.identical, found.damage) == (len(decisions), ())
    assert state_of(made[0]) == state_of(one)


def test_the_order_of_classes_is_not_that_of_the_json(path: Path) -> None:
    decisions = write(path, [*CROWD, *FLEET, ADMIT])
    lines = [json.dumps(json.loads(line), sort_keys=True) for line in path.read_bytes().splitlines()]
    path.write_text("\n".join(lines))
    assert replayed(path).identical == len(decisions)


def test_the_lines_of_one_call_may_stand_in_several_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "CHUNK_BYTES", 1)
    decisions = write(path, [*CROWD, *FLEET, ADMIT, *SESSION], file_bytes_max=5000, files_max=100)
    found = replayed(path)
    assert len(found.files) > 5
    assert (found.identical, found.damage) == (len(decisions), ())
    names = [one.read_bytes().splitlines()[-1] for one in path.parent.iterdir()]
    assert any(b'"left":' in line for line in names), "a file ends in the midst of a call"


def cut_before(path: Path, call: str, which: int) -> None:
    """Leave out the end of the journal."""
    lines = path.read_bytes().splitlines()
    number = [place for place, line in enumerate(lines) if json.loads(line)["call"] == call][which]
    path.write_bytes(b"\n".join(lines[:number]) + b"\n")


@pytest.mark.parametrize("which", range(1, 7))
def test_a_call_that_was_cut_is_good_up_to_there(path: Path, which: int) -> None:
    decisions = write(path, [*CROWD, *FLEET, ADMIT])
    cut_before(path, "admit", which)
    found = replayed(path)
    assert (found.identical, found.decisions) == (len(decisions) - 7 + which, len(decisions) - 7 + which)
    assert found.good
    write(path, [*CROWD, *FLEET, ADMIT])
    assert replayed(path).identical == 2 * len(decisions) - 7 + which


def test_another_node_than_recorded_is_told_and_spoils_no_other(path: Path) -> None:
    random: dict[str, Any] = {"policy": RoutingPolicy(strategy="random"), "chain": (0, 0, 0)}
    room_at_a: list[Call] = [*FULL[1:], ("report", {"node": "a"})]
    decisions = write(path, [*FULL, *asks(5, **random), *room_at_a, ADMIT, *FLEET, *asks(6, **random)])
    chosen = {"node_id": "b", "host": "10.0.0.99:8000", "reason": "wrong"}
    number = edited(path, "admit", lambda line: line["decided"].update(chosen=chosen), 2)
    with followers() as made:
        found = replayed(path)
    assert (found.different, found.identical, found.damaged) == (1, len(decisions) - 1, 0)
    (difference,) = found.differences
    assert (difference.where, difference.request_id) == (f"extproc.journal:{number}", "r3")
    assert difference.wanted is not None
    assert difference.got is not None
    assert (difference.wanted.node_id, difference.got.node_id) == ("b", "a")
    (again,) = made
    went = Counter(one.outcome.node_id for one in decisions if isinstance(one.outcome, Chosen))
    went.update(a=-1, b=1)
    assert {view.snapshot.node_id: view.in_flight for view in again.views()} == went


@pytest.mark.parametrize(
    ("life", "call", "edit", "wanted", "got"),
    [
        pytest.param(
            [*asks(1)],
            "route",
            lambda line: line["decided"]["queued"].update(until_s=line["now_s"] + 5),
            'queued: wanted {"reason":',
            'got {"reason":',
            id="another time to wait",
        ),
        pytest.param(
            [*asks(2), *FLEET, ADMIT],
            "reported",
            lambda line: line["snapshot"].update(requests_waiting=100),
            'chosen: wanted {"node_id":',
            'queued: wanted nothing, got {"reason":"there is no room for it yet',
            id="it would still wait",
        ),
        pytest.param(
            [*asks(2), *HOUR],
            "reported",
            lambda line: line["snapshot"].update(requests_waiting=0),
            'refused: wanted {"refusal":"overloaded"',
            'chosen: wanted nothing, got {"node_id":',
            id="it would have gone before its time was up",
        ),
        pytest.param(
            [*asks(1), *HOUR],
            "route",
            lambda line: line["decided"]["queued"].update(until_s=line["now_s"] + 700),
            'refused: wanted {"refusal":"overloaded"',
            'queued: wanted nothing, got {"reason":"there is no room for it yet',
            id="its time was not up",
        ),
        pytest.param(
            [*asks(1), *FLEET, ADMIT],
            "admit",
            lambda line: line["decided"].update(queued_s=9.0),
            "queued_s: wanted 9.0",
            "got 0.0",
            id="another time that it waited",
        ),
        pytest.param(
            [*asks(1), ("drain", {})],
            "drain",
            lambda line: line["decided"]["refused"].update(retry_after_s=77),
            'refused: wanted {"refusal":"overloaded"',
            '"retry_after_s":1,',
            id="another word at the end",
        ),
        pytest.param(
            [*OTHER_FREE, *asks(1, policy=FALLBACK)],
            "route",
            lambda line: line["decided"].pop("model"),
            "model: wanted nothing",
            'got "adapter"',
            id="another model",
        ),
    ],
)
def test_what_differs_of_one_who_waited_is_told(
    path: Path, life: list[Call], call: str, edit: Edit, wanted: str, got: str
) -> None:
    write(path, [*FULL, *life])
    which = -1
    if call == "reported":
        for which in (-3, -2):
            edited(path, call, edit, which)
        which = -1
    edited(path, call, edit, which)
    result = command(path)
    assert result.exit_code == 1
    text = result.stdout.replace("\n", "")
    assert wanted in text
    assert got in text
    assert replayed(path).damaged == 0


def test_who_went_before_one_of_a_higher_class_is_told(path: Path) -> None:
    write(path, [*FULL, *asks(2), *asks(1, priority="high"), *FLEET, ADMIT])
    lines = path.read_bytes().splitlines()
    admitted = [place for place, line in enumerate(lines) if b'"call":"admit"' in line]
    high, *low = (json.loads(lines[place]) for place in admitted)
    assert high["request_id"] == "r3"
    for left, place, line in zip((2, 1, 0), admitted, (*low, high), strict=True):
        lines[place] = json.dumps(line | {"left": left}).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    with followers() as made:
        found = replayed(path)
    assert (found.damaged, [one.request_id for one in found.differences]) == (0, ["r1", "r2", "r3"])
    assert (made[0].requests_open, made[0].next_deadline_s) == (3, None)
    assert all(one.got is not None and one.got.queued is not None for one in found.differences)


def test_another_policy_stands_beside_those_who_waited(path: Path, tmp_path: Path) -> None:
    write(path, [*FULL, *asks(4), ("report", {"node": "a", "requests_waiting": 50}), ADMIT, *FULL, *asks(1), *HOUR])
    (tmp_path / "policy.yaml").write_text("limits: {requests_waiting_max: 50}")
    comparison = json.loads(command(path, "--policy", str(tmp_path / "policy.yaml"), "--json").stdout)["comparison"]
    recorded, would_be = comparison["recorded"], comparison["would_be"]
    assert (recorded["queued"], recorded["refused"], recorded["per_node"]) == (5, 1, {"a": 4})
    assert (would_be["queued"], would_be["refused"], would_be["per_node"]) == (9, 1, {})
    assert (comparison["decisions"], comparison["same_node"], comparison["other_node"]) == (10, 6, 4)
    beside = replayed(path, Other(RoutingPolicy(limits=Limits(requests_waiting_max=200)))).comparison
    assert beside is not None
    assert (beside.decisions, beside.would_be.queued, beside.would_be.refused) == (10, 3, 0)
    assert (beside.recorded.queued, beside.recorded.per_node) == (5, {"a": 4})


def test_who_waited_waits_again_though_the_replay_would_choose(path: Path) -> None:
    write(path, [*FULL, *asks(1), *FLEET, ADMIT])
    edited(path, "reported", lambda line: line["snapshot"].update(requests_waiting=0))
    found = replayed(path)
    assert (found.different, found.identical, found.damaged) == (1, 1, 0), "where it went is the same"
    (difference,) = found.differences
    assert difference.wanted is not None
    assert difference.wanted.queued is not None
    assert difference.got is not None
    assert difference.got.node_id == "a"
