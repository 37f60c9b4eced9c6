"""Why each setting of Envoy's configuration is there: notes by the end of its path, written before it."""

from extproc.render.description import Description
from extproc.render.filternotes import filter_notes
from extproc.render.parts import CHOSEN, FAILOVER, KNOWN, PROCESSOR
from extproc.render.routenotes import route_notes

HEAD = """\
Written by `extproc render bootstrap`: change the description rather than this file, if there is one.
Run it with --disable-hot-restart, unless you use Envoy's hot restarter.
It was run with Envoy 1.40; request_body_buffer_limit came with 1.36, before it was per_request_buffer_limit_bytes."""

_MANAGER = {
    "early_header_mutation_extensions": (
        "\nRemoved before any filter runs, and before the first route is chosen: only extproc names a destination. "
        "Without this a client's own header would be obeyed whenever extproc is down: an open proxy. A route's "
        "request_headers_to_remove runs too late for that."
    ),
    "use_remote_address": (
        "\nThe id stands in our access log, in extproc's /decisions (x_request_id) and in the answer: a request can be "
        "followed. With use_remote_address Envoy takes away what would steer it, x-envoy-retry-on, "
        "x-envoy-upstream-rq-timeout-ms and the like, from all who are not internal."
    ),
    "internal_address_config": (
        "Nobody is internal. With no range here, or in old Envoys without this setting, every private address is, and "
        "so each client behind a balancer of one's own: it could have a request tried again and again, or forge the "
        "path of the access log."
    ),
    "normalize_path": (
        "Policies and what engines are asked at all hang on path prefixes: `/batch/../v1` must not slip through as the "
        "other route, and `/v1/..%2fmetrics` not as one of ours."
    ),
    "request_headers_timeout": (
        "\nA body holds memory here and a share of extproc's body budget until it has arrived: slow uploads end in "
        "408. 32 MiB in 60 s needs 4.5 Mbit/s; the time ends with the upload, generations are not touched."
    ),
    "stream_idle_timeout": (
        "The default of 5 minutes cuts generations that wait in an engine's queue or prefill long prompts in silence. "
        "An hour without a byte in either direction is a peer that has gone."
    ),
    "upgrade_configs": "As for /v1/realtime. Without it Envoy answers 403.",
    "access_log": (
        "\nEnvoy gathers lines for up to 10 s before it writes them: --file-flush-interval-msec 1000 shows them sooner."
    ),
    "json_format/outcome": (
        "What extproc decided, and why; policy_error stands where a route's policy could not be read. `arm` tells the "
        "requests of a canary's strategy from the rest."
    ),
    "json_format/priority": (
        "The class; how long the request waited for room; and what was asked for where an alias or a fallback made "
        "another model of it."
    ),
    "access_log/failures": (
        "\nHow each request ended, for extproc: a node that answers 503, refuses or breaks off is left out from the "
        "first time on. Only of requests that extproc was asked about, for 0.02 ms of both processes' time each. An "
        "entry carries more than it reads: path, user agent, the client's address, and the dynamic metadata of all "
        "filters, as of JWTs. Failures go at once (0 bytes: where the connection is full they wait; with a size they "
        "would be dropped), the others together every 0.1 s. When extproc is away entries are dropped."
    ),
    "local_reply_config": (
        "\nEnvoy's own errors in the shape that OpenAI clients parse. extproc's answers pass here too and already have "
        "it: the filters tell Envoy's own apart, by its flags and by the metadata that extproc's carry."
    ),
    "local_reply_config/mappers/2": (
        "The overload manager's carry no flag. Any other 503 has been matched above, or is extproc's."
    ),
    "local_reply_config/mappers/3": "extproc's own 500 (policies_strict) passes as it is.",
    "local_reply_config/mappers/4": "extproc did not answer, and nobody else may serve: Envoy has no other 500 or 504.",
}

_AROUND = {
    "admin": "Read and reset over HTTP by whoever reaches it: keep it on loopback.",
    "overload_manager": "\n",
    "resource_monitors/envoy.resource_monitors.global_downstream_max_connections": (
        "Clients beyond this are refused at once, instead of pulling everyone's memory away."
    ),
    "resource_monitors/envoy.resource_monitors.fixed_heap": (
        "A request's body is held until its response begins, for the retry: 2 GiB are 64 of the largest. Yours "
        "(heap_bytes_max): what this machine can spare. Near it memory is given back, then requests are answered 503, "
        "instead of Envoy being killed."
    ),
    "static_resources": "\n",
    "static_resources/clusters": "\n",
    "listeners/llm/per_connection_buffer_limit_bytes": (
        "A client that does not read costs this much for each of its answers, and an engine's answer waits; the "
        "default is 1 MiB each way, with which a thousand such clients fill the heap. Request bodies have a limit of "
        "their own below."
    ),
}

