"""What a session asks to be counted, and what it makes of counts, early or late."""

import pytest

from extproc.core.decision import Decision
from extproc.core.policy import RoutingPolicy
from extproc.core.request import CountSource, InferenceRequest, TokenCount
from extproc.gateway.conversation import SetDestination, TokensCounted
from extproc.prompt import CountedPrompt
from tests.core.fleet import NOW_S, balancer, snapshot
from tests.gateway.talk import Talk, chat, headers, whole


def test_a_late_count_puts_the_ledger_right_until_the_stream_ends() -> None:
    fleet = balancer(snapshot("a"))
    talk = Talk(fleet, tokens=TokenCount(1600, exact=False, source=CountSource.ESTIMATED))
    talk.say(headers(), whole(chat()))
    (view,) = fleet.views()
    assert view.own.prefill_tokens == 1600
    talk.session.recount(TokenCount(160, exact=True))
    (view,) = fleet.views()
    assert view.own.prefill_tokens == 160
    talk.session.close(NOW_S)
    talk.session.recount(TokenCount(320, exact=True))
    (view,) = fleet.views()
    assert view.own.prefill_tokens == 0


def test_an_exact_count_is_not_waited_for_again() -> None:
    fleet = balancer(snapshot("a"))
    talk = Talk(fleet, tokens=TokenCount(160, exact=True, source=CountSource.CACHED))
    action = talk.say(headers(), whole(chat()))
    assert isinstance(action, SetDestination)
    assert action.metadata["tokens_source"] == "cached"
    talk.session.recount(TokenCount(1600, exact=True))
    (view,) = fleet.views()
    assert view.own.prefill_tokens == 160


def test_the_balancer_is_told_the_prompts_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[InferenceRequest] = []
    fleet = balancer(snapshot("a"))
    route = fleet.route

    def remember(request: InferenceRequest, policy: RoutingPolicy, now_s: float) -> Decision:
        asked.append(request)
        return route(request, policy, now_s)

    monkeypatch.setattr(fleet, "route", remember)
    session = Talk(fleet).session
    session.receive(headers(), NOW_S)
    session.receive(whole(chat()), NOW_S)
    session.receive(TokensCounted(CountedPrompt(TokenCount(9, exact=True), blocks=(7, 8), token_blocks=(9,))), NOW_S)
    assert [(request.prompt_blocks, request.token_blocks) for request in asked] == [((7, 8), (9,))]


def test_tokens_that_were_not_asked_for_are_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError):
        Talk(balancer()).say(TokensCounted(CountedPrompt(TokenCount(1, exact=True))))
