"""Envoy's routes: which paths clients may use, and which cluster serves them."""

from extproc.core.settings import Fault
from extproc.render.clusters import has_known
from extproc.render.description import Description, Route
from extproc.render.parts import (
    CHOSEN,
    FAILOVER,
    KNOWN,
    LB_NAMESPACE,
    ORIGINAL_DST_HEADER,
    Part,
    per_route,
    retries,
    route_overrides,
)

_NOT_FOUND = (
    '{"error": {"message": "no such path", "type": "invalid_request_error", "param": null, "code": "not_found"}}'
)
_TOLD = ("node", "reason", "phase", "tokens", "policy")


def virtual_host(d: Description) -> Part:
    """All of one listener's routes."""
    host: Part = {"name": "llm", "domains": ["*"], "request_body_buffer_limit": d.body_bytes_max}
    if d.decision_headers:
        host["response_headers_to_add"] = [
            {
                "header": {"key": f"x-extproc-{one}", "value": f"%DYNAMIC_METADATA(extproc:{one})%"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                "keep_empty_value": False,
            }
            for one in _TOLD
        ]
    return host | {"routes": routes(d)}


def routes(d: Description) -> list[Part]:
    """The description's routes, each for a chosen and for a known node where both can be, and 404 for the rest."""
    adapters = {"safe_regex": {"regex": ".*/(un)?load_lora_adapter.*"}}
    served = [part for route in d.routes for part in _served(d, route)]
    rest = [] if any(route.prefix == "/" for route in d.routes) else [_refused("nothing-else", {"prefix": "/"})]
    return [_refused("no-adapters", adapters), *served, *rest]


def route_faults(d: Description) -> list[Fault]:
    """What no routes can do of a description."""
    if d.body_mode == "buffered-partial" and d.fail_open and d.destination != "override-host":
        # The decision would be counted at one node, and another one serve.
        why = "with body_mode buffered-partial Envoy picks no second route by the reply to a body"
        return [Fault("fail_open", f"false, or destination override-host: {why}", "true")]
    return []


def destination_named(d: Description) -> Part:
    """What matches once extproc has named a destination, and never before: clients' own headers are taken away."""
    if d.destination == "original-dst-metadata":
        path = [{"key": ORIGINAL_DST_HEADER}]
        return {"dynamic_metadata": [{"filter": LB_NAMESPACE, "path": path, "value": {"present_match": True}}]}
    return {"headers": [{"name": ORIGINAL_DST_HEADER, "present_match": True}]}


def _served(d: Description, route: Route) -> list[Part]:
    if d.destination == "override-host":
        return [_to(d, route, KNOWN, {})]
    if not has_known(d):
        return [_to(d, route, CHOSEN, {})]
    chosen = FAILOVER if d.failover else CHOSEN
    return [_to(d, route, chosen, destination_named(d)), _to(d, route, KNOWN, {})]


def _to(d: Description, route: Route, cluster: str, also: Part) -> Part:
    kind = "known" if cluster == KNOWN else "chosen"
    part: Part = {
        "name": kind if route.name is None else f"{route.name}-{kind}",
        "match": {"prefix": route.prefix, **also},
        "route": {"cluster": cluster},
    }
    if route.rewrite is not None:
        part["route"]["prefix_rewrite"] = route.rewrite
    part["route"]["timeout"] = "0s"
    if (retried := retries(d, cluster)) is not None:
        part["route"]["retry_policy"] = retried
    overrides = route_overrides(d, route)
    return part if overrides is None else part | {"typed_per_filter_config": overrides}


def _refused(name: str, match: Part) -> Part:
    return {
        "name": name,
        "match": match,
        "direct_response": {"status": 404, "body": {"inline_string": _NOT_FOUND}},
        "response_headers_to_add": [{"header": {"key": "content-type", "value": "application/json"}}],
        "typed_per_filter_config": per_route(disabled=True),
    }
