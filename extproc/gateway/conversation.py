"""What passes between Envoy and one session: events in, actions out, as values.

Each event is answered by exactly one action; how many replies to Envoy that makes is for `replies` to say. Two are no
reply: `CountTokens` asks for a `TokensCounted`, and `Wait` for an `Admitted`; the answer to that goes on.
"""

import enum
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from extproc.core.decision import Decision
from extproc.core.policy import Destination
from extproc.prompt import CountedPrompt, Prompt

Metadata = Mapping[str, str | int | bool]
"""Dynamic metadata of namespace `extproc`, for access logs."""


class BodyMode(enum.Enum):
    """How Envoy shows the request's body: the filter's `request_body_mode`, as the first message tells it."""

    UNTOLD = "untold"
    """Envoys of before `protocol_config` do not tell: pieces are gathered until they are whole."""
    NONE = "none"
    """Not at all."""
    STREAMED = "streamed"
    """In pieces that go on as they are acknowledged. Envoy picks the host with the first, so the headers decide."""
    BUFFERED = "buffered"
    """Whole, in one message, which lacks `end_of_stream` where trailers follow."""
    PARTIAL = "partial"
    """In one message with as much of it as Envoy buffers; the rest is not shown."""
    DUPLEX = "duplex"
    """In pieces that we hold and give back, with the reply to the headers before them (FULL_DUPLEX_STREAMED)."""


IN_ONE: Final = (BodyMode.BUFFERED, BodyMode.PARTIAL)
"""No more than one message shows the body."""
REPLACEABLE: Final = (BodyMode.BUFFERED, BodyMode.DUPLEX)
"""The body that the node gets is the one that we give back; of others the first pieces have gone on."""


class HeadersWanted(Struct, frozen=True):
    """What a policy reads of a request's head, beside what every policy does."""

    names: frozenset[str] = frozenset()
    """Of headers, in lower case."""
    namespace: str = ""
    """Of the dynamic metadata that has the tenant's claim; empty: none is read."""
    claim: str = ""
    """Where it stands there, as `path.to.claim`."""


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
    mode: BodyMode = BodyMode.UNTOLD
    observed: bool = False
    """Envoy only tells, and does not hear what is answered (`observability_mode`)."""
    subset: tuple[str, ...] | None = None
    """Hosts that a gateway allows, as the endpoint-picker protocol hints; `None`: any."""
    named: Mapping[str, str] = {}
    """Values of the headers that the policy reads, printable, cut to `TENANT_CHARS_MAX` characters. Of a header that
    repeats the last one: what a gateway appends comes after what its client sent."""
    tenant_claim: str | None = None
    """The claim that names the tenant, as those; `None`: there is none, or no text, number or flag stands there."""


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
    served_by: str | None = None
    """The host that Envoy tried last, where its cluster tells us, as `ip:port`."""


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


class Admitted(Struct, frozen=True):
    """The end of a `Wait`: the request may go, or its time is up."""

    decision: Decision


Event = (
    RequestHeaders
    | RequestBody
    | RequestTrailers
    | ResponseHeaders
    | ResponseBody
    | ResponseMessage
    | TokensCounted
    | Admitted
)


class Acknowledge(Struct, frozen=True):
    """Go on; nothing is decided by this message."""


class CountTokens(Struct, frozen=True):
    """Count, then tell the session."""

    model: str
    prompt: Prompt
    body_bytes: int


class SetDestination(Struct, frozen=True):
    """Envoy shall send the request to the first of `hosts`, each `ip:port`; to the next ones if that fails."""

    hosts: tuple[str, ...]
    destination: Destination
    """How Envoy is told."""
    metadata: Metadata
    body: bytes | None = None
    """What the node gets instead of the body that came, in the reply to a whole body alone; `None`: that body."""
    body_wanted: bool = True
    """False: nobody here reads the body that may follow, and Envoy need not hold it back for us."""


class Continue(Struct, frozen=True):
    """The request goes on without a destination: Envoy's static cluster serves it."""

    metadata: Metadata = {}
    body: bytes | None = None
    """As of `SetDestination`, and so the next."""
    body_wanted: bool = True
    unnamed: Destination | None = None
    """In whose header no client's word may stand, so that it is removed; `None`: nothing is changed."""


class Wait(Struct, frozen=True):
    """There is no room yet: the request waits for an `Admitted`."""

    since_s: float
    """By the clock of `receive`."""
    until_s: float
    """When its time is up, by the same."""
    priority: str
    """Its class."""


class Respond(Struct, frozen=True):
    """The client is answered at once; no node sees the request."""

    status: int
    code: str
    """The error body's; in access logs `%RESPONSE_CODE_DETAILS%` is `extproc_` and this."""
    body: bytes
    headers: tuple[tuple[str, str], ...]
    metadata: Metadata


Action = Acknowledge | CountTokens | SetDestination | Continue | Wait | Respond
