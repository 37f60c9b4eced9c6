import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from extproc.core.balancer import Balancer
from extproc.core.decision import Decision
from extproc.core.outcome import Answered, Ending
from extproc.core.peershares import NodeShare, PeerLeft, PeerTold, PromptPlaced, Word
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.snapshot import KvBlocksTold, NodeLeft, NodeReported, Snapshot
from extproc.journal.balancer import balancer, close
from extproc.journal.lineform import packed, unpacked
from extproc.journal.lines import BEGINNING, Decided, as_written, decided_of, encode
from tests.core.fleet import MODEL, request, snapshot
from tests.journal.writing import NOW_S, lines_of
from tests.journaled import CLASSES, FLEET, LIVES, START_S, Call, config, journaled, live, no_fault, routes

POLICY = RoutingPolicy()


def test_without_a_path_there_is_no_journal() -> None:
    one = balancer(config(None), START_S, no_fault)
    assert type(one) is Balancer
    close(one)


def test_a_journal_begins_with_what_its_lines_rest_on(path: Path) -> None:
    close(journaled(path))
    (head,) = lines_of(path)
    assert path.read_bytes().startswith(BEGINNING)
    assert head["started_s"] == START_S
    assert head["settings"]["ejection"]["share_max"] == 1
    assert (head["format"], head["part"], head["begins"]) == (3, 0, True)
    assert [one["name"] for one in head["settings"]["classes"]] == list(CLASSES)
    assert "listen" not in head["settings"], "the balancer's settings only"


def test_each_call_is_one_line(path: Path) -> None:
    one = journaled(path)
    one.observe(NodeReported(snapshot("a", models=None, kv_usage=None)), NOW_S)
    one.observe(NodeLeft("z", "boot-1"), NOW_S)
    one.observe(KvBlocksTold("a", "boot-1", everything=True, stored=(1, 2**64 - 1)), NOW_S)
    one.observe(KvBlocksTold("a", "boot-1", everything=False, removed=(1,)), NOW_S)
    asked = request("r1", prompt_blocks=(1, 2**64 - 1), token_blocks=(2, 2**64 - 1), trace_id="t")
    decision = one.route(asked, POLICY, NOW_S)
    uninspected = one.route_uninspected("u1", "t", NOW_S)
    listing = RoutingPolicy(name="listing", destination="override-host")
    listed = one.route_uninspected("u2", "t", NOW_S, listing, ("10.0.0.98:8000",))
    rehearsed = one.rehearse(replace(asked, request_id="r2", subset=("10.0.0.98",)), POLICY, NOW_S)
    one.recount(asked)
    one.first_token("r1", NOW_S)
    one.served("r1", "10.0.0.98:8000", NOW_S)
    one.leave("r1", NOW_S)
    one.answered(Answered("r1", Ending.SERVED, output_tokens=7), NOW_S)
    one.finish("r1", NOW_S)
    one.tick(NOW_S)
    one.settle()
    one.would_route(asked, POLICY, NOW_S)
    close(one)
    lines = lines_of(path)
    told = lines[1].pop("snapshot")
    known = {field.name: getattr(snapshot("a"), field.name) for field in fields(Snapshot)}
    assert told == {
        name: value for name, value in known.items() if value not in (None, ()) and name not in ("models", "kv_usage")
    } | {"state": "ready"}
    assert [line.pop("call") for line in lines] == [
        *[
            "journal",
            "reported",
            "left",
            "kv_blocks",
            "kv_blocks",
            "policy",
            "route",
            "route_uninspected",
            "policy",
            "route_uninspected",
        ],
        *["rehearse", "recount", "first_token", "served", "leave", "answered", "finish", "tick"],
    ]
    as_json = json.loads(json.dumps(lines[6]))
    assert as_json["request"]["prompt_blocks"] == as_json["request"]["token_blocks"] == []
    assert as_json["blocks"] == "AQAAAAAAAAD//////////w=="
    assert as_json["token_blocks"] == "AgAAAAAAAAD//////////w=="
    assert as_json["decided"]["chosen"]["node_id"] == "a"
    chains = {name: as_json[name] for name in ("blocks", "token_blocks")}
    assert lines[1:] == [
        {"now_s": NOW_S},
        {"now_s": NOW_S, "node_id": "z", "boot_id": "boot-1"},
        {"now_s": NOW_S, "node_id": "a", "boot_id": "boot-1", "everything": True, "stored": as_json["blocks"]},
        {"now_s": NOW_S, "node_id": "a", "boot_id": "boot-1", "removed": "AQAAAAAAAAA="},
        {"number": 0, "policy": POLICY.model_dump()},
        {**as_json, "now_s": NOW_S, "policy": 0, "decided": written(decision, MODEL)},
        {"now_s": NOW_S, "request_id": "u1", "trace_id": "t", "decided": written(uninspected)},
        {"number": 1, "policy": listing.model_dump()},
        {"now_s": NOW_S, "request_id": "u2", "trace_id": "t", "decided": written(listed)}
        | {"policy": 1, "subset": ["10.0.0.98:8000"]},
        {"now_s": NOW_S, "policy": 0, **chains, "decided": written(rehearsed, MODEL)}
        | {"request": as_json["request"] | {"request_id": "r2", "subset": ["10.0.0.98"]}},
        {"request": as_json["request"], **chains},
        {"now_s": NOW_S, "request_id": "r1"},
        {"now_s": NOW_S, "request_id": "r1", "host": "10.0.0.98:8000"},
        {"now_s": NOW_S, "request_id": "r1"},
        {
            "now_s": NOW_S,
            "answered": {"request_id": "r1", "ending": "served", "host": None, "model": None, "output_tokens": 7}
            | {"over": True, "used_tokens": None, "at_s": None},
        },
        {"now_s": NOW_S, "request_id": "r1"},
        {"now_s": NOW_S},
    ]


