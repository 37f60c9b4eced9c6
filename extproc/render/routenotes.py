"""Why Envoy's routes are as they are."""

from extproc.render.description import Description


def route_notes(d: Description) -> dict[str, str]:
    """The notes on a description's routes, by the ends of their paths."""
    first = _first_route(d)
    return (
        _COMMON
        | _two_routes(d)
        | {
            f"routes/{first}/route/timeout": _time(d),
            f"routes/{first}/route/retry_policy": _retries(d),
        }
    )


_COMMON = {
    "virtual_hosts/llm/request_body_buffer_limit": (
        "Bodies are held whole until extproc has chosen, and for a retry until the answer begins. The default of 1 MiB "
        "is a long chat; above this limit: 413. Keep it equal to extproc's limits.body_bytes_max."
    ),
    "virtual_hosts/llm/response_headers_to_add": (
        "\nFor the demo only: its client shows what was decided. Elsewhere clients need not know the nodes."
    ),
    "routes/no-adapters": "Not for clients: vLLM loads adapters by this path, where it was started so that it does.",
    "overrides/grpc_initial_metadata": (
        "A policy in place, or the name of one in extproc's configuration. Percent signs are doubled."
    ),
    "overrides/processing_mode": (
        "First tokens as they pass: extproc is sent the head and the first piece of each answer, leaves the stream, "
        "and has the end from the log `ends`. For 0.2 ms of both processes' time a request, and only where one extproc "
        "serves this Envoy: of several it tells one. A route without a policy in the description has the policy "
        "`first-tokens` then, with defaults otherwise: policies.default of extproc's configuration does not hold there."
    ),
    "retry_policy/retry_host_predicate": (
        "A retry goes to a node that has not been tried: one more engine for a request that kills engines."
    ),
    "routes/nothing-else": (
        "Engines have more than the API, and no login there: /metrics, /slots, /sleep, the reset of caches. Not for "
        "clients."
    ),
}


def _first_route(d: Description) -> str:
    kind = "known" if d.destination == "override-host" else "chosen"
    name = d.routes[0].name
    return kind if name is None else f"{name}-{kind}"


def _two_routes(d: Description) -> dict[str, str]:
    if d.destination == "override-host":
        text = (
            "\nOne route for each prefix: the cluster's own policy takes the hosts that extproc names, and others in "
            "turn where it names none."
        )
    elif d.fail_open:
        text = (
            "\nEach prefix has two routes. A request starts on the second one, for nobody has named a destination yet; "
            "extproc's answer names it and clears the route cache, and the first one matches. When extproc is down, "
            "hangs or knows no node, the request stays on the second: an Envoy cluster over the known nodes serves it "
            "(fail-open). So what a route says about policy and time must stand on both."
        )
    else:
        text = "\nRequests that extproc names no node for are answered 503: nobody else is asked."
    return {"virtual_hosts/llm/routes": text}


def _time(d: Description) -> str:
    timeout = "The default of 15 s cuts generations."
    if d.body_mode not in ("streamed", "buffered-partial"):
        return timeout
    if d.failover or d.destination == "override-host":
        return f"{timeout} The price of the retries in this body mode: {_TWICE}."
    return f"{timeout} No retry_policy in this body mode: with one, {_TWICE}."


_TWICE = "when extproc fails during an upload, what has gone on of it reaches the node twice"


def _retries(d: Description) -> str:
    if d.destination == "override-host":
        return (
            "Each retry goes to the next host of extproc's list, without asking it again. `reset` holds only while no "
            "byte of an answer has come, 503 is an engine that takes nothing now. The price: where a connection breaks "
            "after minutes of an answer that is not streamed, all of it is computed again, and a request that kills "
            "engines meets as many as are listed."
        )
    if d.failover:
        return (
            "Each retry goes to a known node, without asking extproc again; one retry fewer than that cluster has "
            "clusters. `reset` holds only while no byte of an answer has come; that the engine had begun is not known, "
            "so an answer that is not streamed may be computed again, and a request that kills engines meets three. "
            "extproc leaves the chosen node out for a while, also where it had but closed an idle connection."
        )
    return (
        "The same node again: nobody asks extproc a second time. `reset` holds only while no byte of an answer has "
        "come. llama.cpp closes connections after each stream without saying so; a request that meets that is sent "
        "again. The price: whether the engine had begun is not known. Where a connection breaks after minutes of an "
        "answer that is not streamed, all of it is computed again. Hence one retry and no more."
    )
