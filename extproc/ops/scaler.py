"""The forecast for KEDA, as an external scaler (https://keda.sh/docs/latest/concepts/external-scalers/).

    KEDA ──GetMetricSpec──► extproc-nodes-needed, 1 for each replica
         ──GetMetrics─────► nodes needed of metadata `model`; Kubernetes then wants as many replicas
         ──IsActive───────► whether any are
         ──StreamIsActive─► the same as it changes, for triggers of type external-push

Which model is meant stands in the trigger's metadata; everything else there is KEDA's own.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import grpc

from extproc.core.forecast import ModelForecast
from extproc.pb import externalscaler_pb2_grpc
from extproc.pb.externalscaler_pb2 import (
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    MetricSpec,
    MetricValue,
    ScaledObjectRef,
)

METRIC: Final = "extproc-nodes-needed"
"""The one metric; KEDA puts the trigger's place before it."""
MODEL_KEY: Final = "model"
"""Of the trigger's metadata."""
STREAM_INTERVAL_S: Final = 5.0
"""How often the streams look whether something has changed, all at one reading."""
READING_S: Final = 1.0
"""A reading serves everybody who asks within so long: KEDA asks for value and activity one after the other."""
STREAMS_MAX: Final = 256
"""Streams at a time; further ones get RESOURCE_EXHAUSTED, and KEDA asks again."""
MESSAGE_BYTES_MAX: Final = 64 * 1024
"""Of what KEDA sends: some names and the metadata."""
NAMES_SHOWN: Final = 20
"""Models that a refusal lists."""
SHOWN_CHARS_MAX: Final = 80
"""What it repeats of a name."""
REFUSAL_CHARS_MAX: Final = 2000
"""Of a whole refusal, which travels as a header."""

_Context = grpc.aio.ServicerContext[Any, Any]


def grpc_options() -> list[tuple[str, int]]:
    """Options of the server that KEDA calls."""
    return [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]


class NodesScaler(externalscaler_pb2_grpc.ExternalScalerServicer):
    """Serves `externalscaler.ExternalScaler`.

    `read` takes a reading of the forecast, on the loop; `clock` is in seconds.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[ModelForecast]],
        clock: Callable[[], float],
        *,
        stream_interval_s: float = STREAM_INTERVAL_S,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        self._read = read
        self._clock = clock
        self._stream_interval_s = stream_interval_s
        self._streams_max = streams_max
        self._streams_open = 0
        self._needed: dict[str, int] = {}
        self._read_s = float("-inf")
        self._drained = asyncio.Event()

    @property
    def streams_open(self) -> int:
        """Triggers that are told as things change."""
        return self._streams_open

    def drain(self) -> None:
        """End every stream, and every new one after its first word: KEDA comes again."""
        self._drained.set()

    async def IsActive(self, request: ScaledObjectRef, context: _Context) -> IsActiveResponse:  # noqa: N802 - gRPC's name
        """Whether the model needs a node at all."""
        return IsActiveResponse(result=await self._nodes_needed(request, context) > 0)

    async def StreamIsActive(self, request: ScaledObjectRef, context: _Context) -> None:  # noqa: N802
        """At once, and then as it changes."""
        if self._streams_open >= self._streams_max:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {self._streams_max} streams")
        self._streams_open += 1
        try:
            told: bool | None = None
            while True:
                active = await self._nodes_needed(request, context) > 0
                if active is not told:
                    await context.write(IsActiveResponse(result=active))
                    told = active
                try:
                    async with asyncio.timeout(self._stream_interval_s):
                        await self._drained.wait()
                    return
                except TimeoutError:
                    pass
        finally:
            self._streams_open -= 1

    async def GetMetricSpec(self, request: ScaledObjectRef, context: _Context) -> GetMetricSpecResponse:  # noqa: N802
        """One node for each replica. Refuses a model that is not known, so that a fault shows early."""
        await self._nodes_needed(request, context)
        return GetMetricSpecResponse(metricSpecs=[MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)])

    async def GetMetrics(self, request: GetMetricsRequest, context: _Context) -> GetMetricsResponse:  # noqa: N802
        """How many nodes the model needs."""
        if request.metricName != METRIC:
            await _refuse(context, "metricName", METRIC, request.metricName)
        needed = await self._nodes_needed(request.scaledObjectRef, context)
        value = MetricValue(metricName=METRIC, metricValue=needed, metricValueFloat=float(needed))
        return GetMetricsResponse(metricValues=[value])

    async def _nodes_needed(self, request: ScaledObjectRef, context: _Context) -> int:
        """Of the model that the metadata names; the call ends here if it is none that we know."""
        now_s = self._clock()
        if now_s - self._read_s >= min(READING_S, self._stream_interval_s):
            self._needed = {one.model: one.nodes_needed for one in self._read()}
            self._read_s = now_s
        model = request.scalerMetadata.get(MODEL_KEY, "")
        if model not in self._needed:
            names = sorted(self._needed)
            listed = ", ".join(ascii(name[:SHOWN_CHARS_MAX]) for name in names[:NAMES_SHOWN]) or "none is known yet"
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            await _refuse(context, f"metadata {MODEL_KEY!r}", f"a model that is served ({listed}{more})", model)
        return self._needed[model]


async def _refuse(context: _Context, what: str, wanted: str, got: str) -> NoReturn:
    shown = ascii(got[:SHOWN_CHARS_MAX]) if got else "nothing"
    refusal = f"{what}: got {shown}, wanted {wanted}"
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, refusal[:REFUSAL_CHARS_MAX])
    raise AssertionError("an aborted call ends there")


def register(server: grpc.aio.Server, scaler: NodesScaler) -> None:
    """Serve KEDA on this server."""
    externalscaler_pb2_grpc.add_ExternalScalerServicer_to_server(scaler, server)  # type: ignore[no-untyped-call]
