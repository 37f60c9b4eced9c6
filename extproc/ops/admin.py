"""Pages for operators and probes, over HTTP.

Everything is read from the balancer on its own thread, as values. Turning thousands of nodes into text takes time
and is done in another thread, so that a scrape never holds up a request.
"""

import asyncio
import math
from collections.abc import Callable

import msgspec
from aiohttp import web

from extproc.core.balancer import Balancer
from extproc.core.decision import Candidate, Chosen, Decision, Outcome
from extproc.ops.metrics import Metrics
from extproc.ops.nodegauges import NodeSample, samples_of

DECISIONS_SHOWN = 20
"""Shown by /decisions without a limit."""
DECISIONS_SHOWN_MAX = 100_000
"""The most that /decisions can be asked for, as many as can be kept."""
NOT_SCORED = "not scored"
"""Why a candidate was passed over whose cost the strategy did not ask for."""

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_INDEX = """extproc
/healthz               200 while the process lives
/readyz                200 when a node is known and we do not drain, else 503; how many of the nodes are ready
/metrics               for Prometheus
/nodes                 every node: snapshot, age, freshness, what was sent there and learned of it (?node=ID for one)
/decisions?limit=N     the latest decisions, newest first: candidates, costs (null: not scored), reason
"""


def build(
    balancer: Balancer, metrics: Metrics, clock: Callable[[], float], draining: Callable[[], bool]
) -> web.Application:
    """The application; it keeps no state of its own. `clock` is the balancer's, in seconds."""
    pages = _Pages(balancer, metrics, clock, draining)
    app = web.Application()
    app.add_routes(
        [
            web.get("/", pages.index),
            web.get("/healthz", pages.healthz),
            web.get("/readyz", pages.readyz),
            web.get("/metrics", pages.metrics),
            web.get("/nodes", pages.nodes),
            web.get("/decisions", pages.decisions),
        ]
    )
    return app


class _Pages:
    def __init__(
        self, balancer: Balancer, metrics: Metrics, clock: Callable[[], float], draining: Callable[[], bool]
    ) -> None:
        self._balancer = balancer
        self._metrics = metrics
        self._clock = clock
        self._draining = draining

    async def index(self, _: web.Request) -> web.Response:
        return web.Response(text=_INDEX)

    async def healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.Response:
        if self._draining():
            return _json({"ready": False, "reason": "draining"}, status=503)
        # A member is enough, however old its word: the fallback can send requests there.
        nodes = len(self._balancer.views())
        if not nodes:
            return _json({"ready": False, "reason": "no node has reported"}, status=503)
        return _json({"ready": True, "nodes": nodes, "nodes_ready": sum(one.is_ready for one in self._samples())})

    async def metrics(self, _: web.Request) -> web.Response:
        page = await asyncio.to_thread(self._metrics.page, self._samples())
        return web.Response(body=page, headers={"content-type": _METRICS_TYPE})

    async def nodes(self, request: web.Request) -> web.Response:
        samples = self._samples()
        if (node_id := request.query.get("node")) is not None:
            samples = [one for one in samples if one.view.snapshot.node_id == node_id]
            if not samples:
                return _json({"error": f"no node {node_id[:256]!r}"}, status=404)
        return web.Response(body=await asyncio.to_thread(_nodes_page, samples), content_type="application/json")

    async def decisions(self, request: web.Request) -> web.Response:
        asked = request.query.get("limit", str(DECISIONS_SHOWN))
        if not (asked.isascii() and asked.isdigit() and len(asked) <= 6 and int(asked) <= DECISIONS_SHOWN_MAX):
            wanted = f"limit: wanted a number from 0 to {DECISIONS_SHOWN_MAX}, got {asked[:80]!r}"
            return _json({"error": wanted}, status=400)
        decisions = self._balancer.decisions(int(asked))
        page = await asyncio.to_thread(_decisions_page, decisions, self._clock())
        return web.Response(body=page, content_type="application/json")

    def _samples(self) -> list[NodeSample]:
        return samples_of(self._balancer, self._clock())


def _nodes_page(samples: list[NodeSample]) -> bytes:
    """Every field of each snapshot, null where it is not known, and what the router adds; sorted by node id."""
    samples = sorted(samples, key=lambda one: one.view.snapshot.node_id)
    return _encoded({"nodes": [_node(one) for one in samples]})


def _node(sample: NodeSample) -> dict[str, object]:
    """What an operator looks for stands first.

    Of the prompt work at the node it is `prefill_tokens_ahead`, as of now; what it is made from rests on our clock.
    """
    snapshot: dict[str, object] = msgspec.to_builtins(sample.view.snapshot)
    first = {name: snapshot.pop(name) for name in ("node_id", "host", "state")}
    view = sample.view
    own: dict[str, object] = msgspec.to_builtins(view.own)
    del own["work_tokens"], own["work_since_s"]
    ours = {
        "freshness": sample.freshness.value,
        "age_s": round(sample.age_s, 3),
        "out_s": None if sample.out_s is None else round(sample.out_s, 3),
        "in_flight": view.in_flight,
        "prefill_tokens_ahead": round(sample.tokens_ahead),
        "learned": msgspec.to_builtins(view.learned),
        "own": own,
    }
    return first | ours | snapshot


def _decisions_page(decisions: list[Decision], now_s: float) -> bytes:
    """Newest first; `age_s` stands for the time on our clock, which means nothing outside.

    `request_id` is ours; `x_request_id` is the one that stands in Envoy's access log and in the answer.
    """
    shown = []
    for decision in decisions:
        fields = msgspec.to_builtins(decision)
        fields["x_request_id"] = fields.pop("trace_id")
        fields["age_s"] = round(now_s - fields.pop("at_s"), 3)
        fields["outcome"] = {"kind": type(decision.outcome).__name__.lower()} | fields["outcome"]
        fields["candidates"] = [_candidate(one, decision.outcome) for one in decision.candidates]
        shown.append(fields)
    return _encoded({"decisions": shown})


def _candidate(one: Candidate, outcome: Outcome) -> dict[str, object]:
    """How a node fared. `power-of-two` scores two nodes; the others have no cost, and that is why they stand behind."""
    fields: dict[str, object] = one._asdict()
    if one.cost == math.inf:
        fields["cost"] = None
        if one.excluded is None and not (isinstance(outcome, Chosen) and outcome.node_id == one.node_id):
            fields["excluded"] = NOT_SCORED
    return fields


def _encoded(content: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(body=_encoded(content), status=status, content_type="application/json")
