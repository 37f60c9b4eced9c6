"""An agent whose words a test chooses."""

import asyncio
import uuid
from contextlib import suppress
from typing import Any

import grpc

from extproc.address import TcpAddress
from extproc.pb import nodes_pb2 as pb
from extproc.pb.nodes_pb2_grpc import NodesStub


class Reporter:
    """Speaks the agents' protocol; every word is acknowledged before a method returns. Says goodbye at the end."""

    def __init__(self, router: TcpAddress) -> None:
        self._channel = grpc.aio.insecure_channel(str(router))
        self._boot_id = uuid.uuid4().hex
        self._sequence = 0
        self._node_ids: set[str] = set()

    async def __aenter__(self) -> "Reporter":
        self._stream = NodesStub(self._channel).Report()  # type: ignore[no-untyped-call]
        return self

    async def __aexit__(self, *_: object) -> None:
        # A router that has ended, this moment perhaps, hears no goodbye.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            if not self._stream.done():
                for node_id in sorted(self._node_ids):
                    await self.leave(node_id)
                await self._stream.done_writing()
        await self._channel.close()

    async def report(self, node_id: str, host: TcpAddress, *, model: str = "demo", **fields: Any) -> None:
        """A snapshot, ready unless `fields` say otherwise."""
        self._sequence += 1
        self._node_ids.add(node_id)
        models = pb.ModelList(models=[pb.ServedModel(name=model, context_length_tokens=1000)])
        snapshot = pb.NodeSnapshot(
            node_id=node_id,
            host=str(host),
            boot_id=self._boot_id,
            sequence=self._sequence,
            **{"state": pb.NODE_STATE_READY, "models": models, **fields},
        )
        await self._said(pb.AgentMessage(snapshot=snapshot))

    async def leave(self, node_id: str) -> None:
        self._node_ids.discard(node_id)
        await self._said(pb.AgentMessage(goodbye=pb.Goodbye(node_id=node_id, boot_id=self._boot_id)))

    async def _said(self, message: pb.AgentMessage) -> None:
        await self._stream.write(message)
        answer = await self._stream.read()
        verdict = answer.acknowledgement
        assert verdict.verdict == pb.Acknowledgement.VERDICT_APPLIED, verdict
