"""What an agent publishes, and when, on a bus without a network."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.publish import ANEW_AGAIN_S, ANEW_S_MAX, HEARD_S, ROUTERS_HEARD_MAX, Publisher
from extproc.agent.standby import ROUTER_CHARS_MAX
from extproc.agent.wire import Report
from extproc.bus.bus import MESSAGE_BYTES_MAX, NODES, ROUTERS
from extproc.core.request import MODEL_CHARS_MAX
from extproc.core.snapshot import MODELS_MAX, NodeState, ServedModel, Snapshot
from extproc.pb.exchange_pb2 import RouterHere
from extproc.pb.nodes_pb2 import AgentMessage
from tests.nodes.room import Room
from tests.waiting import until

MODELS = (ServedModel("m"),)


def report(node_id: str = "n", sequence: int = 1, models: tuple[ServedModel, ...] | None = MODELS) -> Report:
    return Report(Snapshot(node_id, "10.0.0.1:80", "b.0", sequence, 0.0, NodeState.READY, models=models), 99.0)


def here(bus: Room, router: str, *, is_new: bool = False, leaves: bool = False) -> None:
    bus.publish(ROUTERS, RouterHere(router=router, is_new=is_new, leaves=leaves).SerializeToString())


@dataclass
class Told:
    """A publisher on a bus, whose clock is the test's."""

    bus: Room = field(default_factory=Room)
    now_s: float = 100.0

    def __post_init__(self) -> None:
        self.publisher = Publisher(self.bus, "fleet", lambda: self.now_s, structlog.get_logger())

    @property
    def messages(self) -> list[tuple[str, AgentMessage]]:
        """Node of the subject, message."""
        told = [(below, message) for channel, below, message in self.bus.published if channel == NODES]
        return [(below, AgentMessage.FromString(message)) for below, message in told]


@contextlib.asynccontextmanager
async def published(told: Told) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(told.publisher.run(lambda: None))
    try:
        yield task
    finally:
        told.publisher.leave()
        await asyncio.wait_for(task, 10)


def test_a_report_is_one_message_on_its_nodes_subject() -> None:
    told = Told()
    told.bus.way_s = 0.125
    told.publisher.offer(report("gpu.1"))
    ((below, message),) = told.messages
    assert (below, message.snapshot.node_id, message.quiet) == ("gpu.1", "gpu.1", True)
    assert message.snapshot.models.models[0].name == "m"
    assert (message.snapshot.sample_age_ms, message.snapshot.round_trip_ms) == (1000, 250)


def test_the_way_is_left_out_while_it_is_not_measured() -> None:
    told = Told()
    told.publisher.offer(report())
    assert not told.messages[0][1].snapshot.HasField("round_trip_ms")


async def test_everything_is_told_when_the_bus_is_reached_and_goodbyes_at_the_end() -> None:
    told = Told()
    told.bus.connected = False
    for number in (1, 2):
        told.publisher.offer(report("a", number))
        told.publisher.offer(report("b", number))
    told.bus.connected = True
    async with published(told):
        await until(lambda: len(told.messages) == 2)
        assert [(below, one.snapshot.sequence) for below, one in told.messages] == [("a", 2), ("b", 2)]
    assert [(below, one.goodbye.node_id) for below, one in told.messages[2:]] == [("a", "a"), ("b", "b")]
    assert told.bus.is_closed


async def test_everything_is_told_to_a_new_router_at_once_and_to_many_not_much_more_often() -> None:
    told = Told()
    told.publisher.offer(report())
    async with published(told):
        await until(lambda: len(told.messages) == 2)
        loop = asyncio.get_running_loop()
        here(told.bus, "a", is_new=True)
        await until(lambda: len(told.messages) == 3, within_s=ANEW_AGAIN_S + ANEW_S_MAX + 0.3)
        until_s = loop.time() + 3 * (ANEW_AGAIN_S + ANEW_S_MAX)
        while loop.time() < until_s:
            here(told.bus, "b", is_new=True)
            await asyncio.sleep(0)
        assert 5 <= len(told.messages) <= 3 + 4


def test_a_router_is_heard_for_a_while_unless_the_bus_is_lost_or_it_says_goodbye() -> None:
    told = Told()
    publisher = told.publisher
    assert not publisher.is_heard("r")
    here(told.bus, "r")
    told.now_s += HEARD_S - 0.001
    assert publisher.is_heard("r")
    assert not publisher.is_heard("other")
    told.bus.connected = False
    assert not publisher.is_heard("r")
    told.bus.connected = True
    told.now_s += 0.001
    assert not publisher.is_heard("r")
    here(told.bus, "r")
    assert publisher.is_heard("r")
    here(told.bus, "r", leaves=True)
    assert not publisher.is_heard("r")


def test_so_many_routers_are_remembered_and_no_more() -> None:
    told = Told()
    for number in range(ROUTERS_HEARD_MAX):
        here(told.bus, f"r-{number}")
    here(told.bus, "r-0")
    assert told.publisher.is_heard("r-1")
    here(told.bus, "one more")
    assert [told.publisher.is_heard(one) for one in ("r-0", "r-1", "r-2", "one more")] == [True, False, True, True]


def test_a_routers_name_is_so_long_and_no_longer() -> None:
    told = Told()
    for name in ("", "r" * ROUTER_CHARS_MAX, "r" * (ROUTER_CHARS_MAX + 1)):
        here(told.bus, name)
    assert told.publisher.is_heard("r" * ROUTER_CHARS_MAX)
    assert not told.publisher.is_heard("r" * (ROUTER_CHARS_MAX + 1))
    assert not told.publisher.is_heard("")


@given(st.text(max_size=100), st.binary(max_size=200))
def test_no_bytes_do_harm(below: str, message: bytes) -> None:
    told = Told()
    told.bus.publish(ROUTERS, message, below)
    assert not told.publisher.is_heard("r")


@pytest.fixture
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


def test_a_list_of_models_that_is_too_long_is_left_out_and_that_is_said_once(
    logged: list[structlog.typing.EventDict],
) -> None:
    told = Told()
    usual = tuple(ServedModel(f"{number:0>{MODEL_CHARS_MAX}}") for number in range(MODELS_MAX))
    told.publisher.offer(report("usual", models=usual))
    long = tuple(
        ServedModel("\N{GRINNING FACE}" * MODEL_CHARS_MAX, version=str(number)) for number in range(MODELS_MAX)
    )
    for sequence in (1, 2):
        told.publisher.offer(report("long", sequence, long))
    assert [len(message.snapshot.models.models) for _, message in told.messages] == [MODELS_MAX, 0, 0]
    assert all(len(message) <= MESSAGE_BYTES_MAX for _, _, message in told.bus.published)
    (entry,) = logged
    assert entry["event"] == "report too long for the bus: its list of models is left out"
    assert (entry["node_id"], entry["message_bytes_max"]) == ("long", MESSAGE_BYTES_MAX)
