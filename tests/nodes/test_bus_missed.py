"""A node that comes over the bus no more is asked for on its agent's stream."""

import asyncio

import pytest

from extproc.core.settings import NodeLimits
from extproc.core.snapshot import Freshness
from extproc.nodes.reports import MISSED_AHEAD_S
from extproc.pb.nodes_pb2 import Acknowledgement
from tests.nodes.loopback import Agent, Router, agent, router
from tests.nodes.messages import snapshot_message
from tests.nodes.test_bus import APPLIED, IGNORED, hearing
from tests.waiting import until

MISSED = Acknowledgement.VERDICT_MISSED
SOON = NodeLimits(fresh_s=MISSED_AHEAD_S + 0.3, stale_s=60)
"""A node is missed 0.3 s after its last report."""


def is_fresh(to: Router, node_id: str = "gpu-1") -> bool:
    view = to.balancer.view_of(node_id)
    return view is not None and to.balancer.freshness(view, asyncio.get_running_loop().time()) is Freshness.FRESH


async def heard_by_both_ways(to: Router, stream: Agent, *node_ids: str) -> None:
    bus = hearing(to)
    for node_id in node_ids:
        message = snapshot_message(node_id=node_id, host=f"10.0.0.1:{ord(node_id[0])}", sample_age_ms=0)
        bus.say(message)
        assert (await stream.say(message)).verdict == IGNORED


async def test_it_is_asked_for_before_it_is_stale_once_after_each_report() -> None:
    async with router(name="r", limits=SOON) as to, agent(to) as stream:
        await heard_by_both_ways(to, stream, "gpu-1")
        for sequence in (2, 3):
            asked = await asyncio.wait_for(stream.heard(), 5)
            assert (asked.node_id, asked.verdict, asked.sequence, asked.router) == ("gpu-1", MISSED, 0, "r")
            assert is_fresh(to)
            # The next that is heard is this answer, so it was asked once.
            assert (
                await stream.say(snapshot_message(host="10.0.0.1:103", sequence=sequence, sample_age_ms=0))
            ).verdict == APPLIED


async def test_each_node_is_asked_for_on_the_stream_that_speaks_for_it() -> None:
    async with router(name="r", limits=SOON) as to, agent(to) as one, agent(to) as other:
        await heard_by_both_ways(to, one, "a", "b")
        await heard_by_both_ways(to, other, "c")
        asked = [await asyncio.wait_for(stream.heard(), 5) for stream in (one, one, other)]
        assert {told.node_id for told in asked[:2]} == {"a", "b"}
        assert asked[2].node_id == "c"


@pytest.mark.parametrize("by", ["stream alone", "bus alone"])
async def test_a_node_that_comes_by_one_way_is_not_asked_for(by: str) -> None:
    async with router(name="r", limits=SOON) as to, agent(to) as stream:
        await heard_by_both_ways(to, stream, "asked")
        if by == "stream alone":
            await stream.say(snapshot_message(host="10.0.0.9:1", sample_age_ms=0))
        else:
            hearing(to).say(snapshot_message(host="10.0.0.9:1", sample_age_ms=0))
        assert (await asyncio.wait_for(stream.heard(), 5)).node_id == "asked"
        answer = await stream.say(snapshot_message(node_id="asked", host="10.0.0.1:97", sequence=2, sample_age_ms=0))
        assert answer.verdict == APPLIED
        asked = await asyncio.wait_for(stream.heard(), 5)
        assert (asked.node_id, asked.verdict) == ("asked", MISSED)


async def test_an_agent_that_does_not_read_is_asked_once() -> None:
    async with router(name="r", limits=SOON) as to, agent(to) as stream:
        await heard_by_both_ways(to, stream, "gpu-1")
        (voice,) = to.ingest._voices.values()
        async with voice._turn:  # as if a write did not end
            voice.say_unasked([Acknowledgement(node_id="first")])
            for _ in range(3):
                voice.say_unasked([Acknowledgement(node_id="another")])
        assert (await stream.heard()).node_id == "first"
        assert (await asyncio.wait_for(stream.heard(), 5)).node_id == "gpu-1"


async def test_a_stream_that_ended_is_not_spoken_to() -> None:
    async with router(name="r", limits=SOON) as to:
        async with agent(to) as stream:
            await heard_by_both_ways(to, stream, "gpu-1")
            (voice,) = to.ingest._voices.values()
        await until(lambda: to.ingest.streams_open == 0)
        await voice.say([Acknowledgement(node_id="gpu-1")])
        assert to.ingest._reports.missed() == {}
