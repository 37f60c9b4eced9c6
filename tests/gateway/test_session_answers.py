"""What a session makes of what Envoy shows of an answer, and what the balancer is told of it."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.balancer import Balancer
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.snapshot import NodeReported
from extproc.gateway.conversation import (
    Event,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseMessage,
)
from tests.core.fleet import NOW_S, SETTINGS, snapshot
from tests.gateway.talk import ACKNOWLEDGE, POLICY, Talk, chat, destination_of, headers, whole

LEAVING = RoutingPolicy(leave_after_first_token=True)
ASKED: list[Event] = [headers(), whole(chat())]
GOOD = ResponseHeaders(200)
PIECE = ResponseBody(has_output=True, end_of_stream=False)
COMMENT = ResponseBody(has_output=False, end_of_stream=False)
ONLY = ResponseBody(has_output=True, end_of_stream=True)
END = ResponseBody(has_output=False, end_of_stream=True)


class Told(Balancer):
    """A balancer that remembers what it was told of answers."""

    def __init__(self) -> None:
        super().__init__(SETTINGS, NOW_S - 60)
        self.observe(NodeReported(snapshot("a")), NOW_S)
        self.told: list[Any] = []

    def answered(self, answered: Answered, now_s: float) -> None:
        self.told.append(answered)
        super().answered(answered, now_s)

    def first_token(self, request_id: str, now_s: float) -> None:
        self.told.append(("first token", request_id))
        super().first_token(request_id, now_s)

    def leave(self, request_id: str, now_s: float) -> None:
        self.told.append(("left", request_id))
        super().leave(request_id, now_s)

    def finish(self, request_id: str, now_s: float) -> None:
        self.told.append(("finished", request_id))
        super().finish(request_id, now_s)

    @property
    def prefill_tokens(self) -> int:
        (view,) = self.views()
        return view.own.prefill_tokens


def begun(status: int, request_id: str = "r1") -> Answered:
    ending = Ending.SERVED if status < 500 else Ending.UNREACHABLE if status in (502, 503, 504) else Ending.ERROR
    return Answered(request_id, ending, over=False)


FIRST = ("first token", "r1")
LEFT = ("left", "r1")
FINISHED = ("finished", "r1")
ENDED = Answered("r1", Ending.SERVED, host=snapshot("a").host)


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([ResponseMessage()], [], id="trailers"),
        pytest.param([GOOD], [begun(200)], id="a head"),
        pytest.param([ResponseHeaders(404)], [begun(404)], id="a refusal of the node's"),
        pytest.param([ResponseHeaders(500)], [begun(500)], id="an error"),
        pytest.param([ResponseHeaders(503)], [begun(503)], id="unreachable"),
        pytest.param([ResponseHeaders(503), GOOD], [begun(503)], id="two heads"),
        pytest.param([GOOD, PIECE], [begun(200), FIRST], id="a first piece"),
        pytest.param([GOOD, PIECE, PIECE, PIECE, END], [begun(200), FIRST], id="more pieces"),
        pytest.param([GOOD, ONLY], [begun(200), FIRST], id="an answer in one"),
        pytest.param([GOOD, COMMENT, COMMENT], [begun(200)], id="comments"),
        pytest.param([GOOD, COMMENT, PIECE], [begun(200), FIRST], id="comments first"),
        pytest.param([GOOD, END], [begun(200)], id="an empty answer"),
        pytest.param([ResponseHeaders(500), PIECE, END], [begun(500)], id="the text of an error"),
        pytest.param([ResponseHeaders(307), PIECE, END], [begun(307)], id="the text of a redirection"),
        pytest.param([PIECE, PIECE, END], [], id="pieces without a head"),
        pytest.param([PIECE, GOOD, PIECE], [begun(200), FIRST], id="a piece before its head"),
        pytest.param([GOOD, RequestTrailers(), PIECE, whole(b"x")], [begun(200), FIRST], id="the request's in between"),
    ],
)
def test_the_balancer_is_told_how_an_answer_begins_and_its_first_token_once(
    shown: list[Event], told: list[Any]
) -> None:
    fleet = Told()
    talk = Talk(fleet)
    assert destination_of(talk.say(*ASKED))
    for event in shown:
        assert talk.say(event) == ACKNOWLEDGE
    assert fleet.told == told
    assert fleet.prefill_tokens == (0 if FIRST in told else 10)
    assert not talk.session.leaves
    assert fleet.requests_open == 1
    talk.session.close(NOW_S)
    assert fleet.told == [*told, FINISHED]
    assert fleet.requests_open == 0


@pytest.mark.parametrize(
    ("shown", "leaves"),
    [
        ([], False),
        ([GOOD], False),
        ([GOOD, COMMENT], False),
        ([GOOD, PIECE], True),
        ([GOOD, COMMENT, PIECE], True),
        ([GOOD, PIECE, PIECE], True),
        ([GOOD, ONLY], False),
        ([ResponseHeaders(500), PIECE], False),
        ([PIECE, PIECE], False),
    ],
)
def test_a_stream_may_be_left_once_nothing_but_the_end_is_to_be_learned(shown: list[Event], leaves: bool) -> None:
    talk = Talk(Told(), policy=LEAVING)
    talk.say(*ASKED, *shown)
    assert talk.session.leaves == leaves


def test_a_request_whose_stream_was_left_is_open_until_somebody_tells_its_end() -> None:
    fleet = Told()
    talk = Talk(fleet, policy=LEAVING)
    talk.say(*ASKED, GOOD, PIECE)
    talk.session.leave(NOW_S)
    assert not talk.session.leaves
    talk.session.close(NOW_S)
    assert fleet.told == [begun(200), FIRST, LEFT]
    assert (fleet.requests_open, fleet.prefill_tokens) == (1, 0)
    fleet.answered(ENDED, NOW_S)
    assert fleet.requests_open == 0
    talk.session.close(NOW_S)
    assert fleet.told == [begun(200), FIRST, LEFT, ENDED, FINISHED]


def test_pieces_that_come_after_the_stream_was_left_say_nothing() -> None:
    fleet = Told()
    talk = Talk(fleet, policy=LEAVING)
    talk.say(*ASKED, GOOD, PIECE)
    talk.session.leave(NOW_S)
    told = list(fleet.told)
    for event in (PIECE, COMMENT, END, GOOD, ResponseHeaders(503)):
        assert talk.say(event) == ACKNOWLEDGE
        assert not talk.session.leaves
    assert fleet.told == told
    assert fleet.requests_open == 1


def test_an_end_that_is_told_while_the_stream_is_open_is_the_end() -> None:
    fleet = Told()
    talk = Talk(fleet, policy=LEAVING)
    talk.say(*ASKED, GOOD)
    fleet.answered(ENDED, NOW_S)
    assert fleet.requests_open == 0
    talk.say(PIECE)
    talk.session.leave(NOW_S)
    talk.session.close(NOW_S)
    assert fleet.requests_open == 0


@pytest.mark.parametrize("policy", [POLICY, LEAVING])
def test_what_is_counted_nowhere_tells_nothing_and_may_be_left_at_its_head(policy: RoutingPolicy) -> None:
    fleet = Told()
    talk = Talk(fleet, policy=policy)
    assert destination_of(talk.say(headers("/v1/models", end_of_stream=True)))
    assert not talk.session.leaves
    talk.say(ResponseHeaders(503))
    assert talk.session.leaves == policy.leave_after_first_token
    talk.say(GOOD, PIECE)
    assert fleet.told == []


@pytest.mark.parametrize("before", [[], [headers()]])
def test_answers_of_envoys_own_before_a_decision_say_nothing_about_a_node(before: Sequence[Event]) -> None:
    fleet = Told()
    talk = Talk(fleet, policy=LEAVING)
    for event in (*before, ResponseHeaders(408), PIECE, END, ResponseMessage()):
        assert talk.say(event) == ACKNOWLEDGE
    assert not talk.session.leaves
    assert not talk.session.decided
    assert fleet.told == []
    # Not that it would happen: a request that goes on all the same is routed, and its answer is seen.
    assert destination_of(talk.say(*ASKED[len(before) :]))
    talk.say(GOOD, PIECE)
    assert fleet.told == [begun(200), FIRST]


def test_a_node_that_answers_503_is_passed_over_from_its_head_on() -> None:
    fleet = Told()
    fleet.observe(NodeReported(snapshot("b")), NOW_S)
    hosts = set()
    for number in range(20):
        talk = Talk(fleet, request_id=str(number))
        host = destination_of(talk.say(*ASKED))
        hosts.add(host)
        talk.say(ResponseHeaders(503 if host == snapshot("a").host else 200))
        talk.session.close(NOW_S)
    sent = [decision.outcome.node_id for decision in fleet.decisions(20)]  # type: ignore[union-attr]
    assert hosts == {snapshot("a").host, snapshot("b").host}
    assert sent.count("a") == 1


SHOWN = st.one_of(
    st.builds(ResponseHeaders, st.sampled_from([0, 200, 206, 302, 404, 500, 503])),
    st.builds(ResponseBody, st.booleans(), st.booleans()),
    st.just(ResponseMessage()),
    st.sampled_from([RequestTrailers(), *ASKED, RequestHeaders("GET", "/v1/models"), RequestBody(b"x", False)]),
)


@given(events=st.lists(SHOWN, max_size=14), begins=st.integers(0, 2), leaving=st.booleans(), told=st.booleans())
def test_whatever_is_shown_in_whatever_order_nothing_is_told_twice_and_nothing_stays(
    events: list[Event], begins: int, leaving: bool, told: bool
) -> None:
    fleet = Told()
    talk = Talk(fleet, policy=LEAVING if leaving else POLICY)
    left = False
    for event in [*ASKED[:begins], *events]:
        shown = isinstance(event, ResponseHeaders | ResponseBody | ResponseMessage)
        action = talk.say(event)
        assert action == ACKNOWLEDGE or not shown
        if talk.session.leaves:
            assert leaving
            assert not left
            talk.session.leave(NOW_S)
            left = True
    if told:
        fleet.answered(ENDED, NOW_S)
    talk.session.close(NOW_S)
    heads = [one for one in fleet.told if isinstance(one, Answered) and not one.over]
    assert len(heads) <= 1
    assert fleet.told.count(FIRST) <= len([one for one in heads if one.ending is Ending.SERVED])
    assert fleet.told.count(LEFT) == left
    assert (FINISHED in fleet.told) == (told or not left)
    fleet.answered(ENDED, NOW_S)
    assert fleet.requests_open == 0
