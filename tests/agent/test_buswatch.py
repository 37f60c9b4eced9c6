"""What an operator is told of a bus that leads to nobody."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from extproc.agent import buswatch
from extproc.agent.buswatch import AGAIN_S, SILENCE_S, BusWatch
from extproc.agent.publish import Publisher
from extproc.agent.wire import Report
from extproc.bus.natsbus import NatsBus
from extproc.bus.settings import NatsSettings
from extproc.core.snapshot import NodeState, Snapshot
from tests.agent.test_publish import on_bus
from tests.natsserver import nats_server
from tests.nodes.room import Room
from tests.waiting import until


@dataclass
class Watched:
    """A watch over a bus, whose clock is the test's."""

    bus: Room = field(default_factory=Room)
    now_s: float = 100.0
    logged: LogCapture = field(default_factory=LogCapture)

    def __post_init__(self) -> None:
        log = structlog.wrap_logger(None, processors=[self.logged], wrapper_class=structlog.BoundLogger)
        self.watch = BusWatch(self.bus, "blue", lambda: self.now_s, log)

    def look(self, after_s: float = 0.0, *, is_any_heard: bool = False) -> dict[str, Any]:
        self.now_s += after_s
        self.watch.look(is_any_heard=is_any_heard)
        return self.watch.shown()


SILENT = {"event": "no router heard on the bus", "fleet": "blue", "log_level": "warning"}


def test_that_no_router_is_heard_is_said_and_again_while_it_lasts() -> None:
    one = Watched()
    assert one.look(SILENCE_S - 0.01) == {"connected": True, "for_s": SILENCE_S - 0.01}
    assert one.logged.entries == []
    assert one.look(0.01) == {"connected": True, "for_s": SILENCE_S, "reason": "no router of the fleet blue is heard"}
    one.look(AGAIN_S - 0.01)
    assert one.logged.entries == [SILENT | {"for_s": SILENCE_S}]
    one.look(0.01)
    assert one.logged.entries[1:] == [SILENT | {"for_s": SILENCE_S + AGAIN_S}]
    assert "reason" not in one.look(is_any_heard=True)
    one.look(SILENCE_S)
    one.look(AGAIN_S - SILENCE_S)
    assert one.logged.entries[2:] == [SILENT | {"for_s": AGAIN_S}]  # comes and goes are no more lines than silence


def test_a_bus_that_is_not_there_has_its_own_reason() -> None:
    one = Watched()
    one.bus.connected, one.bus.reason = False, "nobody there"
    one.look(1.0)
    assert one.look(SILENCE_S) == {"connected": False, "for_s": SILENCE_S, "reason": "nobody there"}
    one.bus.connected, one.bus.reason = True, None
    assert one.look(7.0) == {"connected": True, "for_s": 0.0}
    assert "reason" not in one.look(SILENCE_S - 0.01)
    assert one.logged.entries == []


def test_what_the_bus_refuses_is_shown() -> None:
    one = Watched()
    one.bus.refused = "not for you"
    assert one.look(1.0, is_any_heard=True)["reason"] == "not for you"


SERVER = """authorization { users = [
  {user: router, password: secret}
  {user: agent, password: secret, permissions: {publish: "extproc.*.echo.*"}}
]}"""


async def test_each_reason_over_a_real_server(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buswatch, "SILENCE_S", 0.3)
    secret = tmp_path / "password"
    secret.write_text("secret")
    async with nats_server(SERVER) as nats:
        settings = NatsSettings(servers=(nats.url,), user="agent", password_file=secret)
        bus = NatsBus(settings, time.monotonic, structlog.get_logger())
        publisher = Publisher(bus, settings.fleet, time.monotonic, structlog.get_logger())

        def reason() -> str:
            return str(publisher.shown().get("reason"))

        running = asyncio.create_task(publisher.run(lambda: None))
        await until(lambda: reason() == "no router of the fleet default is heard")
        login = {"user": "router", "password_file": secret}
        async with on_bus(nats.url, "r", fleet="blue", **login), on_bus(nats.url, "r", **login):
            await until(lambda: publisher.shown()["routers_heard"] == ["r"])
            assert reason() == "None"
            publisher.offer(Report(Snapshot("n", "10.0.0.1:80", "b", 1, 0.0, NodeState.READY), 0.0))
            await until(lambda: "permissions violation for publish" in reason())
        await nats.kill()
        await until(lambda: not publisher.shown()["connected"])
        assert reason() != "None"
        publisher.leave()
        await asyncio.wait_for(running, 10)
