"""How many nodes it takes, as operators, Prometheus and KEDA are told."""

from typing import Any

import grpc
import pytest

from extproc import assembling
from extproc.core.balancer import Balancer
from extproc.core.forecast import ModelForecast
from extproc.core.settings import BalancerSettings
from extproc.pb import nodes_pb2
from extproc.pb.externalscaler_pb2 import GetMetricsRequest, ScaledObjectRef
from extproc.pb.externalscaler_pb2_grpc import ExternalScalerStub
from tests.serve.served import ANY_PORTS, Serve, Served, asked

SETTINGS: dict[str, Any] = {"nodes": {"report_interval_s": 0.01, "fresh_s": 60, "stale_s": 60}}


async def told(served: Served, node_id: str, state: nodes_pb2.NodeState.ValueType) -> Any:
    """An agent's open stream that has told of a node for model `m`."""
    stream = served.agent()
    models = nodes_pb2.ModelList(models=[nodes_pb2.ServedModel(name="m")])
    snapshot = nodes_pb2.NodeSnapshot(
        node_id=node_id, host=f"127.0.0.1:{8000 + len(node_id)}", boot_id="b", sequence=1, state=state, models=models
    )
    await stream.write(nodes_pb2.AgentMessage(snapshot=snapshot))
    reply = await stream.read()
    assert reply.acknowledgement.verdict == nodes_pb2.Acknowledgement.VERDICT_APPLIED, reply
    return stream


async def test_nodes_and_requests_are_seen_on_the_page_and_in_the_metrics(serve: Serve) -> None:
    served = await serve(**SETTINGS)
    for node_id, state in (("ready", nodes_pb2.NODE_STATE_READY), ("loading", nodes_pb2.NODE_STATE_LOADING)):
        await told(served, node_id, state)
    for _ in range(3):
        await asked(served.stream(), model="m")
        await asked(served.stream(), model="of no node")
    status, page = await served.get("/capacity")
    assert (status, page["ttft_s"]) == (200, 2.0)
    (model,) = page["models"]
    assert (model["model"], model["nodes_ready"], model["nodes_coming"]) == ("m", 1, 1)
    assert model["nodes_needed"] >= 1
    metrics = await served.page("/metrics")
    assert 'extproc_nodes_ready{model="m"} 1.0' in metrics
    assert 'extproc_nodes_coming{model="m"} 1.0' in metrics
    assert "of no node" not in metrics, "clients choose the names of models that nobody serves"


async def test_keda_is_told_where_it_is_to_listen_for_it(serve: Serve) -> None:
    served = await serve(**SETTINGS, listen=ANY_PORTS | {"scaler": "127.0.0.1:0"})
    await told(served, "ready", nodes_pb2.NODE_STATE_READY)
    async with grpc.aio.insecure_channel(served.at["scaler"]) as channel:
        stub: Any = ExternalScalerStub(channel)  # type: ignore[no-untyped-call]
        scaled = ScaledObjectRef(name="engines", namespace="default", scalerMetadata={"model": "m"})
        (metric,) = (await stub.GetMetricSpec(scaled)).metricSpecs
        (value,) = (
            await stub.GetMetrics(GetMetricsRequest(scaledObjectRef=scaled, metricName=metric.metricName))
        ).metricValues
        assert value.metricValue >= 1
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.IsActive(ScaledObjectRef(scalerMetadata={"model": "other"}))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_without_a_word_of_it_nobody_listens_for_keda(serve: Serve) -> None:
    served = await serve()
    assert "scaler" not in served.at


def test_one_reading_of_the_forecast_serves_all_for_a_second() -> None:
    class Read(Balancer):
        reads = 0

        def forecasts(self, now_s: float) -> tuple[ModelForecast, ...]:
            self.reads += 1
            return super().forecasts(now_s)

    balancer, now_s = Read(BalancerSettings(), 0.0), [5.0]
    read = assembling.read_now_and_then(balancer, lambda: now_s[0])
    for at_s, reads in [(5.0, 1), (5.9, 1), (6.0, 2), (6.5, 2), (8.0, 3)]:
        now_s[0] = at_s
        read()
        assert balancer.reads == reads
