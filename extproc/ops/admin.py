"""Pages for operators and probes, over HTTP.

Everything is read from the balancer on its own thread, as values. Turning thousands of nodes into text takes time
and is done in another thread, one page after the other, so that scrapes do not hold up requests. Such pages have
megabytes: only a few are held at once, and none for a reader who does not read.
"""

import asyncio
import math
from collections.abc import Callable, Collection
from functools import partial

import msgspec
from aiohttp import web

from extproc.adminport import to_no_web_page
from extproc.core.balancer import Balancer
from extproc.core.decision import Candidate, Chosen, Decision, Outcome, Queued
from extproc.core.forecast import ModelForecast
from extproc.core.peerload import PeerLoad
from extproc.ops.capacitypage import capacity_page
from extproc.ops.exchangepage import peers_page
from extproc.ops.metrics import Metrics
from extproc.ops.nodegauges import NodeSample, samples_of
from extproc.wholepages import JSON_TYPE, WholePages, encoded, json_page

DECISIONS_SHOWN = 20
"""Shown by /decisions without a limit."""
DECISIONS_SHOWN_MAX = 100_000
"""The most that /decisions can be asked for, as many as can be kept."""
PAGES_MAX = 8
"""Pages of /metrics, /nodes and /decisions that are being made or sent at once; who asks for one more gets 503."""
NOT_SCORED = "not scored"
"""Why a candidate was passed over whose cost the strategy did not ask for."""

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_INDEX = """extproc
/healthz               200 while the process lives
/readyz                200 when a node is known and we do not drain, else 503; how many of the nodes are ready, how many
                       are static: known by the configuration alone, and served in turn where none is ready
/metrics               for Prometheus
/nodes                 every node: snapshot, age, freshness, what was sent there and learned of it (?node=ID for one)
  ready                it is up by its agent's last word (state), and that word still counts (freshness)
  out_s                so long still no request goes there, because it failed some; null: it gets requests
  on_trial             it failed some, and the next request sent there is the trial; then out_s counts again
  absent               signals that its engine should tell, and why they are missing or not believed
  static               it stands in the configuration, and no agent has told of it: its age is not known
  own, peers           what this router has there; what the other routers have, by their latest words
/capacity              how many nodes each model needs, and when those that are there will be too few
/peers                 this router, the bus, and the other routers that are heard on it
/decisions?limit=N     the latest decisions, newest first: candidates, costs (null: not scored), reason
"""


def build(
    balancer: Balancer,
    metrics: Metrics,
    clock: Callable[[], float],
    draining: Callable[[], bool],
    forecasts: Callable[[], Collection[ModelForecast]],
    peers: Callable[[], bytes] | None = None,
) -> web.Application:
    """The application; of its own it only knows which pages are under way. `clock` is the balancer's, in seconds."""
    pages = _Pages(balancer, metrics, clock, draining, forecasts, peers or partial(peers_page, "", None))
    app = web.Application(middlewares=[to_no_web_page])
    app.add_routes(
        [
            web.get("/", pages.index),
            web.get("/healthz", pages.healthz),
            web.get("/readyz", pages.readyz),
            web.get("/metrics", pages.metrics),
            web.get("/nodes", pages.nodes),
            web.get("/capacity", pages.capacity),
            web.get("/peers", pages.peers),
            web.get("/decisions", pages.decisions),
        ]
    )
    return app


class _Pages:
    def __init__(
        self,
        balancer: Balancer,
        metrics: Metrics,
        clock: Callable[[], float],
        draining: Callable[[], bool],
        forecasts: Callable[[], Collection[ModelForecast]],
        peers: Callable[[], bytes],
    ) -> None:
        self._balancer = balancer
        self._metrics = metrics
        self._clock = clock
        self._draining = draining
        self._forecasts = forecasts
        self._peers = peers
        self._whole = WholePages()
        self._making = asyncio.Lock()

    async def index(self, _: web.Request) -> web.Response:
        return web.Response(text=_INDEX)

    async def healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.Response:
        if self._draining():
            return json_page({"ready": False, "reason": "draining"}, status=503)
        # A member is enough, however old its word: the fallback can send requests there.
        nodes = self._samples()
        if not nodes:
            return json_page({"ready": False, "reason": "no node has reported, or all have left"}, status=503)
        counts = {
            "nodes": len(nodes),
            "nodes_ready": sum(one.is_ready for one in nodes),
            "nodes_static": sum(one.view.is_static for one in nodes),
        }
        return json_page({"ready": True, **counts})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        return await self._sent(
            request, lambda: partial(self._metrics.page, self._samples(), self._forecasts()), _METRICS_TYPE
        )

    async def capacity(self, request: web.Request) -> web.StreamResponse:
        return await self._sent(
            request, lambda: partial(capacity_page, self._forecasts(), self._balancer.settings.forecast.ttft_s)
        )

    async def peers(self, _: web.Request) -> web.Response:
        return web.Response(body=self._peers(), headers={"content-type": JSON_TYPE})

    async def nodes(self, request: web.Request) -> web.StreamResponse:
        node_id = request.query.get("node")
        if node_id is not None and all(one.snapshot.node_id != node_id for one in self._balancer.views()):
            return json_page({"error": f"no node {node_id[:256]!r}"}, status=404)

        def taken() -> Callable[[], bytes]:
            samples = self._samples()
            if node_id is not None:
                samples = [one for one in samples if one.view.snapshot.node_id == node_id]
            return partial(_nodes_page, samples)

        return await self._sent(request, taken)

    async def decisions(self, request: web.Request) -> web.StreamResponse:
        asked = request.query.get("limit", str(DECISIONS_SHOWN))
        if not (asked.isascii() and asked.isdigit() and len(asked) <= 6 and int(asked) <= DECISIONS_SHOWN_MAX):
            wanted = f"limit: wanted a number from 0 to {DECISIONS_SHOWN_MAX}, got {asked[:80]!r}"
            return json_page({"error": wanted}, status=400)
        limit = int(asked)
        return await self._sent(
            request, lambda: partial(_decisions_page, self._balancer.decisions(limit), self._clock())
        )

    async def _sent(
        self, request: web.Request, take: Callable[[], Callable[[], bytes]], content_type: str = JSON_TYPE
    ) -> web.StreamResponse:
        """Make a page and send it whole, or say that there are too many. A reader too slow for it is dropped.

        `take` reads what stands on the page, when its turn has come, and gives what makes text of it in a thread.
        """

        async def made() -> web.Response:
            async with self._making:
                page = await asyncio.to_thread(take())
            return web.Response(body=page, headers={"content-type": content_type})

        return await self._whole.sent(request, made, PAGES_MAX)

    def _samples(self) -> list[NodeSample]:
        return samples_of(self._balancer, self._clock())


