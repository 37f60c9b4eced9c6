"""Envoy says which host serves a request, and that need not be the chosen one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.balancer import Balancer
from extproc.core.outcome import Answered, Ending
from extproc.core.request import InferenceRequest
from extproc.core.settings import EjectionSettings
from extproc.core.snapshot import NO_LOAD, NodeLeft, NodeReported, OwnLoad, ServedModel
from tests.core.fleet import MODEL, NOW_S, POLICY, SETTINGS, balancer, counts_of, node_of, request, snapshot
from tests.core.waiters import Crowd

A, B, C = (snapshot(name).host for name in "abc")


def owns(fleet: Balancer) -> dict[str, OwnLoad]:
    return {view.snapshot.node_id: counts_of(view.own) for view in fleet.views()}


def sent_to_a(asked: InferenceRequest) -> Balancer:
    fleet = balancer(snapshot("a"), snapshot("b", kv_usage=0.9, pending_prefills=50, requests_waiting=50))
    assert node_of(fleet.route(asked, POLICY, NOW_S)) == "a"
    return fleet


def test_it_counts_where_it_is_with_all_its_tokens() -> None:
    fleet = sent_to_a(request("r1", 1000, sequences=3))
    before = owns(fleet)
    fleet.served("r1", B, NOW_S + 0.1)
    after = owns(fleet)
    assert after["a"] == NO_LOAD
    for name in ("sequences_open", "sequences_unseen", "requests_unseen", "requests_held", "kv_blocks_unseen"):
        assert getattr(after["b"], name) == getattr(before["a"], name) > 0, name
    assert after["b"].prefill_tokens == before["a"].prefill_tokens == 1000
    fleet.first_token("r1", NOW_S + 0.2)
    assert owns(fleet)["b"].prefill_tokens == 0
    fleet.finish("r1", NOW_S + 0.3)
    assert fleet.requests_open == 0
    assert all(own.sequences_open == own.requests_held == own.kv_blocks_unseen == 0 for own in owns(fleet).values())


@pytest.mark.parametrize(
    ("request_id", "host"), [("r1", A), ("r1", "10.9.9.9:1"), ("r1", ""), ("r1", "a"), ("unknown", B)]
)
def test_what_says_nothing_new_changes_nothing(request_id: str, host: str) -> None:
    fleet = sent_to_a(request("r1"))
    before = list(fleet.views())
    fleet.served(request_id, host, NOW_S + 0.1)
    assert list(fleet.views()) == before


def test_the_end_of_one_that_moved_may_come_before_the_word() -> None:
    fleet = sent_to_a(request("r1"))
    fleet.finish("r1", NOW_S + 0.1)
    fleet.served("r1", B, NOW_S + 0.2)
    assert fleet.requests_open == owns(fleet)["b"].sequences_open == 0


def test_its_prompt_is_taken_to_be_in_the_cache_where_it_is() -> None:
    asked = request("r1", 1000, prompt_blocks=tuple(range(15)))
    fleet = sent_to_a(asked)
    fleet.served("r1", B, NOW_S + 0.1)
    assert set(fleet._fleet.caches.match(asked.prompt_blocks)) == {"a", "b"}


def test_it_moves_from_a_node_that_began_anew_meanwhile() -> None:
    fleet = sent_to_a(request("r1"))
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), NOW_S + 0.1)
    fleet.served("r1", B, NOW_S + 0.2)
    assert owns(fleet)["b"].sequences_open == 1
    fleet.finish("r1", NOW_S + 0.3)
    assert owns(fleet)["b"].sequences_open == 0


def test_a_sample_of_the_other_node_that_is_younger_shows_it() -> None:
    """It was sent before that sample was taken, so it is in there, and not counted on top of it."""
    fleet = sent_to_a(request("r1"))
    told: dict[str, Any] = {"requests_running": 7, "pending_prefills": 1}
    fleet.observe(NodeReported(snapshot("b", sequence=2, **told)), NOW_S + 1)
    fleet.served("r1", B, NOW_S + 1.1)
    own = owns(fleet)["b"]
    assert (own.sequences_open, own.sequences_unseen, own.prefills_of_others) == (1, 0, 0)
    assert own.prefill_tokens == 100, "the pending one is ours"


def test_an_adapter_is_on_its_way_to_the_node_that_has_to_load_it() -> None:
    adapters = (ServedModel(MODEL), ServedModel("tuned", loaded=False))
    loaded = (ServedModel(MODEL), ServedModel("tuned"))
    fleet = balancer(snapshot("a", models=adapters, adapter_slots_free=1))
    fleet.route(request("r1", model="tuned"), POLICY, NOW_S)
    fleet.route(request("r2", model="tuned"), POLICY, NOW_S)
    fleet.observe(NodeReported(snapshot("b", models=adapters)), NOW_S)
    fleet.observe(NodeReported(snapshot("c", models=loaded)), NOW_S)
    fleet.served("r1", B, NOW_S)
    fleet.served("r2", C, NOW_S)
    assert owns(fleet)["b"].adapters_sent == {"tuned"}
    assert owns(fleet)["c"].adapters_sent == frozenset()


def test_room_that_it_leaves_is_said() -> None:
    one = Crowd()
    one.node("a", 50)
    one.comes("r1")
    one.node("b", 0)
    one.node("a", 0)
    one.waits("w")
    one.rooms = 0
    one.balancer.served("r1", A, one.now_s)
    assert one.rooms == 0
    one.balancer.served("r1", B, one.now_s)
    assert one.rooms == 1


def on_trial() -> tuple[Balancer, str, str, float]:
    """A fleet, of which one node is tried by `trial`: the balancer, both nodes, and when."""
    fleet = balancer(
        snapshot("a"), snapshot("b"), settings=SETTINGS.model_copy(update={"ejection": EjectionSettings(first_s=2)})
    )
    bad = node_of(fleet.route(request("r"), POLICY, NOW_S))
    fleet.answered(Answered("r", Ending.UNREACHABLE), NOW_S)
    at_s = NOW_S + 2
    for number in range(9):
        if node_of(fleet.route(request(f"t{number}"), POLICY, at_s)) == bad:
            return fleet, bad, f"t{number}", at_s
    raise AssertionError("nobody tries it")


def test_one_that_went_elsewhere_is_no_trial() -> None:
    fleet, bad, trial, at_s = on_trial()
    fleet.served(trial, B if bad == "a" else A, at_s)
    fleet.first_token(trial, at_s + 0.1)
    fleet.answered(Answered(trial, Ending.SERVED), at_s + 0.2)
    assert set(fleet.out_until_s) == {bad}, "another node has served it"
    later_s = fleet.out_until_s[bad]
    assert later_s < at_s + 10, "it has another trial soon"
    seen = {node_of(fleet.route(request(f"n{number}"), POLICY, later_s)) for number in range(9)}
    assert bad in seen


def test_one_that_came_to_a_node_on_trial_is_its_trial() -> None:
    fleet, bad, trial, at_s = on_trial()
    fleet.finish(trial, at_s)
    other = "b" if bad == "a" else "a"
    before_s = at_s + 2.5
    request_id = "moves"
    fleet.route(request(request_id), POLICY, at_s)
    assert fleet._fleet.ledger.get(request_id).node_id == other  # type: ignore[union-attr]
    fleet.served(request_id, A if bad == "a" else B, before_s)
    fleet.first_token(request_id, before_s + 0.1)
    assert not fleet.out_until_s


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.booleans()), max_size=40))
def test_nothing_leaks_however_often_they_move(moves: list[tuple[int, str, bool]]) -> None:
    fleet = balancer(*(snapshot(name) for name in "abc"))
    for number in range(6):
        fleet.route(request(f"r{number}", sequences=1 + number % 2), POLICY, NOW_S + number / 100)
    where: dict[int, str] = {}
    for step, (number, name, reports) in enumerate(moves):
        at_s = NOW_S + 1 + step / 10
        fleet.served(f"r{number}", snapshot(name).host, at_s)
        where[number] = name
        if reports:
            fleet.observe(NodeReported(snapshot(name, sequence=step + 2, pending_prefills=step % 3)), at_s)
    assert sum(own.sequences_open for own in owns(fleet).values()) == 9
    for number, name in where.items():
        assert fleet._fleet.ledger.get(f"r{number}").node_id == name  # type: ignore[union-attr]
    for number in range(6):
        fleet.finish(f"r{number}", NOW_S + 9)
    for name, node in fleet._fleet.ledger._nodes.items():
        assert (node.open, node.held, node.sequences, node.tokens, node.unseen) == ({}, 0, 0, 0, 0), name
    assert fleet.requests_open == 0


def test_an_adapter_that_only_it_would_have_loaded_is_not_expected_there_any_more() -> None:
    lora = (ServedModel(MODEL), ServedModel("lora", loaded=False))
    fleet = balancer(snapshot("a", models=lora), snapshot("b", models=lora, requests_waiting=50), snapshot("c"))
    assert node_of(fleet.route(request("r1", model="lora"), POLICY, NOW_S)) == "a"
    assert node_of(fleet.route(request("r2", model="lora"), POLICY, NOW_S)) == "a"
    loading = {view.snapshot.node_id: set(view.own.adapters_sent) for view in fleet.views()}
    assert loading == {"a": {"lora"}, "b": set(), "c": set()}
    for moved, left in (("r1", {"lora"}), ("r2", set())):
        fleet.served(moved, B, NOW_S + 0.1)
        loading = {view.snapshot.node_id: set(view.own.adapters_sent) for view in fleet.views()}
        assert loading == {"a": left, "b": {"lora"}, "c": set()}


def test_one_that_moves_off_a_node_that_has_gone_leaves_nothing_of_it() -> None:
    fleet = sent_to_a(request("r1"))
    fleet.observe(NodeLeft("a", "boot-1"), NOW_S + 0.1)
    fleet.served("r1", B, NOW_S + 0.2)
    assert set(fleet._fleet.ledger._nodes) == {"b"}
    fleet.finish("r1", NOW_S + 0.3)
    assert fleet.requests_open == 0


def failed(at_s: float | None) -> Answered:
    return Answered("other-1", Ending.UNREACHABLE, host=A, over=False, at_s=at_s)


@pytest.mark.parametrize(("at_s", "out"), [(None, True), (NOW_S + 7.5, True), (NOW_S + 6.5, False)])
def test_a_failure_of_before_the_node_was_well_again_is_no_news(at_s: float | None, out: bool) -> None:
    fleet = sent_to_a(request("r1"))
    fleet.answered(Answered("r1", Ending.UNREACHABLE), NOW_S)
    for name in "ab":
        fleet.observe(NodeReported(snapshot(name, sequence=2, requests_waiting=50 * (name == "b"))), NOW_S + 6)
    assert node_of(fleet.route(request("trial"), POLICY, NOW_S + 6)) == "a"
    fleet.answered(Answered("trial", Ending.SERVED), NOW_S + 7)
    assert fleet.out_until_s == {}
    fleet.answered(failed(at_s), NOW_S + 8)
    assert set(fleet.out_until_s) == ({"a"} if out else set())


@pytest.mark.parametrize(("at_s", "out"), [(NOW_S + 10, True), (NOW_S + 4, False)])
def test_a_failure_of_before_the_node_became_ready_is_no_news(at_s: float, out: bool) -> None:
    fleet = balancer(snapshot("b"))
    fleet.observe(NodeReported(snapshot("a")), NOW_S + 5)
    fleet.answered(failed(at_s), NOW_S + 60)
    assert set(fleet.out_until_s) == ({"a"} if out else set())