def test_what_other_routers_told_is_one_line_each(path: Path) -> None:
    """What they are told is not written: it decides nothing."""
    one = journaled(path)
    shares = NodeShare("a", NOW_S - 0.25, 3, 4, kv_blocks_unseen=-2, sent_tokens=700), NodeShare("b", sequences_open=1)
    one.peer(PeerTold("p", 7, NOW_S - 0.125, Word(everything=True, shares=shares)), NOW_S)
    one.peer(PeerTold("p", 2**64 - 1, NOW_S, Word(everything=False, shares=())), NOW_S)
    one.peer(PromptPlaced("a", (1, 2**64 - 1), computed=True), NOW_S)
    one.peer(PromptPlaced("a", (1,), computed=False), NOW_S)
    one.peer(PeerLeft("p"), NOW_S)
    one.word(NOW_S)
    one.placed()
    close(one)
    assert lines_of(path)[1:] == [
        {"call": "peer", "now_s": NOW_S, "router": "p", "sequence": 7, "made_at_s": NOW_S - 0.125, "everything": True}
        | {
            "shares": [
                ["a", NOW_S - 0.25, 3, 4, 0, 0, 0, -2, 0, 0, 0, 0, 0, 700],
                ["b", None, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            ]
        },
        {"call": "peer", "now_s": NOW_S, "router": "p", "sequence": 2**64 - 1, "made_at_s": NOW_S},
        {"call": "placed", "now_s": NOW_S, "node_id": "a", "blocks": "AQAAAAAAAAD//////////w==", "computed": True},
        {"call": "placed", "now_s": NOW_S, "node_id": "a", "blocks": "AQAAAAAAAAA="},
        {"call": "peer_left", "now_s": NOW_S, "router": "p"},
    ]


def written(decision: Decision, model_told: str | None = None) -> Any:
    return json.loads(encode(decided_of(decision, model_told)))


@given(LIVES)
def test_a_journaled_balancer_decides_as_any_other(tmp_path_factory: pytest.TempPathFactory, life: list[Call]) -> None:
    folder = tmp_path_factory.mktemp("journal")
    with_journal, without = journaled(folder / "j"), balancer(config(None), START_S, no_fault)
    assert isinstance(without, Balancer)
    for one in (with_journal, without):
        live(one, FLEET + life)
    close(with_journal)
    assert with_journal.decisions(100) == without.decisions(100)
    assert list(with_journal.views()) == list(without.views())


def test_a_decision_comes_back_as_it_was_but_for_costs_without_end(path: Path) -> None:
    one = journaled(path)
    live(one, FLEET + routes(1, policy=RoutingPolicy(strategy="power-of-two")))
    close(one)
    (decision,) = one.decisions(1)
    decided = decided_of(decision, MODEL)
    assert as_written(decided) == decided, "two of three nodes have a cost, and as many are kept"
    (kept, _) = decided.candidates
    endless = replace(decided, candidates=(kept._replace(cost=float("inf")),))
    assert as_written(endless) == replace(decided, candidates=(kept._replace(cost=None),))


def test_blocks_are_eight_bytes_each() -> None:
    blocks = (0, 1, 2**63, 2**64 - 1)
    assert unpacked(packed(blocks)) == blocks
    assert len(packed(blocks)) == 32
    assert unpacked(packed(())) == ()


def test_an_error_of_the_balancer_is_written_and_goes_through(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Decision:
        raise ZeroDivisionError

    one = journaled(path)
    monkeypatch.setattr(Balancer, "route", broken)
    with pytest.raises(ZeroDivisionError):
        one.route(request("r1"), POLICY, NOW_S)
    close(one)
    line = lines_of(path)[-1]
    assert (line["call"], line["request"]["request_id"]) == ("route", "r1")
    assert "decided" not in line


def test_whatever_a_line_repeats_of_a_request_is_no_text() -> None:
    """The journal must hold nothing of a prompt: whoever adds a field to a request decides about it here."""
    assert set(InferenceRequest.__struct_fields__) == {
        *["request_id", "model", "endpoint", "prompt", "output_tokens_max", "prompt_blocks", "sequences", "trace_id"],
        *["priority", "tenant", "body_bytes", "model_fixed", "subset", "token_blocks"],
    }
    assert set(Decided.__struct_fields__) == {
        *["strategy", "chosen", "refused", "unknown", "queued", "model", "queued_s"],
        *["phase", "uncached_tokens", "candidates", "arm"],
    }