def _nodes_page(samples: list[NodeSample]) -> bytes:
    """Every field of each snapshot, null where it is not known, and what the router adds; sorted by node id."""
    samples = sorted(samples, key=lambda one: one.view.snapshot.node_id)
    return encoded({"nodes": [_node(one) for one in samples]})


def _node(sample: NodeSample) -> dict[str, object]:
    """What an operator looks for stands first.

    Of the prompt work at the node it is `prefill_tokens_ahead`, as of now; what it is made from rests on our clock.
    """
    snapshot: dict[str, object] = msgspec.to_builtins(sample.view.snapshot)
    snapshot["absent"] = dict(sample.view.snapshot.absent)
    first = {name: snapshot.pop(name) for name in ("node_id", "host", "state")}
    view, out_s = sample.view, sample.out_s
    own: dict[str, object] = msgspec.to_builtins(sample.own)
    for on_our_clock in ("work_tokens", "work_since_s", "sent_tokens", "sent_since_s"):
        del own[on_our_clock]
    ours = {
        "freshness": sample.freshness.value,
        "age_s": None if sample.age_s is None else round(sample.age_s, 3),
        "static": view.is_static,
        "ready": sample.is_ready,
        "out_s": round(out_s, 3) if out_s is not None and out_s > 0 else None,
        "on_trial": out_s is not None and out_s <= 0,
        "in_flight": view.in_flight,
        "prefill_tokens_ahead": round(sample.tokens_ahead),
        "kv_blocks_told": sample.kv_blocks_told,
        "learned": msgspec.to_builtins(view.learned),
        "own": own,
        "peers": _load_of_peers(sample.peers),
    }
    return first | ours | snapshot


def _load_of_peers(load: PeerLoad) -> dict[str, object]:
    """What other routers have at a node, beside our sample: whole numbers, as the rest."""
    fields = msgspec.to_builtins(load)
    del fields["at_s"]
    return {name: round(number) for name, number in fields.items()}


def _decisions_page(decisions: list[Decision], now_s: float) -> bytes:
    """Newest first; `age_s` stands for the time on our clock, which means nothing outside.

    `until_s` of one who was queued is for how long it may wait.
    `request_id` is ours; `x_request_id` is the one that stands in Envoy's access log and in the answer.
    """
    shown = []
    for decision in decisions:
        fields = msgspec.to_builtins(decision)
        fields["x_request_id"] = fields.pop("trace_id")
        fields["age_s"] = round(now_s - fields.pop("at_s"), 3)
        fields["outcome"] = {"kind": type(decision.outcome).__name__.lower()} | fields["outcome"]
        if isinstance(decision.outcome, Queued):
            fields["outcome"]["until_s"] = round(decision.outcome.until_s - decision.at_s, 3)
        fields["candidates"] = [_candidate(one, decision.outcome) for one in decision.candidates]
        shown.append(fields)
    return encoded({"decisions": shown})


def _candidate(one: Candidate, outcome: Outcome) -> dict[str, object]:
    """How a node fared. `power-of-two` scores two nodes; the others have no cost, and that is why they stand behind."""
    fields: dict[str, object] = one._asdict()
    if one.cost == math.inf:
        fields["cost"] = None
        if one.excluded is None and not (isinstance(outcome, Chosen) and outcome.node_id == one.node_id):
            fields["excluded"] = NOT_SCORED
    return fields
