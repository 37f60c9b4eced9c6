"""What a session does in each mode of the body, with each kind of destination."""

import json

import pytest

from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy
from extproc.core.request import CountSource, TokenCount
from extproc.core.snapshot import ServedModel
from extproc.gateway.budget import BodyBudget
from extproc.gateway.conversation import (
    Admitted,
    BodyMode,
    Continue,
    RequestBody,
    RequestTrailers,
    Respond,
    ResponseHeaders,
    SetDestination,
    Wait,
)
from extproc.prompt import Prompt, texts_of
from tests.core.fleet import MODEL, NOW_S, balancer, snapshot
from tests.gateway.talk import ACKNOWLEDGE, Talk, admit, chat, destination_of, error_of, full, headers, told, whole

NAMED = {"x-model": MODEL}
ESTIMATE = TokenCount(10, exact=False, source=CountSource.ESTIMATED)
OBSERVE = RoutingPolicy(mode="observe")
LIST = RoutingPolicy(destination="override-host", destinations_max=2)


def fleet() -> Balancer:
    return balancer(snapshot("a"), snapshot("b", models=(ServedModel("other"),)))


def later(data: bytes) -> RequestBody:
    return RequestBody(data, end_of_stream=False)


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED])
def test_where_envoy_picks_before_it_shows_the_body_the_head_decides(mode: BodyMode) -> None:
    talk = Talk(fleet(), tokens=ESTIMATE)
    action = talk.say(headers(mode=mode, named=NAMED, content_length=4000))
    assert destination_of(action) == snapshot("a").host
    assert isinstance(action, SetDestination)
    assert action.body_wanted, "the stream shall last to the answer's end, as the filter has it"
    assert talk.asked[0].prompt == Prompt(unread_bytes=4000)
    assert told(action)["shown"] == "head"
    assert talk.say(later(b"x"), whole(b"y")) == ACKNOWLEDGE
    assert talk.budget.bytes_reserved == 0


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED])
def test_a_head_without_a_model_goes_by_turns(mode: BodyMode) -> None:
    talk = Talk(fleet())
    action = talk.say(headers(mode=mode))
    assert told(action)["outcome"] == "uninspected"
    assert isinstance(action, SetDestination)
    assert not action.body_wanted


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED, BodyMode.PARTIAL])
def test_an_alias_is_not_heard_where_the_body_cannot_be_given_back(mode: BodyMode) -> None:
    policy = RoutingPolicy(aliases={"fast": {MODEL: 1}})
    talk = Talk(fleet(), policy=policy)
    action = talk.say(headers(mode=mode, named={"x-model": "fast"}))
    if mode is BodyMode.PARTIAL:
        action = talk.say(later(chat(model="fast")[:-1]))
    assert error_of(action)["status"] == 404


def test_in_full_duplex_the_body_is_gathered_to_its_end_and_may_be_written_anew() -> None:
    policy = RoutingPolicy(aliases={"fast": {MODEL: 1}})
    talk = Talk(fleet(), policy=policy)
    body = chat(model="fast")
    assert talk.say(headers(mode=BodyMode.DUPLEX)) == ACKNOWLEDGE
    assert talk.say(later(body[:9]), later(body[9:])) == ACKNOWLEDGE
    action = talk.say(whole(b""))
    assert destination_of(action) == snapshot("a").host
    assert isinstance(action, SetDestination)
    assert action.body is not None
    assert json.loads(action.body) == json.loads(chat())


def test_in_full_duplex_trailers_end_the_body() -> None:
    talk = Talk(fleet())
    talk.say(headers(mode=BodyMode.DUPLEX), later(chat()))
    assert destination_of(talk.say(RequestTrailers())) == snapshot("a").host


@pytest.mark.parametrize(("mode", "wanted"), [(BodyMode.BUFFERED, False), (BodyMode.DUPLEX, True)])
def test_a_body_that_nobody_reads_is_not_wanted_unless_it_has_to_be_given_back(mode: BodyMode, wanted: bool) -> None:
    action = Talk(fleet()).say(headers("/upload", mode=mode))
    assert isinstance(action, SetDestination)
    assert action.body_wanted is wanted


@pytest.mark.parametrize("cut_off", [True, False])
def test_a_partial_body_decides_by_what_is_there(cut_off: bool) -> None:
    body = chat("hello " * 50, max_tokens=5)
    length = len(body) + 1000 if cut_off else len(body)
    talk = Talk(fleet())
    assert talk.say(headers(mode=BodyMode.PARTIAL, content_length=length)) == ACKNOWLEDGE
    action = talk.say(later(body[:-20] if cut_off else body))
    assert destination_of(action) == snapshot("a").host
    assert told(action).get("shown") == ("part" if cut_off else None)
    (text,) = texts_of(talk.asked[0].prompt)
    assert text.startswith("hello hello")
    assert talk.asked[0].prompt.unread_bytes == (1020 if cut_off else None)


def test_a_part_without_a_model_goes_by_turns_and_a_whole_body_without_one_is_refused() -> None:
    talk = Talk(fleet())
    talk.say(headers(mode=BodyMode.PARTIAL))
    assert told(talk.say(later(b'{"messages": [')))["outcome"] == "uninspected"
    talk = Talk(fleet())
    talk.say(headers(mode=BodyMode.PARTIAL))
    assert error_of(talk.say(whole(b'{"messages": []}')))["status"] == 400


