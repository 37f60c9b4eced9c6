"""KEDA asks the parent of the workers, who sums their forecasts."""

import json
from pathlib import Path
from typing import Any

import grpc

from extproc.ops.scaler import METRIC
from extproc.pb.externalscaler_pb2 import GetMetricsRequest, ScaledObjectRef
from extproc.pb.externalscaler_pb2_grpc import ExternalScalerStub
from tests.e2e.reporter import Reporter
from tests.waiting import until
from tests.workers.crewed import crewed


async def test_nodes_needed_are_those_of_all_workers(tmp_path: Path) -> None:
    async with crewed(tmp_path, listen={"scaler": "127.0.0.1:0"}, forecast={"nodes_min": 3}) as one:
        line = next(line for line in one.serve.child.log.read_text().splitlines() if '"listening"' in line)
        asked = GetMetricsRequest(metricName=METRIC, scaledObjectRef=ScaledObjectRef(scalerMetadata={"model": "demo"}))
        async with grpc.aio.insecure_channel(json.loads(line)["scaler"]) as channel, Reporter(one.serve.agents) as told:
            stub: Any = ExternalScalerStub(channel)  # type: ignore[no-untyped-call]
            await told.report("gpu-1", one.serve.admin)

            async def needed() -> int:
                try:
                    answer = await stub.GetMetrics(asked)
                except grpc.aio.AioRpcError:  # it knows no model yet
                    return 0
                found: int = answer.metricValues[0].metricValue
                return found

            assert await until(needed) == 3, "once, not of each worker"
