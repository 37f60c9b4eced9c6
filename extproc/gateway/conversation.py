"""What passes between Envoy and one session: events in, actions out, as values.

Envoy waits for exactly one reply to each message of a stream, so each event is answered by exactly one action.
`CountTokens` alone is no reply: it asks for a `TokensCounted`, and the answer to that is the reply.
"""

from collections.abc import Mapping

from msgspec import Struct

from extproc.prompt import CountedPrompt, Prompt

Metadata = Mapping[str, str | int | bool]
"""Dynamic metadata of namespace `extproc`, for access logs."""


class RequestHeaders(Struct, frozen=True):
    """The request began."""

    method: str
    path: str
    """With the query."""
    content_length: int | None = None
    """What the client claims, in bytes; `None`: nothing, or no number."""
    trace_id: str = ""
    """`x-request-id`, cut to 128 characters."""
    end_of_stream: bool = False
    """There is no body."""
    body_in_one: bool = False
    """Envoy sends the whole body in one message, which lacks `end_of_stream` where trailers follow."""


class RequestBody(Struct, frozen=True):
    """A piece of the body, or all of it."""

    data: bytes
    end_of_stream: bool


class RequestTrailers(Struct, frozen=True):
    """The request ended with trailers."""


class ResponseHeaders(Struct, frozen=True):
    """The answer began. Engines may send its head long before the first token."""

    status: int
    """Of HTTP; 0 where it has none that HTTP knows, or where Envoy answers for a limit of its own."""


class ResponseBody(Struct, frozen=True):
    """A piece of the answer."""

    has_output: bool
    """Whether there is more in it than what engines send before the first token."""
    end_of_stream: bool


class ResponseMessage(Struct, frozen=True):
    """Something else about the response, or a kind of message that we do not know."""


class TokensCounted(Struct, frozen=True):
    """The answer to `CountTokens`."""

    prompt: CountedPrompt


Event = (
    RequestHeaders | RequestBody | RequestTrailers | ResponseHeaders | ResponseBody | ResponseMessage | TokensCounted
)


class Acknowledge(Struct, frozen=True):
    """Go on; nothing is decided by this message."""


class CountTokens(Struct, frozen=True):
    """Count, then tell the session."""

    model: str
    prompt: Prompt
    body_bytes: int


class SetDestination(Struct, frozen=True):
    """Envoy shall send the request to `host`, as `ip:port`."""

    host: str
    metadata: Metadata


class Continue(Struct, frozen=True):
    """The request goes on without a destination: Envoy's static cluster serves it."""

    metadata: Metadata = {}


class Respond(Struct, frozen=True):
    """The client is answered at once; no node sees the request."""

    status: int
    code: str
    """The error body's; in access logs `%RESPONSE_CODE_DETAILS%` is `extproc_` and this."""
    body: bytes
    headers: tuple[tuple[str, str], ...]
    metadata: Metadata


Action = Acknowledge | CountTokens | SetDestination | Continue | Respond