def test_a_policy_that_is_off_lets_everything_pass() -> None:
    nodes = fleet()
    talk = Talk(nodes, policy=RoutingPolicy(mode="off"))
    action = talk.say(headers(content_length=10**9))
    assert isinstance(action, Continue)
    assert (told(action)["outcome"], action.body_wanted) == ("off", False)
    assert talk.say(whole(b"x" * 20_000)) == ACKNOWLEDGE
    assert nodes.decisions(5) == []
    assert talk.budget.bytes_reserved == 0


def test_a_policy_that_cannot_be_used_is_refused_where_that_is_strict() -> None:
    talk = Talk(fleet(), policy_fault="canary: wanted less, got 1000", strict=True)
    error = error_of(talk.say(headers()))
    assert (error["status"], error["code"]) == (500, "policy_error")
    assert "canary: wanted less" in error["message"]
    assert destination_of(Talk(fleet(), strict=True).say(headers(), whole(chat())))


def test_the_hosts_behind_the_chosen_one_go_with_it() -> None:
    action = Talk(balancer(snapshot("a"), snapshot("b"), snapshot("c")), policy=LIST).say(headers(), whole(chat()))
    assert isinstance(action, SetDestination)
    assert action.destination == "override-host"
    assert len(set(action.hosts)) == 2


@pytest.mark.parametrize("subset", [(), ("10.9.9.9:80",)])
def test_a_subset_in_which_nobody_is_makes_a_503(subset: tuple[str, ...]) -> None:
    assert error_of(Talk(fleet()).say(headers(subset=subset), whole(chat())))["status"] == 503


def test_a_request_goes_where_its_subset_allows() -> None:
    nodes = balancer(snapshot("a"), snapshot("b"), snapshot("c"))
    for one in ("a", "b", "c"):
        talk = Talk(nodes, request_id=f"r-{one}")
        action = talk.say(headers(subset=(snapshot(one).host,)), whole(chat()))
        assert destination_of(action) == snapshot(one).host


def sent(nodes: Balancer) -> dict[str, int]:
    return {one.snapshot.node_id: one.own.sequences_open for one in nodes.views()}


def test_the_reservation_is_where_the_request_was_served_and_who_failed_before_is_out() -> None:
    nodes = balancer(*map(snapshot, "abcdef"))
    talk = Talk(nodes, policy=LIST)
    action = talk.say(headers(), whole(chat()))
    assert isinstance(action, SetDestination)
    first, second = action.hosts
    by_host = {snapshot(one).host: one for one in "abcdef"}
    assert sent(nodes)[by_host[first]] == 1
    assert talk.say(ResponseHeaders(200, second), now_s=NOW_S) == ACKNOWLEDGE
    assert sent(nodes) == {one: int(one == by_host[second]) for one in "abcdef"}
    assert set(nodes.out_until_s) == {by_host[first]}
    talk.session.close(NOW_S)
    assert nodes.requests_open == 0


@pytest.mark.parametrize("served_by", [None, "10.9.9.9:80"])
def test_a_served_host_that_is_not_known_moves_nothing(served_by: str | None) -> None:
    nodes = balancer(snapshot("a"), snapshot("b", models=(ServedModel("other"),)))
    talk = Talk(nodes, policy=LIST)
    talk.say(headers(), whole(chat()), ResponseHeaders(503 if served_by else 200, served_by))
    assert sent(nodes) == {"a": 1, "b": 0}
    assert nodes.out_until_s == {}, "nor is it any node's answer"


def test_in_full_duplex_a_request_waits_and_goes_as_in_others() -> None:
    nodes = full()
    talk = Talk(nodes, policy=RoutingPolicy(priority="batch"))
    waits = talk.say(headers(mode=BodyMode.DUPLEX), whole(chat()))
    assert isinstance(waits, Wait)
    assert admit(nodes, talk) == {}
    assert isinstance(talk.session.receive(Admitted(nodes.drain(NOW_S)[0]), NOW_S), Respond)


def test_what_is_no_inference_keeps_to_its_subset_too() -> None:
    nodes = balancer(snapshot("a"), snapshot("b"), snapshot("c"))
    for one in ("c", "a", "c"):
        action = Talk(nodes).say(headers("/v1/models", subset=(snapshot(one).host,)))
        assert destination_of(action) == snapshot(one).host


def test_a_body_that_envoy_never_shows_takes_no_room_but_has_its_limit() -> None:
    talk = Talk(fleet())
    assert destination_of(talk.say(headers(mode=BodyMode.NONE, named=NAMED, content_length=10_000)))
    assert talk.budget.bytes_reserved == 0
    full_budget = Talk(fleet(), budget=BodyBudget(5000))
    assert destination_of(full_budget.say(headers(mode=BodyMode.NONE, named=NAMED, content_length=10_000)))
    assert error_of(Talk(fleet()).say(headers(mode=BodyMode.NONE, content_length=10_001)))["status"] == 413


def test_in_full_duplex_the_body_counts_until_it_is_given_back() -> None:
    talk = Talk(fleet())
    talk.say(headers(mode=BodyMode.DUPLEX), later(chat()), whole(b""))
    assert talk.budget.bytes_reserved == len(chat())
    talk.session.written()
    assert talk.budget.bytes_reserved == 0
