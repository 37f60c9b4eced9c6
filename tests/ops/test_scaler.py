"""KEDA's external scaler, as KEDA calls it: over gRPC, by the stubs of its protocol."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from extproc.core.forecast import ModelForecast
from extproc.ops import scaler as room
from extproc.ops.scaler import METRIC, NodesScaler, grpc_options, register
from extproc.pb.externalscaler_pb2 import (
    GetMetricSpecResponse,
    GetMetricsRequest,
    IsActiveResponse,
    MetricSpec,
    MetricValue,
    ScaledObjectRef,
)
from extproc.pb.externalscaler_pb2_grpc import ExternalScalerStub
from tests.ops.forecasts import forecast_of
from tests.waiting import until

MANIFEST = Path(__file__).parent.parent.parent / "envoy" / "keda.yaml"
TOLD_S = 10.0


@dataclass
class Served:
    """A scaler on loopback, and what it reads."""

    forecasts: Sequence[ModelForecast] = (forecast_of("m", 3), forecast_of("idle", 0))
    reads: int = 0
    now_s: float = 0.0
    scaler: NodesScaler = field(init=False)
    stub: Any = field(init=False)

    def read(self) -> Sequence[ModelForecast]:
        self.reads += 1
        return self.forecasts

    def needs(self, nodes: int) -> None:
        self.forecasts = (forecast_of("m", nodes),)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    one = Served()
    # Whoever asks gets a new reading, however soon: the interval is that of the streams.
    one.scaler = NodesScaler(one.read, asyncio.get_running_loop().time, stream_interval_s=0.01, streams_max=2)
    server = grpc.aio.server(options=grpc_options())
    register(server, one.scaler)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        one.stub = ExternalScalerStub(channel)  # type: ignore[no-untyped-call]
        yield one
    await server.stop(0)


def ref(model: str | None = "m", **others: str) -> ScaledObjectRef:
    metadata = others if model is None else {"model": model, **others}
    return ScaledObjectRef(name="engines", namespace="default", scalerMetadata=metadata)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_the_metric_is_one_for_each_replica_in_both_of_kedas_spellings(served: Served) -> None:
    assert await served.stub.GetMetricSpec(ref()) == GetMetricSpecResponse(
        metricSpecs=[MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)]
    )


async def test_its_value_is_the_nodes_that_the_model_needs(served: Served) -> None:
    answer = await served.stub.GetMetrics(GetMetricsRequest(scaledObjectRef=ref(), metricName=METRIC))
    assert list(answer.metricValues) == [MetricValue(metricName=METRIC, metricValue=3, metricValueFloat=3.0)]
    answer = await served.stub.GetMetrics(GetMetricsRequest(scaledObjectRef=ref("idle"), metricName=METRIC))
    assert list(answer.metricValues) == [MetricValue(metricName=METRIC)]


@pytest.mark.parametrize(("model", "active"), [("m", True), ("idle", False)])
async def test_it_is_active_if_any_node_is_needed(served: Served, model: str, active: bool) -> None:
    assert await served.stub.IsActive(ref(model)) == IsActiveResponse(result=active)


@pytest.mark.parametrize("others", [{}, {"scalerAddress": "here:9006", "anything": "else"}])
async def test_other_metadata_is_kedas_own(served: Served, others: dict[str, str]) -> None:
    assert (await served.stub.IsActive(ref(**others))).result


@pytest.mark.parametrize(
    ("model", "got"), [("other", "'other'"), (None, "nothing"), ("M", "'M'"), ("x" * 5000, "x" * 80 + "'")]
)
@pytest.mark.parametrize("method", ["IsActive", "GetMetricSpec", "GetMetrics"])
async def test_a_model_that_is_not_known_is_refused_with_what_was_wanted_and_what_came(
    served: Served, method: str, model: str | None, got: str
) -> None:
    asked: Any = ref(model)
    if method == "GetMetrics":
        asked = GetMetricsRequest(scaledObjectRef=asked, metricName=METRIC)
    code, details = await refusal(getattr(served.stub, method)(asked))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert got in details
    assert "'idle', 'm'" in details
    assert len(details) < 300


@pytest.mark.parametrize(
    ("models", "listed"),
    [
        ([], "(none is known yet)"),
        ([f"model-{number:03}" for number in range(300)], "'model-019' and 280 more"),
        (["\N{GRINNING FACE}" * 200 + str(number) for number in range(300)], ascii("\N{GRINNING FACE}" * 80)),
    ],
)
async def test_a_refusal_lists_a_bounded_number_of_models(served: Served, models: list[str], listed: str) -> None:
    served.forecasts = [forecast_of(model) for model in models]
    _, details = await refusal(served.stub.IsActive(ref()))
    assert listed in details
    assert len(details) <= room.REFUSAL_CHARS_MAX


async def test_another_metric_is_refused(served: Served) -> None:
    code, details = await refusal(
        served.stub.GetMetrics(GetMetricsRequest(scaledObjectRef=ref(), metricName="queue-length"))
    )
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, f"metricName: got 'queue-length', wanted {METRIC}")


async def test_a_stream_says_at_once_how_it_stands_and_then_only_what_changes(served: Served) -> None:
    call = served.stub.StreamIsActive(ref())
    told = [(await asyncio.wait_for(call.read(), TOLD_S)).result]
    for nodes in (5, 0, 0, 2, 1):
        before = served.reads
        served.needs(nodes)
        await until(lambda: served.reads > before + 1)  # noqa: B023 - it is waited for here
    served.needs(0)
    told += [(await asyncio.wait_for(call.read(), TOLD_S)).result for _ in range(3)]
    assert told == [True, False, True, False]
    call.cancel()
    await until(lambda: served.scaler.streams_open == 0)


async def test_a_stream_ends_when_its_model_is_gone(served: Served) -> None:
    call = served.stub.StreamIsActive(ref())
    await asyncio.wait_for(call.read(), TOLD_S)
    served.forecasts = (forecast_of("other"),)
    assert await asyncio.wait_for(call.code(), TOLD_S) is grpc.StatusCode.INVALID_ARGUMENT
    await until(lambda: served.scaler.streams_open == 0)


async def test_streams_are_bounded(served: Served) -> None:
    calls = [served.stub.StreamIsActive(ref()) for _ in range(2)]
    for call in calls:
        await asyncio.wait_for(call.read(), TOLD_S)
    third = served.stub.StreamIsActive(ref())
    assert await asyncio.wait_for(third.code(), TOLD_S) is grpc.StatusCode.RESOURCE_EXHAUSTED
    calls[0].cancel()
    await until(lambda: served.scaler.streams_open == 1)
    assert (await asyncio.wait_for(served.stub.StreamIsActive(ref()).read(), TOLD_S)).result


async def test_a_drain_ends_the_streams(served: Served) -> None:
    call = served.stub.StreamIsActive(ref())
    await asyncio.wait_for(call.read(), TOLD_S)
    served.scaler.drain()
    assert await asyncio.wait_for(call.code(), TOLD_S) is grpc.StatusCode.OK
    late = served.stub.StreamIsActive(ref())
    assert (await asyncio.wait_for(late.read(), TOLD_S)).result
    assert await asyncio.wait_for(late.code(), TOLD_S) is grpc.StatusCode.OK


async def test_a_reading_serves_all_who_ask_soon_after() -> None:
    one = Served()
    one.scaler = NodesScaler(one.read, lambda: one.now_s)
    context: Any = None  # nothing is refused here
    for now_s, reads in ((0.0, 1), (room.READING_S - 0.01, 1), (room.READING_S, 2)):
        one.now_s = now_s
        assert (await one.scaler.IsActive(ref(), context)).result
        assert one.reads == reads


async def test_a_message_that_is_too_long_is_refused(served: Served) -> None:
    code, _ = await refusal(served.stub.IsActive(ref(filler="x" * (room.MESSAGE_BYTES_MAX + 1))))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_manifest_names_what_the_scaler_understands(served: Served) -> None:
    manifest = yaml.safe_load(MANIFEST.read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = manifest["spec"]
    assert 1 <= spec["minReplicaCount"] <= spec["maxReplicaCount"], "a model without a node is unknown"
    [trigger] = spec["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("external-push", "AverageValue")
    metadata = trigger["metadata"]
    assert all(isinstance(value, str) for value in metadata.values()), "KEDA takes texts only"
    assert set(metadata) == {"scalerAddress", room.MODEL_KEY}
    served.forecasts = (forecast_of(metadata[room.MODEL_KEY], 7),)
    asked = ScaledObjectRef(name=manifest["metadata"]["name"], namespace="default", scalerMetadata=metadata)
    answer = await served.stub.GetMetrics(GetMetricsRequest(scaledObjectRef=asked, metricName=METRIC))
    assert answer.metricValues[0].metricValueFloat == 7
