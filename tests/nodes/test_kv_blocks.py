"""What agents tell of prefix caches, over real gRPC."""

import time

import pytest

from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, KvBlocks
from tests.nodes.loopback import Agent, Router, agent, router
from tests.nodes.messages import snapshot_message

REFUSED = Acknowledgement.VERDICT_REFUSED
APPLIED = Acknowledgement.VERDICT_APPLIED


def blocks(
    sequence: int,
    stored: tuple[int, ...] = (),
    removed: tuple[int, ...] = (),
    *,
    everything: bool = False,
    node_id: str = "gpu-1",
    boot_id: str = "boot-1",
) -> AgentMessage:
    return AgentMessage(
        kv_blocks=KvBlocks(
            node_id=node_id, boot_id=boot_id, sequence=sequence, all=everything, stored=stored, removed=removed
        )
    )


async def said(one: Agent, message: AgentMessage) -> tuple[int, str]:
    answer = await one.say(message)
    return answer.verdict, answer.reason


async def reported(one: Agent, boot_id: str = "boot-1", sequence: int = 1, node_id: str = "gpu-1") -> None:
    assert (await one.say(snapshot_message(node_id=node_id, boot_id=boot_id, sequence=sequence))).verdict == APPLIED


def known(to: Router, node_id: str = "gpu-1") -> int | None:
    return to.balancer.kv_blocks_told(node_id)


async def test_what_is_told_is_known_and_what_is_applied_is_quiet() -> None:
    async with router() as to, agent(to) as one:
        await reported(one)
        assert known(to) is None
        assert await said(one, blocks(7, (1, 2, 2**64 - 1), everything=True)) == (APPLIED, "")
        assert known(to) == 3
        quiet = blocks(8, (3,), (1, 2))
        quiet.quiet = True
        await one.call.write(quiet)
        answer = await one.say(blocks(9, (4, 3)))
        assert (answer.sequence, answer.node_id, known(to)) == (9, "gpu-1", 3)
        assert await said(one, blocks(10, removed=(3, 4, 2**64 - 1))) == (APPLIED, "")
        assert known(to) == 0


async def test_everything_and_nothing_is_that_it_is_not_known() -> None:
    async with router() as to, agent(to) as one:
        await reported(one)
        await said(one, blocks(1, (1,), everything=True))
        assert await said(one, blocks(2, everything=True)) == (APPLIED, "")
        assert known(to) is None
        assert await said(one, blocks(3, (5, 6))) == (APPLIED, "")
        assert known(to) == 2


@pytest.mark.parametrize("wrong", [blocks(3, (9,)), blocks(1, (9,)), blocks(0, (9,))])
async def test_a_message_that_is_missing_ends_what_is_known_until_all_is_told_anew(wrong: AgentMessage) -> None:
    async with router() as to, agent(to) as one:
        await reported(one)
        await said(one, blocks(1, (1,), everything=True))
        verdict, reason = await said(one, wrong)
        assert (verdict, reason.split(",")[0]) == (REFUSED, "kv_blocks.sequence: wanted 2")
        assert known(to) is None
        verdict, reason = await said(one, blocks(2, (9,)))
        assert (verdict, reason) == (REFUSED, "kv_blocks.sequence: wanted one with `all`, got 2")
        assert (await said(one, blocks(8, (1, 2), everything=True)), known(to)) == ((APPLIED, ""), 2)


async def test_a_node_that_was_forgotten_tells_everything_anew() -> None:
    async with router() as to, agent(to) as one:
        await reported(one)
        await said(one, blocks(1, (1, 2), everything=True))
        assert to.balancer.tick(time.monotonic() + 10_000) == ["gpu-1"]
        await reported(one, sequence=2)
        assert known(to) is None
        verdict, reason = await said(one, blocks(2, (3,)))
        assert (verdict, reason) == (REFUSED, "kv_blocks.sequence: wanted one with `all`, got 2")
        assert known(to) is None


async def test_a_stream_begins_with_everything() -> None:
    async with router() as to:
        async with agent(to) as one:
            await reported(one)
            assert (await said(one, blocks(1, (1,))))[0] == REFUSED
            await said(one, blocks(1, (1, 2), everything=True))
        async with agent(to) as other:
            await reported(other, sequence=2)
            assert known(to) == 2, "a stream's end says nothing about its nodes"
            assert (await said(other, blocks(2, (3,))))[0] == REFUSED
            await said(other, blocks(1, (3,), everything=True))
            assert known(to) == 1


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (blocks(1, everything=True, node_id=""), "kv_blocks.node_id: wanted 1..128 letters"),
        (blocks(1, everything=True, boot_id="\n"), "kv_blocks.boot_id: wanted 1..128 letters"),
        (blocks(1, (1,), everything=True, node_id="o"), "kv_blocks.node_id: wanted a node that was reported"),
        (blocks(1, (1,), everything=True, boot_id="boot-2"), "kv_blocks: wanted those of a member, of the boot"),
    ],
)
async def test_only_those_of_a_node_that_this_stream_reports_are_heard(message: AgentMessage, reason: str) -> None:
    async with router() as to, agent(to) as one:
        await reported(one)
        verdict, got = await said(one, message)
        assert (verdict, got[: len(reason)]) == (REFUSED, reason)
        assert known(to) is None
        assert to.events("message of an agent refused")


async def test_a_refusal_of_another_boot_ends_what_is_known() -> None:
    async with router() as to, agent(to) as one:
        await reported(one)
        await said(one, blocks(1, (1,), everything=True))
        assert (await said(one, blocks(2, (2,), boot_id="boot-2")))[0] == REFUSED
        assert known(to) is None


async def test_an_engine_that_began_anew_or_left_has_nothing() -> None:
    async with router() as to, agent(to) as one:
        for number in (1, 2):
            await reported(one, boot_id=f"boot-{number}")
            assert known(to) is None
            await said(one, blocks(number, (1,), everything=True, boot_id=f"boot-{number}"))
            assert known(to) == 1
        goodbye = AgentMessage()
        goodbye.goodbye.node_id, goodbye.goodbye.boot_id = "gpu-1", "boot-2"
        await said(one, goodbye)
        assert known(to) is None
        assert not to.balancer._fleet.caches.kv._masks


async def test_no_node_tells_more_than_the_configuration_allows() -> None:
    async with router() as to, agent(to) as one:
        to.balancer._fleet.caches.kv._node_blocks_max = 3
        await reported(one)
        assert (await said(one, blocks(1, (1, 2, 3), everything=True)), known(to)) == ((APPLIED, ""), 3)
        verdict, reason = await said(one, blocks(2, (4,)))
        assert (verdict, reason) == (REFUSED, "kv_blocks: wanted at most prefix.kv_blocks_node_max (3), got 4")
        assert known(to) is None
        assert (await said(one, blocks(3, (4,))))[0] == REFUSED
