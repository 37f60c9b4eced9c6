"""Why the external processor's filter, and the one before it, are set as they are."""

from extproc.render.description import BodyMode, Description

_COMMON = {
    "http_filters/usage-of-answers": (
        "`ends` also tells what engines say of tokens, so that extproc sees whether it counts as they do, for about "
        "0.1 ms of Envoy's time a request and 3 µs a streamed piece. Not by json_to_metadata, which holds answers "
        "until they are whole and makes a 500 of those beyond request_body_buffer_limit, and sse_to_metadata, which is "
        "work in progress in 1.40. Nothing is held here."
    ),
    "grpc_service/retry_policy": (
        "UNAVAILABLE is how a draining extproc refuses: another one is asked, if there is another. Not inside of "
        "envoy_grpc, where Envoy takes it for streams of xDS and for no others."
    ),
    "allow_mode_override": (
        "extproc asks not to be sent the bodies of what is no inference: websockets and uploads then pass unheld."
    ),
    "request_attributes": "Routes' own metadata, where a policy may stand in the namespace `extproc.policy`.",
    "mutation_rules": (
        "Envoy drops, without a word, what is not allowed here, and x-envoy-* is never allowed by default. The rules "
        "hold for refusals as well: their headers are the last three. content-length goes with a new body, where an "
        "alias changes the model: without it such requests are answered 500, for Envoy keeps the old body's length."
    ),
    "forward_rules": (
        "extproc is shown these headers only: no authorization and no cookie leaves Envoy, and less is parsed. The "
        "tenant_header and priority_header of policies have to be added (headers_shown). What a client may not choose "
        "itself must be set or removed before, as by early_header_mutation_extensions above or claim_to_headers of "
        "jwt_authn. x-envoy-overloaded stands on Envoy's own 503 over a circuit breaker: no node's fault."
    ),
}

_NO_USAGE = "`usage: true` in the description puts a filter here by which `ends` also tells what engines say of tokens."

_BODIES: dict[BodyMode, str] = {
    "buffered": (
        "Headers are needed first (SKIP lets Envoy choose a host before the body is there), then the whole body."
    ),
    "full-duplex": (
        "Headers first, then the body piece by piece, which extproc gives back; it holds its answer to the headers "
        "until it has chosen. So bodies may be longer than Envoy holds. Request trailers must be sent in this mode."
    ),
    "streamed": (
        "Envoy chooses a host as soon as extproc has answered the headers: it decides by path, length and the model's "
        "header, and sees the body pass."
    ),
    "buffered-partial": (
        "Headers first, then as much of the body as Envoy holds (request_body_buffer_limit): extproc decides by that."
    ),
    "none": "Headers only: extproc decides by path, length and the model's header.",
}


def filter_notes(d: Description) -> dict[str, str]:
    """The notes on a description's filters, by the ends of their paths."""
    return _COMMON | {
        "http_filters": "\n" + ("" if d.usage else _NO_USAGE),
        "grpc_service/initial_metadata": _told(d),
        "typed_config/failure_mode_allow": _failure(d),
        "typed_config/message_timeout": _timeouts(d),
        "typed_config/processing_mode": _modes(d),
        "typed_config/metadata_options": _metadata(d),
    }


def _told(d: Description) -> str:
    told = "Routes override it per key. Clients cannot forge it: it is not made of their headers."
    if d.destination == "original-dst":
        return told
    return f"{told} x-extproc-destination holds over the policy's `destination`: what is below obeys this one only."


def _failure(d: Description) -> str:
    if d.body_mode == "full-duplex":
        return (
            "Ignored in this body mode: when extproc is down requests are answered 500, and when it dies running "
            "answers are cut. Where requests have to be served without it, use `buffered`."
        )
    if d.fail_open:
        return (
            "Errors of extproc send the request on without a destination. It also keeps the running answers alive when "
            "extproc dies: with `false` Envoy cuts every one of them."
        )
    return "Errors of extproc are answered 500 and 504, and when it dies Envoy cuts every running answer."


def _timeouts(d: Description) -> str:
    if d.body_mode == "full-duplex":
        return "Envoy has no such timeout in this body mode: stream_idle_timeout alone ends what extproc never answers."
    return (
        "How long one answer of extproc may take, then as if it were down. Requests that wait for room ask for more "
        "time, up to max_message_timeout: that is more than the longest queue_ms_max of extproc's `classes` (30 s as "
        "shipped), raise it with that, else requests leave the queue for Envoy's own cluster."
    )


def _modes(d: Description) -> str:
    trailers = (
        "Response trailers: with them extproc's stream lasts until the answer ends, whatever the other modes are, and "
        "that is how it counts requests in flight. Without trailers no message is sent, and no response byte is."
    )
    if d.destination == "override-host":
        heads = "The head of the answer tells extproc which of the listed hosts served."
    else:
        heads = (
            "Where several extprocs serve this Envoy response_header_mode is SEND (several_processors): the logs tell "
            "but one of them of a node that fails; the head, for 0.2 ms of both processes' time a request, tells the "
            "one that chose it."
        )
    if any(route.first_tokens for route in d.routes):
        first = "Routes ask for more, to see first tokens as they pass."
    else:
        first = "`first_tokens: true` at a route of the description asks for more: first tokens as they pass."
    return "\n".join((_BODIES[d.body_mode], trailers, heads, first))


def _metadata(d: Description) -> str:
    told = "What extproc tells the access log; other namespaces are dropped."
    if d.destination != "original-dst":
        told = "What extproc tells the access log, and in envoy.lb the destination; other namespaces are dropped."
    return (
        f"{told} A policy's tenant_metadata needs its namespace among those that are forwarded (metadata_shown:"
        " [envoy.filters.http.jwt_authn]), and jwt_authn before this filter. No client can write any of them."
    )
