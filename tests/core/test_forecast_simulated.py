"""Before simulated engines: the forecast against the least number of nodes that keeps the objective.

The numbers are measured, see docs/decisions/0016-forecast.md.
"""

import pytest

from extproc.core.balancer import Balancer
from extproc.core.decision import Decision
from extproc.core.forecast import Forecast, ModelForecast
from extproc.core.forecastsettings import ForecastSettings
from extproc.core.outcome import Answered
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeEvent, NodeReported, Observation
from extproc.sim import fleetplan, routers, workloads
from extproc.sim.pacing import scaled
from extproc.sim.sampling import MODEL
from extproc.sim.simulation import Setup, simulate

SECONDS = 240


class Watched(Balancer):
    """Tells a forecast of its own what it is told, and reads it in the end."""

    read: ModelForecast

    def __init__(self, settings: BalancerSettings, started_s: float) -> None:
        super().__init__(settings, started_s)
        self._told = Forecast(ForecastSettings(), settings.nodes, settings.rates, 0.0)

    def route(self, request: InferenceRequest, policy: RoutingPolicy, now_s: float) -> Decision:
        self._told.arrived(request.model, request.prompt.tokens, now_s)
        return super().route(request, policy, now_s)

    def answered(self, answered: Answered, now_s: float) -> None:
        self._told.answered(MODEL, answered.output_tokens or 0, now_s)
        super().answered(answered, now_s)

    def tick(self, now_s: float) -> list[str]:
        if now_s < SECONDS:
            [Watched.read] = self._told.of(self.views(), now_s)
        return super().tick(now_s)

    def observe(self, event: NodeEvent, now_s: float) -> Observation:
        observation = super().observe(event, now_s)
        if isinstance(event, NodeReported):
            for view in self.views():
                if view.snapshot.node_id == event.snapshot.node_id:
                    self._told.observed(view, now_s)
        return observation


@pytest.mark.parametrize(("workload", "per_s", "least"), [("code", 8, 3), ("mix", 8, 2), ("conv", 6, 2)])
def test_it_asks_for_about_the_least_number_that_keeps_the_objective(
    monkeypatch: pytest.MonkeyPatch, workload: str, per_s: float, least: int
) -> None:
    monkeypatch.setattr(routers, "Balancer", Watched)
    arrivals = scaled(workloads.generated(workload, int(per_s * SECONDS), seed=1), per_s)
    simulate(arrivals, Setup(fleet=fleetplan.even(least), policy=RoutingPolicy(), seed=1))
    assert abs(Watched.read.nodes_needed - least) <= 1
    assert Watched.read.nodes_ready == least
