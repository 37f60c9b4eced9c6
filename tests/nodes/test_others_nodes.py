"""Agents that speak for the nodes of others."""

import pytest

from extproc.core.settings import NodeLimits
from extproc.nodes.wire import ID_LENGTH_MAX
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, Goodbye
from tests.nodes.loopback import agent, router
from tests.nodes.messages import snapshot_message
from tests.waiting import until

APPLIED = Acknowledgement.VERDICT_APPLIED
IGNORED = Acknowledgement.VERDICT_IGNORED
REFUSED = Acknowledgement.VERDICT_REFUSED
BYE = AgentMessage(goodbye=Goodbye(node_id="gpu-1", boot_id="one"))
SHORT = NodeLimits(fresh_s=0.1, stale_s=10)
"""Nodes are fresh for a moment only."""


async def test_a_goodbye_for_a_node_that_another_stream_reports_is_refused() -> None:
    async with router() as to, agent(to) as owner, agent(to) as other:
        await owner.say(snapshot_message(boot_id="one"))
        await other.say(snapshot_message(node_id="gpu-2", host="10.0.0.2:80", boot_id="one"))
        answer = await other.say(BYE)
        assert (answer.verdict, answer.reason) == (
            REFUSED,
            "goodbye: wanted that of a node of this stream, got that of another's",
        )
        assert to.snapshot() is not None
        assert (await owner.say(BYE)).verdict == APPLIED
        assert to.snapshot() is None


async def test_an_agent_whose_stream_broke_says_goodbye_on_the_next_one() -> None:
    async with router() as to:
        async with agent(to) as stream:
            await stream.say(snapshot_message(boot_id="one"))
        await until(lambda: to.ingest.streams_open == 0)
        async with agent(to) as stream:
            assert (await stream.say(BYE)).verdict == APPLIED


async def test_the_boot_of_a_live_agent_is_not_reported_by_another() -> None:
    """Its largest sequence would be the last word for that boot."""
    async with router() as to, agent(to) as owner, agent(to) as other:
        await owner.say(snapshot_message(boot_id="one", sequence=1))
        answer = await other.say(snapshot_message(boot_id="one", sequence=2**64 - 1))
        assert (answer.verdict, answer.reason) == (
            REFUSED,
            "boot_id: wanted one that no other agent reports, got one that another does",
        )
        assert [entry["node_id"] for entry in to.events("node reported by two streams")] == ["gpu-1"]
        assert (await other.say(BYE)).verdict == REFUSED
        assert (await owner.say(snapshot_message(boot_id="one", sequence=2))).verdict == APPLIED


async def test_an_agent_whose_lost_stream_is_still_open_here_is_heard_when_that_says_nothing_any_more() -> None:
    async with router(limits=SHORT) as to, agent(to) as lost, agent(to) as stream:
        await lost.say(snapshot_message(boot_id="one", sequence=1))

        async def is_heard() -> bool:
            return (await stream.say(snapshot_message(boot_id="one", sequence=2))).verdict == APPLIED

        await until(is_heard)
        assert (await lost.say(BYE)).verdict == REFUSED
        assert (await stream.say(BYE)).verdict == APPLIED


async def test_who_repeats_an_earlier_boot_gets_no_say_for_the_node() -> None:
    async with router() as to, agent(to) as owner, agent(to) as other:
        await owner.say(snapshot_message(boot_id="zero"))
        await owner.say(snapshot_message(boot_id="one"))
        assert (await other.say(snapshot_message(boot_id="zero", sequence=9))).verdict == IGNORED
        assert (await other.say(BYE)).verdict == REFUSED
        assert (await owner.say(snapshot_message(boot_id="one", sequence=2))).verdict == APPLIED


async def test_an_agent_that_began_anew_is_heard_at_once() -> None:
    async with router() as to, agent(to) as before, agent(to) as after:
        await before.say(snapshot_message(boot_id="one", sequence=500))
        assert (await after.say(snapshot_message(boot_id="two", sequence=1))).verdict == APPLIED
        assert (await before.say(BYE)).verdict == REFUSED


@pytest.mark.parametrize("node_id", ["gpu-1", "g" * ID_LENGTH_MAX])
async def test_the_host_of_a_fresh_node_is_no_other_nodes(node_id: str) -> None:
    async with router() as to, agent(to) as owner, agent(to) as other:
        await owner.say(snapshot_message(node_id=node_id))
        answer = await other.say(snapshot_message(node_id="evil"))
        assert (answer.verdict, answer.reason) == (
            REFUSED,
            f"host: wanted one that no other node has, got that of {node_id}",
        )
        assert to.snapshot("evil") is None
        assert (await owner.say(snapshot_message(node_id=node_id, sequence=2))).verdict == APPLIED


async def test_an_engine_with_a_new_agent_is_heard_when_its_old_one_is_not_any_more() -> None:
    async with router(limits=SHORT) as to, agent(to) as old, agent(to) as new:
        await old.say(snapshot_message(node_id="old"))

        async def is_heard() -> bool:
            return (await new.say(snapshot_message(node_id="new"))).verdict == APPLIED

        await until(is_heard)