_LEFT_OUT = (
    "An extproc whose process is gone is left out after two requests that could not reach it, not after the two "
    "seconds that health checks need; they take it back."
)
_IN_TURN = (
    "The workers of extproc take turns, for a request costs them most at its start. By the least requests open, a "
    "worker that has just been started again would get all of them."
)


def notes(d: Description) -> dict[str, str]:
    """The notes on a description's bootstrap, for `yaml_text`."""
    return _AROUND | _MANAGER | route_notes(d) | filter_notes(d) | _cluster_notes(d)


def _cluster_notes(d: Description) -> dict[str, str]:
    breakers = (
        "Overload is extproc's to judge, who knows the engines; the default of 1024 requests over all nodes is nothing."
    )
    idle = (
        "uvicorn, and so vLLM, closes idle connections after 5 s: let go of them first, or a request meets a closing "
        "one."
    )
    first = KNOWN if d.destination == "override-host" else CHOSEN
    override = d.destination == "override-host"
    known = (
        "The nodes: extproc names those of them that a request goes to. A host that is not among them is skipped, so "
        "agents have to name their engines as they stand here, by address and port."
        if override
        else "The nodes that Envoy knows itself: for the time before extproc knows one, and when extproc is down"
        + (", and instead of a chosen one that fails." if d.failover else ".")
    )
    by_name = " STRICT_DNS asks again and again, and takes every address of a name: a headless service is enough."
    return {
        f"clusters/{CHOSEN}": "The node that extproc chose: Envoy connects to whatever address it names.",
        f"{CHOSEN}/transport_socket": _node_tls_note(d),
        f"clusters/{KNOWN}": ("" if override else "\n") + known + by_name,
        f"{KNOWN}/load_balancing_policy": (
            "The listed hosts in their order, a retry the next one; what is not listed or not known goes in turn, as "
            "it does while extproc is down. selected_host_key tells extproc who served in the end."
        ),
        f"{KNOWN}/transport_socket": _node_tls_note(d),
        f"{KNOWN}/health_checks": (
            "no_traffic_interval: this cluster seldom has traffic, and its default of 60 s would make the knowledge "
            "old."
        ),
        f"{first}/circuit_breakers": breakers,
        f"{first}/typed_extension_protocol_options": idle,
        f"clusters/{FAILOVER}": (
            "\nEach attempt has a cluster of its own: by the chosen node's a retry would ask that node again. Since "
            "Envoy 1.37."
        ),
        f"{FAILOVER}/circuit_breakers": "Retries are counted here: the default of three at a time is no burst.",
        f"clusters/{PROCESSOR}": "\n",
        **({f"{PROCESSOR}/lb_policy": _IN_TURN} if d.workers > 1 else {}),
        f"{PROCESSOR}/circuit_breakers": (
            "Every request in flight holds one gRPC stream: the default of 1024 requests would be the limit of the "
            "gateway."
        ),
        **({f"{PROCESSOR}/outlier_detection": _LEFT_OUT} if len(d.endpoints) > 1 else {}),
        f"{PROCESSOR}/health_checks": (
            "A process that is alive and hangs gets new requests until this notices, within 3 s. Those that it has by "
            "then wait for message_timeout, those in its queue until the keepalive below, 17 s, or for as long as they "
            "asked; running answers go on."
        ),
        f"{PROCESSOR}/common_lb_config": (
            "Nobody healthy: fail open at once. The default is to try the unhealthy ones all the same."
            if d.fail_open
            else "Nobody healthy: refuse at once. The default is to try the unhealthy ones all the same."
        ),
        f"{PROCESSOR}/transport_socket": (
            "Files are read when Envoy starts: new ones need a restart, or secrets by SDS. gRPC needs h2 agreed on."
        ),
    }


def _node_tls_note(d: Description) -> str:
    assert_name = d.node_tls is not None and d.node_tls.name is not None
    named = (
        "All nodes show a certificate with this one name: they are reached by address, which no certificate need hold."
        if assert_name
        else "No name is given (node_tls.name): any certificate of this authority is taken for a node's."
    )
    return named + " Without trusted_ca Envoy would take any certificate at all."
