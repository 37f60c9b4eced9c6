"""What stands in a journal of requests that wait for room, and of whom they come."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from extproc.core.balancer import Balancer
from extproc.core.decision import Decision, Queued, Refusal, Refused
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.snapshot import NodeReported, ServedModel
from extproc.journal.balancer import JournaledBalancer, close
from tests.core.fleet import MODEL, request, snapshot
from tests.journal.writing import NOW_S, calls_of, lines_of
from tests.journaled import journaled

POLICY = RoutingPolicy()


def report(one: Balancer, sequence: int, now_s: float = NOW_S, **changes: Any) -> None:
    one.observe(NodeReported(snapshot("a", sequence=sequence, **changes)), now_s)


def waits(one: Balancer, request_id: str, **changes: Any) -> InferenceRequest:
    """A request that may wait for ten minutes, at a node that is full."""
    report(one, 1, requests_waiting=100)
    asked = request(request_id, priority="low", **changes)
    assert isinstance(one.route(asked, POLICY, NOW_S).outcome, Queued)
    return asked


def test_waiting_is_a_line_when_it_begins_and_when_it_ends_and_none_in_between(path: Path) -> None:
    one = journaled(path)
    for number in (1, 2):
        waits(one, f"r{number}")
    assert one.admit(NOW_S + 1) == []
    report(one, 2)
    assert len(one.admit(NOW_S + 2.5)) == 2
    close(one)
    lines = lines_of(path)
    assert calls_of(path)[-4:] == ["route", "reported", "admit", "admit"]
    assert lines[-4]["decided"]["queued"]["until_s"] == NOW_S + 600
    assert [(line["request_id"], line["now_s"], line.get("left", 0)) for line in lines[-2:]] == [
        ("r1", NOW_S + 2.5, 1),
        ("r2", NOW_S + 2.5, 0),
    ]
    for line in lines[-2:]:
        decided = line["decided"]
        assert decided.keys() == {
            *["strategy", "chosen", "model", "queued_s", "phase", "uncached_tokens", "candidates", "arm"]
        }
        assert (decided["queued_s"], decided["model"]) == (2.5, MODEL)


def test_whose_time_is_up_and_who_is_turned_away_at_the_end_have_a_line_each(path: Path) -> None:
    one = journaled(path)
    for number in (1, 2, 3):
        waits(one, f"r{number}", output_tokens_max=number)
    one.finish("r2", NOW_S)
    report(one, 2, NOW_S + 600, requests_waiting=100)
    assert len(one.admit(NOW_S + 600)) == 2
    for number in (4, 5):
        waits(one, f"r{number}")
    assert len(one.drain(NOW_S + 601)) == 2
    close(one)
    ends = [line for line in lines_of(path) if line["call"] in ("admit", "drain")]
    assert [(line["call"], line["request_id"]) for line in ends] == [
        *[("admit", "r1"), ("admit", "r3"), ("drain", "r4"), ("drain", "r5")]
    ]
    assert {line["decided"]["refused"]["refusal"] for line in ends} == {"overloaded"}


@pytest.mark.parametrize("model", [MODEL, "other"])
def test_a_fallback_model_is_told_where_it_was_chosen(path: Path, model: str) -> None:
    one = journaled(path)
    report(one, 1, requests_waiting=100 if model == "other" else 0)
    one.observe(NodeReported(snapshot("b", models=(ServedModel("other"),))), NOW_S)
    decision = one.route(request("r1"), RoutingPolicy(fallback_models={MODEL: "other"}), NOW_S)
    close(one)
    assert decision.model == model
    line = lines_of(path)[-1]
    assert (line["request"]["model"], line["decided"].get("model")) == (MODEL, None if model == MODEL else "other")


def test_a_refusals_headers_are_written(path: Path) -> None:
    one = journaled(path)
    report(one, 1)
    refused = one.route(request("r1", 5100), POLICY, NOW_S).outcome
    close(one)
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.RATE_LIMIT_EXCEEDED
    assert refused.headers
    assert lines_of(path)[-1]["decided"]["refused"]["headers"] == [list(header) for header in refused.headers]


def test_an_admission_that_raises_is_a_line_lost_and_goes_through(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[Decision]:
        raise ZeroDivisionError

    one = journaled(path)
    monkeypatch.setattr(Balancer, "admit", broken)
    with pytest.raises(ZeroDivisionError):
        one.admit(NOW_S)
    close(one)
    assert calls_of(path) == ["journal", "lost"]


def tenants_of(path: Path, *calls: str) -> list[str]:
    return [line["request"]["tenant"] for line in lines_of(path) if line["call"] in calls]


def test_tenants_are_told_apart_but_not_named_unless_a_quota_names_them(path: Path) -> None:
    one = journaled(path)
    for number, tenant in enumerate(["bob@example.org", "carol", "bob@example.org", "", "alice", "\ud800"]):
        ask(one, f"r{number}", tenant)
    close(one)
    bob, carol, again, nobody, alice, odd = tenants_of(path, "route")
    assert (bob, nobody, alice) == (again, "", "alice")
    assert len({bob, carol, alice, odd}) == 4
    assert all(len(name) == 16 and int(name, 16) >= 0 for name in (bob, carol, odd))
    assert b"bob" not in path.read_bytes()
    assert b"carol" not in path.read_bytes()
    path.unlink()
    one = journaled(path)
    ask(one, "r0", "bob@example.org")
    close(one)
    assert tenants_of(path, "route") != [bob], "its secret is another"


def test_a_recount_has_the_same_tenant_as_its_request(path: Path) -> None:
    one = journaled(path)
    asked = ask(one, "r1", "bob")
    one.recount(replace(asked, prompt=replace(asked.prompt, tokens=7)))
    close(one)
    first, second = tenants_of(path, "route", "recount")
    assert first == second != "bob"


def ask(one: JournaledBalancer, request_id: str, tenant: str) -> InferenceRequest:
    asked = request(request_id, tenant=tenant, prompt_blocks=(1,))
    one.route(asked, POLICY, NOW_S)
    return asked
