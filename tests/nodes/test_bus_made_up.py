"""What anyone on a bus can make up, and what becomes of it."""

import pytest

from extproc.core.settings import NodeLimits
from extproc.core.table import SEQUENCE_JUMP_MAX
from extproc.nodes import source
from extproc.nodes.source import NEWCOMERS_MAX, NEWCOMERS_S, Newcomers
from extproc.pb.nodes_pb2 import Acknowledgement, Goodbye
from tests.nodes.loopback import agent, router
from tests.nodes.messages import snapshot_message
from tests.nodes.test_bus import APPLIED, REFUSED, hearing, refusals, verdicts
from tests.waiting import until

FELL = "node's sequence fell: not only its agent tells of it"


@pytest.mark.parametrize("way", ["bus", "stream"])
async def test_a_sequence_that_jumps_far_is_refused_by_either_way(way: str) -> None:
    async with router() as to, agent(to) as stream:
        bus = hearing(to)
        await stream.say(snapshot_message())
        for sequence, verdict in ((2**64 - 1, REFUSED), (SEQUENCE_JUMP_MAX + 2, REFUSED), (2, APPLIED)):
            message = snapshot_message(sequence=sequence)
            if way == "bus":
                bus.say(message)
                assert (to.snapshot().sequence == sequence) == (verdict == APPLIED)  # type: ignore[union-attr]
            else:
                assert (await stream.say(message)).verdict == verdict
        assert refusals(to) == [f"sequence: wanted at most {SEQUENCE_JUMP_MAX} more than 1, got {2**64 - 1}"]


@pytest.mark.parametrize("way", ["bus", "stream"])
async def test_an_agent_is_heard_again_once_its_node_is_not_fresh_and_it_is_told(way: str) -> None:
    async with router(limits=NodeLimits(fresh_s=0.3, stale_s=60)) as to, agent(to) as stream:
        bus = hearing(to)
        bus.say(snapshot_message(sequence=2**64 - 1, sample_age_ms=0))  # nothing was known to hold it against

        async def is_heard() -> bool:
            message = snapshot_message(sequence=7, sample_age_ms=0)
            if way == "bus":
                bus.say(message)
            else:
                assert (await stream.say(message)).verdict != REFUSED
            return to.snapshot().sequence == 7  # type: ignore[union-attr]

        assert not await is_heard()
        await until(is_heard)
        (entry,) = to.events(FELL)
        assert (entry["node_id"], entry["fell"]) == ("gpu-1", f"7 after {2**64 - 1}")


async def test_nodes_that_come_and_go_over_the_bus_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "NEWCOMERS_MAX", 3)
    async with router() as to, agent(to) as stream:
        bus = hearing(to)
        for number in range(10):
            bus.say(snapshot_message(node_id=f"n-{number}"))
            bus.say(snapshot_message(node_id=f"n-{number}", sequence=2))  # one that is known is none more
            bus.say(Goodbye(node_id=f"n-{number}", boot_id="a1.0"))
        assert verdicts(to)[0] == 3 * 3
        assert "new nodes in 10 s" in refusals(to)[0]
        answer = await stream.say(snapshot_message())
        assert answer.verdict == Acknowledgement.VERDICT_APPLIED  # a stream has its own bound


def test_newcomers_are_counted_anew_after_a_while() -> None:
    now_s = 50.0
    newcomers = Newcomers(lambda: now_s)
    assert [newcomers.too_many() for _ in range(NEWCOMERS_MAX + 1)] == [False] * NEWCOMERS_MAX + [True]
    now_s += NEWCOMERS_S - 0.001
    assert newcomers.too_many()
    now_s += 0.001
    assert not newcomers.too_many()


async def test_complaints_about_nodes_that_are_no_members_share_one_turn() -> None:
    async with router() as to, agent(to) as stream:
        bus = hearing(to)
        await stream.say(snapshot_message())
        for number in range(20):
            bus.say(snapshot_message(node_id=f"n-{number}", host="8.8.8.8:80"))
            bus.say(snapshot_message(node_id=f"n-{number}"), below="other")
        bus.say(snapshot_message(host="8.8.8.8:80"))
        told = to.events("message of an agent refused")
        assert [entry["node_id"] for entry in told] == ["n-0", "gpu-1"]
