"""What routers and agents of earlier releases published, published again before a router of today."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from extproc.fleet import Fleet
from extproc.pb import exchange_pb2, nodes_pb2
from tests.compat.floor import HERE
from tests.compat.grown import grown
from tests.compat.recordbus import client
from tests.natsserver import nats_server
from tests.waiting import until

RELEASES = ["v0_2"]
KINDS: dict[str, type[Message]] = {
    "loads": exchange_pb2.RouterLoads,
    "placements": exchange_pb2.Placements,
    "routers": exchange_pb2.RouterHere,
    "nodes": nodes_pb2.AgentMessage,
}


def as_then(_: str, message: bytes) -> bytes:
    return message


def as_of_a_later_release(channel: str, message: bytes) -> bytes:
    return grown(KINDS[channel], message)


@pytest.mark.parametrize("said", [as_then, as_of_a_later_release])
@pytest.mark.parametrize("release", RELEASES)
async def test_a_router_takes_what_was_published(
    release: str, said: Callable[[str, bytes], bytes], tmp_path: Path
) -> None:
    *lines, truth = (json.loads(line) for line in (HERE / release / "bus.jsonl").read_text().splitlines())
    assert {one["subject"].split(".")[2] for one in lines} == KINDS.keys()
    placements = sum(one["subject"].endswith(".placements") for one in lines)
    async with nats_server() as server, Fleet(tmp_path) as fleet, client(server.url) as mouth:
        patient = {"exchange": {"silence_s": 60}, "nodes": {"fresh_s": 60, "stale_s": 60}}
        serve = await fleet.serve({"nats": {"servers": [server.url]}} | patient)

        async def page(path: str) -> Any:
            return await fleet.json(f"http://{serve.admin}/{path}")

        async def connected() -> bool:
            return bool((await page("peers"))["connected"])

        await until(connected, 20)
        for one in lines:
            channel = one["subject"].split(".")[2]
            await mouth.publish(one["subject"], said(channel, base64.b64decode(one["message"])))
        await mouth.flush()

        async def known() -> bool:
            others = await page("peers")
            told = {one["router"]: one["requests"] for one in others["peers"]}
            nodes = (await page("nodes"))["nodes"]
            there = sum(one["peers"]["sequences_open"] for one in nodes)
            return (
                told == truth["open"]
                and others["messages"]["received"].get("placements") == placements
                and {one["node_id"] for one in nodes} == set(truth["nodes"])
                and there == sum(truth["open"].values())
            )

        await until(known, 20)
        assert (await page("peers"))["messages"]["refused"] == {}
    log = serve.child.log.read_text()
    assert "refused" not in log
    assert "error of ours" not in log
