"""The admin pages over a real balancer, whose time the test sets."""

from typing import Any

from aiohttp.test_utils import TestClient
from aiohttp.web import Application, Request

from extproc.core.balancer import Balancer
from extproc.core.cost import DEFAULT_STRATEGY
from extproc.core.policy import RoutingPolicy
from extproc.core.request import Endpoint, InferenceRequest, TokenCount
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeReported, NodeState, Snapshot
from extproc.ops import admin
from extproc.ops.metrics import Metrics

Client = TestClient[Request, Application]


class Admin:
    def __init__(self, **settings: Any) -> None:
        self.now_s = 100.0
        self.draining = False
        self.balancer = Balancer(BalancerSettings(**settings), started_s=0.0)
        self.metrics = Metrics()
        self.app = admin.build(
            self.balancer,
            self.metrics,
            lambda: self.now_s,
            lambda: self.draining,
            lambda: self.balancer.forecasts(self.now_s),
        )

    def report(self, node_id: str, **fields: Any) -> None:
        host = fields.pop("host", f"127.0.0.{1 + sum(node_id.encode()) % 250}:8000")
        state = fields.pop("state", NodeState.READY)
        snapshot = Snapshot(node_id, host, "boot", fields.pop("sequence", 1), 0.5, state, **fields)
        self.balancer.observe(NodeReported(snapshot), self.now_s)

    def route(self, request_id: str, *, model: str = "m", strategy: str = DEFAULT_STRATEGY) -> None:
        request = InferenceRequest(request_id, model, Endpoint.CHAT, TokenCount(10, exact=True), trace_id="trace")
        self.balancer.route(request, RoutingPolicy(strategy=strategy), self.now_s)


async def page(client: Client, path: str, status: int = 200) -> Any:
    async with client.get(path) as response:
        assert response.status == status
        assert response.content_type == "application/json"
        return await response.json()
