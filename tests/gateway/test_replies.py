"""What is written to Envoy for each message: one reply each, none, or a body given back piece by piece."""

from collections.abc import Sequence

import pytest
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)
from hypothesis import given
from hypothesis import strategies as st

from extproc.gateway.conversation import Acknowledge, Action, Continue, Respond, SetDestination
from extproc.gateway.replies import PIECE_BYTES_MAX, Duplex, replies_to

ACK = Acknowledge()
CHOSEN = SetDestination(("10.0.0.1:80",), "original-dst", {"node": "a"})
DECISIONS = [CHOSEN, Continue()]
RESPOND = Respond(429, "overloaded", b"{}", (), {})
HEAD = ProcessingRequest(request_headers=HttpHeaders())


def piece(data: bytes, *, end: bool = False) -> ProcessingRequest:
    return ProcessingRequest(request_body=HttpBody(body=data, end_of_stream=end))


def answer_piece(data: bytes, *, end: bool = False) -> ProcessingRequest:
    return ProcessingRequest(response_body=HttpBody(body=data, end_of_stream=end))


TRAILERS = ProcessingRequest(request_trailers=HttpTrailers())


def kinds(replies: Sequence[ProcessingResponse]) -> list[str | None]:
    return [one.WhichOneof("response") for one in replies]


def given_back(replies: Sequence[ProcessingResponse], kind: str = "request_body") -> tuple[list[bytes], list[bool]]:
    """The pieces, and which of them say that the body ends."""
    pieces = [
        getattr(one, kind).response.body_mutation.streamed_response
        for one in replies
        if one.WhichOneof("response") == kind
    ]
    return [one.body for one in pieces], [one.end_of_stream for one in pieces]


def duplex() -> Duplex:
    return Duplex(answers_too=False)


def first(mode: ProcessingMode.BodySendMode.ValueType, **changes: object) -> ProcessingRequest:
    told = ProtocolConfiguration(request_body_mode=mode, response_body_mode=changes.pop("answers", 0))
    return ProcessingRequest(request_headers=HttpHeaders(), protocol_config=told, **changes)


@pytest.mark.parametrize("mode", [ProcessingMode.NONE, ProcessingMode.BUFFERED, ProcessingMode.STREAMED])
def test_in_other_modes_each_message_has_one_reply_of_its_kind(mode: ProcessingMode.BodySendMode.ValueType) -> None:
    replies = replies_to(first(mode))
    goes_on = mode == ProcessingMode.STREAMED  # and would be sent twice if the stream ended before the body
    assert (replies.can_wait, replies.can_leave, replies.is_through) == (True, not goes_on, not goes_on)
    for message, kind in ((HEAD, "request_headers"), (piece(b"x"), "request_body"), (TRAILERS, "request_trailers")):
        assert kinds(list(replies.to(message, ACK))) == [kind]
    assert (replies.can_leave, replies.is_through) == (True, True)
    assert kinds(list(replies.to(piece(b"x"), RESPOND))) == ["immediate_response"]


def test_who_only_observes_is_not_answered() -> None:
    replies = replies_to(first(ProcessingMode.STREAMED, observability_mode=True))
    assert not replies.can_wait
    for action in (ACK, CHOSEN, RESPOND):
        assert list(replies.to(piece(b"x", end=True), action)) == []


@pytest.mark.parametrize("decision", DECISIONS)
def test_in_full_duplex_nothing_is_said_until_the_decision_and_then_all(decision: Action) -> None:
    replies = duplex()
    for message in (HEAD, piece(b"abc"), piece(b"def")):
        assert list(replies.to(message, ACK)) == []
        assert not replies.is_through
    told = list(replies.to(piece(b"", end=True), decision))
    assert kinds(told) == ["request_headers", "request_body", "request_body", "request_body"]
    assert given_back(told) == ([b"abc", b"def", b""], [False, False, True])
    assert replies.is_through
    head = told[0].request_headers.response
    assert bool(head.header_mutation.set_headers) == (decision is CHOSEN)
    assert not head.HasField("body_mutation")


def test_a_decision_at_the_headers_goes_at_once_and_each_piece_behind_it() -> None:
    replies = duplex()
    assert kinds(list(replies.to(HEAD, CHOSEN))) == ["request_headers"]
    assert given_back(list(replies.to(piece(b"abc"), ACK))) == ([b"abc"], [False])
    assert not replies.is_through
    assert given_back(list(replies.to(piece(b"d", end=True), ACK))) == ([b"d"], [True])
    assert replies.is_through


def test_a_request_without_a_body_is_through_with_its_headers() -> None:
    replies = duplex()
    headers = ProcessingRequest(request_headers=HttpHeaders(end_of_stream=True))
    assert kinds(list(replies.to(headers, CHOSEN))) == ["request_headers"]
    assert replies.is_through


def test_the_end_is_said_once_though_envoy_says_it_twice() -> None:
    replies = duplex()
    list(replies.to(HEAD, ACK))
    told = list(replies.to(piece(b"abc", end=True), CHOSEN))
    told += replies.to(piece(b"", end=True), ACK)
    assert given_back(told) == ([b"abc"], [True])


