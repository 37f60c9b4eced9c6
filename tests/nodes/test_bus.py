"""What agents publish on a bus, as a router takes it; and beside what they tell on streams."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.bus.bus import MESSAGE_BYTES_MAX, NODES
from extproc.core.settings import NodeLimits
from extproc.core.snapshot import ROUND_TRIP_S_MAX, NodeState
from extproc.nodes.reports import NODES_GONE_MAX
from extproc.pb.nodes_pb2 import (
    NODE_STATE_DRAINING,
    Acknowledgement,
    AgentMessage,
    Goodbye,
    KvBlocks,
    Snapshots,
)
from tests.nodes.loopback import Router, agent, router
from tests.nodes.messages import snapshot_message
from tests.nodes.room import Room

APPLIED = Acknowledgement.VERDICT_APPLIED
IGNORED = Acknowledgement.VERDICT_IGNORED
REFUSED = Acknowledgement.VERDICT_REFUSED
BYE = Goodbye(node_id="gpu-1", boot_id="a1.0")
TWO = "node reported by two streams"


def hearing(to: Router, way_s: float = 0.0) -> Room:
    bus = Room(way_s)
    to.ingest.hear(bus)
    return bus


def verdicts(to: Router) -> tuple[int, ...]:
    """How many messages were applied, ignored and refused."""
    page = to.metrics.page([]).decode()
    counts = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("extproc_snapshots_total{"))
    return tuple(
        round(float(counts[f'extproc_snapshots_total{{verdict="{one}"}}'])) for one in ("applied", "ignored", "refused")
    )


def refusals(to: Router) -> list[str]:
    return [entry["reason"] for entry in to.events("message of an agent refused")]


async def test_what_is_published_is_taken_as_what_comes_on_streams() -> None:
    async with router() as to:
        bus = hearing(to)
        bus.say(snapshot_message())
        bus.say(snapshot_message(sequence=2, state=NODE_STATE_DRAINING, models=None))
        seen = to.snapshot()
        assert seen is not None
        assert (seen.sequence, seen.state, seen.gpu_utilization) == (2, NodeState.DRAINING, 0.5)
        assert seen.models is not None
        assert seen.models[0].name == "m"
        bus.say(snapshot_message(sequence=1))
        assert verdicts(to) == (2, 1, 0)
        bus.say(BYE)
        assert to.snapshot() is None
        bus.say(BYE)
        assert verdicts(to) == (3, 2, 0)


async def test_the_way_from_the_bus_counts_beside_the_agents() -> None:
    async with router() as to:
        bus = hearing(to, way_s=0.25)
        bus.say(snapshot_message(round_trip_ms=100))
        assert to.snapshot().round_trip_s == pytest.approx(0.6)  # type: ignore[union-attr]
        bus.say(snapshot_message(sequence=2, round_trip_ms=None))
        assert to.snapshot().round_trip_s == 0.5  # type: ignore[union-attr]
        bus.say(snapshot_message(sequence=3, round_trip_ms=ROUND_TRIP_S_MAX * 1000))
        assert to.snapshot().round_trip_s == ROUND_TRIP_S_MAX  # type: ignore[union-attr]
        bus.say(snapshot_message(sequence=4, round_trip_ms=ROUND_TRIP_S_MAX * 1000 + 1))
        assert verdicts(to) == (3, 0, 1)


@pytest.mark.parametrize(
    ("message", "below", "reason"),
    [
        (AgentMessage(snapshot=snapshot_message()), "gpu-2", "node_id: wanted that of the subject, got 'gpu-1'"),
        (AgentMessage(snapshot=snapshot_message()), "", "node_id: wanted that of the subject, got 'gpu-1'"),
        (AgentMessage(goodbye=BYE), "gpu-2", "node_id: wanted that of the subject, got 'gpu-1'"),
        (AgentMessage(snapshot=snapshot_message(node_id="-")), "-", "node_id: wanted 1..128 letters"),
        (AgentMessage(snapshot=snapshot_message(host="8.8.8.8:80")), "gpu-1", "host: wanted an address within"),
        (AgentMessage(snapshot=snapshot_message(sample_age_ms=600_000)), "gpu-1", "sample is 600.0 s old"),
        (AgentMessage(kv_blocks=KvBlocks(node_id="gpu-1", boot_id="a1.0", all=True)), "gpu-1", "message: wanted a sn"),
        (AgentMessage(snapshots=Snapshots(snapshots=[snapshot_message()])), "gpu-1", "message: wanted a snapshot or"),
        (AgentMessage(), "gpu-1", "message: wanted a snapshot or a goodbye, got neither"),
    ],
)
async def test_what_is_refused_is_logged_and_counted(message: AgentMessage, below: str, reason: str) -> None:
    async with router() as to:
        hearing(to).say(message, below)
        assert [one[: len(reason)] for one in refusals(to)] == [reason]
        assert to.events("message of an agent refused")[0]["peer"] == "the bus"
        assert (verdicts(to), len(to.balancer.views())) == ((0, 0, 1), 0)


async def test_nobody_publishes_for_a_node_that_is_known_on_another_subject() -> None:
    async with router() as to:
        bus = hearing(to)
        bus.say(snapshot_message())
        bus.say(BYE, below="gpu-2")
        bus.say(snapshot_message(sequence=2, state=NODE_STATE_DRAINING), below="gpu-2")
        assert to.snapshot().sequence == 1  # type: ignore[union-attr]


async def test_the_longest_message_is_taken_and_no_longer_one() -> None:
    async with router() as to:
        bus = hearing(to)
        sound = AgentMessage(snapshot=snapshot_message()).SerializeToString()
        # A field that is not known here: tag 1000, of bytes.
        spare = MESSAGE_BYTES_MAX - len(sound)
        filled = sound + b"\xc2\x3e" + _varint(spare - 5) + b"x" * (spare - 5)
        assert len(filled) == MESSAGE_BYTES_MAX
        bus.publish(NODES, filled, "gpu-1")
        assert to.snapshot() is not None
        bus.publish(NODES, filled + b"\x08", "gpu-1")
        assert refusals(to) == [f"message: wanted at most {MESSAGE_BYTES_MAX} bytes, got {MESSAGE_BYTES_MAX + 1}"]


def _varint(number: int) -> bytes:
    return bytes([number & 127 | 128, number >> 7 & 127 | 128, number >> 14])


@given(st.lists(st.tuples(st.text(max_size=200), st.binary(max_size=300))))
def test_no_bytes_do_harm(told: list[tuple[str, bytes]]) -> None:
    async def hear() -> None:
        async with router() as to:
            bus = hearing(to)
            for below, message in told:
                bus.publish(NODES, message, below)
            bus.say(snapshot_message())
            assert to.snapshot() is not None
            assert sum(verdicts(to)) == len(told) + 1

    asyncio.run(hear())


async def test_a_report_by_both_ways_is_one() -> None:
    async with router(name="r") as to, agent(to) as stream:
        bus = hearing(to)
        for sequence in range(1, 4):
            bus.say(snapshot_message(sequence=sequence))
            answer = await stream.say(snapshot_message(sequence=sequence))
            assert (answer.verdict, answer.router) == (IGNORED, "r")
        assert (await stream.say(snapshot_message(sequence=4))).verdict == APPLIED
        bus.say(snapshot_message(sequence=4))
        assert verdicts(to) == (4, 4, 0)
        bus.say(snapshot_message(sequence=1, boot_id="a1.1"))  # the engine began anew
        assert (await stream.say(snapshot_message(sequence=1, boot_id="a1.1"))).verdict == IGNORED
        assert (await stream.say(snapshot_message(sequence=2, boot_id="a1.1"))).verdict == APPLIED
        assert to.events(TWO) == []


@pytest.mark.parametrize("first_by_bus", [True, False])
async def test_a_goodbye_by_either_way_counts(first_by_bus: bool) -> None:
    async with router() as to, agent(to) as stream:
        bus = hearing(to)
        bus.say(snapshot_message())
        await stream.say(snapshot_message())
        if first_by_bus:
            bus.say(BYE)
            assert to.snapshot() is None
            assert (await stream.say(AgentMessage(goodbye=BYE))).verdict == IGNORED
        else:
            assert (await stream.say(AgentMessage(goodbye=BYE))).verdict == APPLIED
            assert to.snapshot() is None
            bus.say(BYE)
        assert verdicts(to) == (2, 2, 0)
        assert to.events(TWO) == []
        bus.say(snapshot_message(boot_id="next"))
        assert (await stream.say(snapshot_message(boot_id="next"))).verdict == IGNORED


async def test_kv_blocks_go_on_the_stream_of_a_node_that_is_published() -> None:
    async with router() as to, agent(to) as stream:
        bus = hearing(to)
        bus.say(snapshot_message())
        await stream.say(snapshot_message())
        bus.say(snapshot_message(sequence=2))
        told = KvBlocks(node_id="gpu-1", boot_id="a1.0", sequence=1, all=True, stored=[1, 2, 3])
        assert (await stream.say(AgentMessage(kv_blocks=told))).verdict == APPLIED
        assert to.balancer.kv_blocks_told("gpu-1") == 3


async def test_another_stream_that_repeats_a_published_boot_is_refused() -> None:
    """As without a bus: its largest sequence would be the last word for that boot."""
    async with router() as to, agent(to) as owner, agent(to) as other:
        bus = hearing(to)
        bus.say(snapshot_message())
        assert (await owner.say(snapshot_message())).verdict == IGNORED
        assert (await other.say(snapshot_message(sequence=2**64 - 1))).verdict == REFUSED
        assert (await other.say(AgentMessage(goodbye=BYE))).verdict == REFUSED
        bus.say(snapshot_message(sequence=2))
        assert to.snapshot().sequence == 2  # type: ignore[union-attr]


async def test_an_agent_that_began_anew_is_heard_on_its_new_stream_while_the_old_one_is_open() -> None:
    async with router() as to, agent(to) as old, agent(to) as new:
        bus = hearing(to)
        await old.say(snapshot_message(boot_id="one"))
        bus.say(snapshot_message(boot_id="two"))
        assert (await new.say(snapshot_message(boot_id="two"))).verdict == IGNORED
        assert (await new.say(snapshot_message(boot_id="two", sequence=2))).verdict == APPLIED
        assert to.events(TWO) == []


@pytest.mark.parametrize("ways", ["bus and stream", "stream and bus", "bus and bus"])
async def test_two_agents_with_one_node_id_are_told(ways: str) -> None:
    async with router() as to, agent(to) as stream:
        bus = hearing(to)

        async def by(way: str, **changes: Any) -> None:
            if way == "bus":
                bus.say(snapshot_message(**changes))
            else:
                await stream.say(snapshot_message(**changes))

        first, _, second = ways.split()
        await by(first, boot_id="one")
        await by(second, boot_id="two")
        assert to.snapshot().boot_id == "two"  # type: ignore[union-attr]
        await by(first, boot_id="one", sequence=2)
        assert to.snapshot().boot_id == "two"  # type: ignore[union-attr]
        assert [entry["node_id"] for entry in to.events(TWO)] == ["gpu-1"]


async def test_what_is_kept_of_published_nodes_is_bounded() -> None:
    """Nodes are members for a moment here, and any number may come after each other."""
    async with router(limits=NodeLimits(fresh_s=0.01, stale_s=0.02, member_s=0.03, nodes_max=2)) as to:
        bus = hearing(to)
        reports = to.ingest._reports
        loop, kept = asyncio.get_running_loop(), []
        for number in range(3 * NODES_GONE_MAX):
            bus.say(snapshot_message(node_id=f"n-{number}", host=f"10.0.0.1:{number + 1}", sample_age_ms=0))
            to.balancer.tick(loop.time() + 1)
            kept.append(len(reports._bus.known))
        assert max(kept) == NODES_GONE_MAX + 1
        assert verdicts(to)[2] == 0


async def test_a_full_table_refuses_what_is_published_too() -> None:
    async with router(limits=NodeLimits(nodes_max=2)) as to:
        bus = hearing(to)
        for number in range(1, 4):
            bus.say(snapshot_message(node_id=f"n-{number}", host=f"10.0.0.{number}:80"))
        assert verdicts(to) == (2, 0, 1)
