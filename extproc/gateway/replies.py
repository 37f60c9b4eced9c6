"""What is written to Envoy for each of its messages, which the body's mode decides.

| mode | replies |
|---|---|
| full duplex | none until the decision; then that to the headers, what has come of the body, and each later piece |
| observed | none |
| any other | exactly one to each message, of its kind |

In full duplex nobody but us has the body, so what has come is kept here until it may go on, an error of ours included.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from msgspec.structs import replace

from extproc.gateway import codec
from extproc.gateway.conversation import Acknowledge, Action, BodyMode, Continue, Respond, SetDestination
from extproc.gateway.requesthead import mode_of

PIECE_BYTES_MAX: Final = 64 * 1024
"""Of a body given back: what Envoy's authors advise."""
_ACKNOWLEDGE: Final = Acknowledge()


class OneEach:
    """Exactly one reply to each message."""

    __slots__ = ()

    can_wait = True
    """Whether Envoy's patience has an end that `codec.hold` puts off."""
    can_leave = True
    """Whether the stream may end before the answer does."""
    is_through = True
    """Whether the request goes on without us."""

    def to(self, message: ProcessingRequest, action: Action) -> Iterator[ProcessingResponse]:
        """The replies to a message, once its action is known. Raises for an action that is no reply to it."""
        yield codec.reply_of(action, codec.kind_of(message))


class Streamed(OneEach):
    """The same, where pieces of the body go on as they are acknowledged.

    The stream must not end before the body has: Envoy 1.40 sends what went on once more where a route has retries.
    """

    __slots__ = ("can_leave", "is_through")

    def __init__(self) -> None:
        self.can_leave = self.is_through = False

    def to(self, message: ProcessingRequest, action: Action) -> Iterator[ProcessingResponse]:
        """See `OneEach.to`."""
        kind = codec.kind_of(message)
        ends = message.request_headers.end_of_stream or message.request_body.end_of_stream
        if ends or kind == "request_trailers" or isinstance(action, Respond):
            self.can_leave = self.is_through = True
        yield codec.reply_of(action, kind)


class Nothing(OneEach):
    """Envoy does not listen."""

    __slots__ = ()

    can_wait = False

    def to(self, message: ProcessingRequest, action: Action) -> Iterator[ProcessingResponse]:  # noqa: ARG002
        """None."""
        yield from ()


class Duplex:
    """Bodies are held until the request is decided, and given back. Those of answers too where they are shown so."""

    __slots__ = ("_answers_too", "_ended", "_held", "_released", "is_through")

    can_wait = False  # full duplex knows no `message_timeout`

    def __init__(self, *, answers_too: bool) -> None:
        self._held: deque[bytes] = deque()
        self._released = False
        self._ended = {"request_body": False, "response_body": False}
        """Whether a body's end was given back: once, though Envoy may say it twice."""
        self._answers_too = answers_too
        self.is_through = False

    @property
    def can_leave(self) -> bool:
        """Answers may begin before the body has ended."""
        return self.is_through and not self._answers_too

    def to(self, message: ProcessingRequest, action: Action) -> Iterator[ProcessingResponse]:
        """See `OneEach.to`."""
        kind = codec.kind_of(message)
        if isinstance(action, Respond):
            self._held.clear()
            self._ended = dict.fromkeys(self._ended, True)  # Envoy takes nothing more
            self.is_through = self._released = True
            yield codec.reply_of(action, kind)
        elif kind in ("response_headers", "response_trailers", None):
            yield codec.reply_of(action, kind)
        elif kind == "response_body":
            yield from self._pieces(kind, deque((message.response_body.body,)), end=message.response_body.end_of_stream)
        else:
            yield from self._of_request(message, kind, action)

    def _of_request(self, message: ProcessingRequest, kind: str, action: Action) -> Iterator[ProcessingResponse]:
        first, ends = None, False
        if not self._released and isinstance(action, Continue | SetDestination):
            first = codec.reply_of(replace(action, body=None), "request_headers")  # it may raise: before all else
        if kind == "request_body":
            ends = message.request_body.end_of_stream
            self._held.append(message.request_body.body)
        if first is not None and isinstance(action, Continue | SetDestination):
            self._released = True
            if action.body is not None:
                self._held = deque((action.body,))
            yield first
        if not self._released:
            return
        yield from self._pieces("request_body", self._held, end=ends)
        if kind == "request_trailers":
            yield codec.reply_of(_ACKNOWLEDGE, kind)
        self.is_through = self.is_through or ends or kind == "request_trailers" or message.request_headers.end_of_stream

    def _pieces(self, kind: str, held: deque[bytes], *, end: bool) -> Iterator[ProcessingResponse]:
        """Give back what is held, and let go of it on the way."""
        if self._ended[kind]:
            held.clear()
        elif held:
            self._ended[kind] = end
        while held:
            data = held.popleft()
            whole = range(0, max(1, len(data)), PIECE_BYTES_MAX)
            for start in whole:
                ends = end and not held and start == whole[-1]
                if data or ends:
                    part = data if len(data) <= PIECE_BYTES_MAX else data[start : start + PIECE_BYTES_MAX]
                    yield codec.piece(kind, part, end_of_stream=ends)


Replies = OneEach | Duplex
_ONE_EACH: Final = OneEach()
_NOTHING: Final = Nothing()


def replies_to(first: ProcessingRequest) -> Replies:
    """How a stream is answered that begins with this message."""
    if first.observability_mode:
        return _NOTHING
    if mode_of(first) is BodyMode.DUPLEX:
        shown = first.protocol_config.response_body_mode
        return Duplex(answers_too=shown == ProcessingMode.FULL_DUPLEX_STREAMED)
    if mode_of(first) is BodyMode.STREAMED:
        return Streamed()
    return _ONE_EACH