def test_trailers_end_a_body_that_has_no_end_of_its_own() -> None:
    replies = duplex()
    assert list(replies.to(HEAD, ACK)) + list(replies.to(piece(b"abc"), ACK)) == []
    told = list(replies.to(TRAILERS, CHOSEN))
    assert kinds(told) == ["request_headers", "request_body", "request_trailers"]
    assert given_back(told) == ([b"abc"], [False])
    assert replies.is_through


def test_a_body_written_anew_goes_instead_of_the_one_that_came() -> None:
    replies = duplex()
    for message in (HEAD, piece(b"old"), piece(b"body")):
        assert list(replies.to(message, ACK)) == []
    told = list(replies.to(piece(b"", end=True), SetDestination(("10.0.0.1:80",), "original-dst", {}, b"new")))
    assert given_back(told) == ([b"new"], [True])


def test_a_refusal_is_all_that_is_said() -> None:
    replies = duplex()
    list(replies.to(HEAD, ACK))
    assert kinds(list(replies.to(piece(b"abc"), RESPOND))) == ["immediate_response"]
    assert replies.is_through
    assert list(replies.to(piece(b"def", end=True), ACK)) == [], "Envoy takes nothing more"


def test_what_is_given_back_is_held_no_longer() -> None:
    replies = duplex()
    for message in (HEAD, piece(b"abc"), piece(b"def")):
        list(replies.to(message, ACK))
    told = replies.to(piece(b"", end=True), CHOSEN)
    held = [len(replies._held) for _ in told]
    assert held == [3, 2, 1, 0]


def test_a_refusal_of_a_streamed_request_ends_it() -> None:
    replies = replies_to(first(ProcessingMode.STREAMED))
    list(replies.to(HEAD, RESPOND))
    assert replies.is_through


@pytest.mark.parametrize("answers", [False, True])
def test_answers_shown_in_full_duplex_are_given_back_too(answers: bool) -> None:
    shown = ProcessingMode.FULL_DUPLEX_STREAMED if answers else ProcessingMode.NONE
    replies = replies_to(first(ProcessingMode.FULL_DUPLEX_STREAMED, answers=shown))
    assert not replies.can_leave, "before the body has ended"
    list(replies.to(ProcessingRequest(request_headers=HttpHeaders(end_of_stream=True)), CHOSEN))
    assert replies.can_leave is not answers
    head = list(replies.to(ProcessingRequest(response_headers=HttpHeaders()), ACK))
    assert kinds(head) == ["response_headers"]
    told = [reply for one in (b"a", b"b") for reply in replies.to(answer_piece(one), ACK)]
    told += replies.to(answer_piece(b"", end=True), ACK)
    assert given_back(told, "response_body") == ([b"a", b"b", b""], [False, False, True])


def test_an_action_that_is_no_reply_changes_nothing_so_that_another_can_follow() -> None:
    replies = duplex()
    list(replies.to(HEAD, ACK))
    wrong = SetDestination(("10.0.0.1:80\udc80",), "original-dst", {})
    with pytest.raises(UnicodeEncodeError):
        list(replies.to(piece(b"abc", end=True), wrong))
    told = list(replies.to(piece(b"abc", end=True), Continue()))
    assert given_back(told) == ([b"abc"], [True])


SIZES = st.sampled_from([0, 1, PIECE_BYTES_MAX - 1, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 3 * PIECE_BYTES_MAX])


@given(
    sizes=st.lists(SIZES, min_size=1, max_size=5),
    decided=st.integers(-1, 4),
    trailers=st.booleans(),
    anew=st.one_of(st.none(), SIZES),
)
def test_whatever_comes_in_goes_out_in_small_pieces_and_ends_once(
    sizes: list[int], decided: int, trailers: bool, anew: int | None
) -> None:
    """`decided`: at which piece; -1 is at the headers."""
    last = len(sizes) - 1
    decided = min(decided, last)
    written = None if anew is None or decided != last else b"n" * anew
    decision = SetDestination(("10.0.0.1:80",), "original-dst", {}, written)
    chunks = [bytes([97 + at]) * size for at, size in enumerate(sizes)]
    replies = duplex()
    told = list(replies.to(HEAD, decision if decided == -1 else ACK))
    for at, chunk in enumerate(chunks):
        told += replies.to(piece(chunk, end=at == last and not trailers), decision if at == decided else ACK)
    if trailers:
        told += replies.to(TRAILERS, ACK)
    assert told[0].WhichOneof("response") == "request_headers"
    pieces, ends = given_back(told)
    assert b"".join(pieces) == (b"".join(chunks) if written is None else written)
    assert max(map(len, pieces), default=0) <= PIECE_BYTES_MAX
    assert ends.count(True) == (0 if trailers else 1)
    if not trailers:
        assert ends[-1]
    assert kinds(told).count("request_trailers") == trailers
    assert replies.is_through
