"""Records what the agents and the `serve` of one release say to each other: run it in that release's own tree.

    python -m tests.compat.record conversation.jsonl

Real agents before scripted engines, a real `serve`, and a relay between them that reads nothing. Each line is a message
in the order in which it passed: the stream's number, who said it, and its bytes in base64. A line `nodes` has what
`/nodes` showed of the reports so far.
"""

import asyncio
import base64
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc

from extproc.children import Child, ourselves
from extproc.fleet import Fleet, Serve
from tests.agent.engine import Engine, vllm_engine
from tests.agent.kvpublisher import CLEARED, Publisher, bound, publishing, removed, stored
from tests.agent.pages import vllm_adapters, vllm_lines, vllm_totals
from tests.waiting import until

METHOD = "/extproc.pb.Nodes/Report"
ENGINES = 9
"""So many that several reports are one message."""
RELATIVE = {"freshness", "age_s", "static", "ready", "out_s", "on_trial", "in_flight", "prefill_tokens_ahead"}
RELATIVE |= {"learned", "own", "sample_age_s", "round_trip_s"}
"""What of a node at `/nodes` is not what its agent said, or not the same each time."""


class Relay(grpc.GenericRpcHandler):
    """Stands before a router and writes down what passes."""

    def __init__(self, serve: Serve) -> None:
        self.lines: list[dict[str, Any]] = []
        self._at = str(serve.agents)
        self._streams = 0
        self._open: set[Any] = set()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        assert handler_call_details.method == METHOD
        return grpc.stream_stream_rpc_method_handler(self._pass)  # bytes come and go as they are

    def cut(self) -> None:
        """All streams break off."""
        for call in self._open:
            call.cancel()

    async def _pass(self, messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        stream, self._streams = self._streams, self._streams + 1

        def note(who: str, message: bytes) -> bytes:
            self.lines.append({"stream": stream, "from": who, "message": base64.b64encode(message).decode()})
            return message

        async def noted() -> AsyncIterator[bytes]:
            async for message in messages:
                yield note("agent", message)

        async with grpc.aio.insecure_channel(self._at) as channel:
            call: Any = channel.stream_stream(METHOD)(noted())  # type: ignore[arg-type]
            self._open.add(call)
            try:
                async for message in call:
                    yield note("router", message)
            except (asyncio.CancelledError, grpc.aio.AioRpcError):
                return
            finally:
                self._open.discard(call)


async def record(folder: Path) -> list[dict[str, Any]]:
    """The lines of one conversation."""
    async with contextlib.AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(Fleet(folder))
        serve = await fleet.serve({})
        relay = Relay(serve)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((relay,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        stack.push_async_callback(server.stop, 0)
        engines = [await stack.enter_async_context(vllm_engine()) for _ in range(ENGINES)]
        publisher = await stack.enter_async_context(publishing())

        async def nodes() -> dict[str, Any]:
            found = (await fleet.json(f"http://{serve.admin}/nodes"))["nodes"]
            return {one["node_id"]: {key: one[key] for key in one.keys() - RELATIVE} for one in found}

        def seen(node_id: str, wanted: Callable[[dict[str, Any]], object]) -> Any:
            async def asked() -> bool:
                found = (await nodes()).get(node_id)
                return found is not None and bool(wanted(found))

            return until(asked, 20)

        agent = await _agent(folder, engines, publisher, port)
        await publisher.subscribed()
        await seen("gpu-8", lambda one: one["state"] == "ready")
        await _scene(engines, publisher, relay, seen)
        relay.lines.append({"nodes": await nodes()})
        await agent.stop()
        return relay.lines


async def _agent(folder: Path, engines: list[Engine], publisher: Publisher, port: int) -> Child:
    spoken: list[dict[str, Any]] = [
        {"node_id": f"gpu-{number}", "engine": one.url, "weight": number + 1} for number, one in enumerate(engines)
    ]
    spoken[0] |= {"kv_events": {"endpoint": bound(publisher.events)}, "adapters_loadable": ["sql"]}
    spoken[1] |= {"host": "8.8.8.8:80"}  # no router takes that
    config = folder / "agent.yaml"
    settings = {"interval_s": 0.4, "idle_interval_s": 0.4, "drain_s": 1, "models_interval_s": 1}
    config.write_text(json.dumps({"routers": [f"127.0.0.1:{port}"], "engines": spoken} | settings))
    return await Child.start("agent", ourselves("agent", "--config", str(config)), folder)


async def _scene(engines: list[Engine], publisher: Publisher, relay: Relay, seen: Any) -> None:
    """What happens at the engines, each in its own way."""
    engines[0].pages["/metrics"] = vllm_lines(running=4, waiting=2, first_tokens=3, kv_usage=0.5) + vllm_totals(
        prompt=9000, computed=6000, queries=9000, hits=3000, first_tokens_s=1.5
    )
    await seen("gpu-0", lambda one: one["requests_waiting"] == 2 and one["prefix_hits_total"] == 3000)
    await publisher.publish(stored(1), stored(2, behind=1))
    await seen("gpu-0", lambda one: one["kv_blocks_told"] == 2)
    relay.cut()
    await publisher.publish(removed(2))
    await seen("gpu-0", lambda one: one["kv_blocks_told"] == 1)
    await publisher.publish(CLEARED, stored(3))
    engines[2].pages["/metrics"] = vllm_lines().replace("kv_cache_usage_perc", "gone")
    await seen("gpu-2", lambda one: "kv_usage" in one["absent"])
    engines[3].pages |= {
        "/metrics": vllm_lines() + vllm_adapters(4, "sql"),
        "/v1/models": '{"data": [{"id": "base", "max_model_len": 4096}, {"id": "sql", "parent": "base"}]}',
    }
    await engines[4].kill()
    await seen("gpu-4", lambda one: one["state"] == "loading" and one["not_ready_reason"])
    engines[5].pages["/health"] = 503
    await engines[4].start()
    await seen("gpu-4", lambda one: one["state"] == "ready")
    await seen("gpu-5", lambda one: one["state"] == "loading")
    await seen("gpu-3", lambda one: len(one["models"]) == 2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as at:
        told = asyncio.run(record(Path(at)))
    Path(sys.argv[1]).write_text("".join(json.dumps(line) + "\n" for line in told))
    print(len(told), "lines")
