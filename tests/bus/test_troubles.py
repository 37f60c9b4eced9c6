"""What is said of a bus that does not do what it should."""

from pathlib import Path
from typing import Any

import pytest

from extproc.bus import troubles
from extproc.bus.bus import LOADS, NODES
from extproc.bus.localbus import LocalBus
from extproc.bus.troubles import QUIET_S, REASONS_MAX, REFUSED_S, Troubles, said
from tests.bus.busing import Ears, Told, nats_bus, reached
from tests.natsserver import nats_server
from tests.waiting import until

PUBLISH = 'permissions violation for publish to "extproc.default.loads"'
SUBSCRIBE = 'permissions violation for subscription to "extproc.default.loads"'


class Troubled:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.told = Told()
        self.troubles = Troubles(lambda: self.now_s, self.told.log)

    def fail(self, server: str, reason: str, *, was_reached: bool = False) -> None:
        self.troubles.failed(server, reason, was_reached=was_reached)

    @property
    def not_reached(self) -> list[tuple[str, str]]:
        return [(one["server"], one["reason"]) for one in self.told.events("bus not reached")]


def test_each_reason_of_each_server_is_logged_once_however_they_alternate() -> None:
    one = Troubled()
    for second in range(200):
        one.now_s += second % 3
        one.fail("a", "no answer in time" if second % 4 else "refused")
        one.fail("b", "refused")
        assert one.troubles.reason == "refused"
    assert one.not_reached == [("a", "refused"), ("b", "refused"), ("a", "no answer in time")]


def test_a_reason_is_logged_again_after_the_server_was_reached_or_it_was_long_ago() -> None:
    one = Troubled()
    one.fail("a", "refused")
    one.fail("b", "refused")
    one.troubles.reached("a")
    assert one.troubles.reason is None
    one.fail("a", "closed", was_reached=True)
    assert one.told.lines[-1] == "bus lost"
    one.fail("a", "closed")
    one.fail("a", "refused")
    one.fail("b", "refused")
    assert one.not_reached == [("a", "refused"), ("b", "refused"), ("a", "refused")]
    one.now_s += QUIET_S
    one.fail("a", "refused")
    assert len(one.not_reached) == 3
    one.now_s += QUIET_S + 1
    one.fail("a", "refused")
    assert len(one.not_reached) == 4


def test_reasons_that_are_always_new_take_no_memory() -> None:
    one = Troubled()
    for number in range(REASONS_MAX):
        one.fail("a", f"{number}")
    one.fail("a", "0")
    assert len(one.not_reached) == REASONS_MAX
    one.fail("a", "new")  # forgets the oldest: 1
    one.fail("a", "0")
    one.fail("a", "1")
    assert len(one.not_reached) == REASONS_MAX + 2


def test_a_refused_publication_counts_until_it_was_not_repeated_for_a_while() -> None:
    one = Troubled()
    assert one.troubles.refused is None
    for _ in range(3):
        one.troubles.complained("a", PUBLISH)
        assert one.troubles.refused == PUBLISH
        one.now_s += REFUSED_S - 0.1
        assert one.troubles.refused == PUBLISH
    one.now_s += 0.1
    assert one.troubles.refused is None
    one.troubles.complained("a", "slow consumer")
    assert one.troubles.refused is None


def test_a_refused_subscription_counts_until_the_next_connection() -> None:
    one = Troubled()
    one.troubles.complained("a", SUBSCRIBE)
    one.troubles.complained("a", PUBLISH)
    one.now_s += 1e6
    assert one.troubles.refused == SUBSCRIBE
    one.troubles.connects()
    assert one.troubles.refused is None


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (TimeoutError("x"), "no answer in time"),
        (ValueError(), "ValueError"),
        (RuntimeError("nats: 'Authorization Violation'"), "Authorization Violation"),
        (RuntimeError("not valid for 'a'"), "not valid for 'a'"),
        (RuntimeError("x" * 999), "x" * 200),
        (RuntimeError("''"), "''"),
    ],
)
def test_errors_are_said_without_marks_of_the_client(error: Exception, wanted: str) -> None:
    assert said(error) == wanted


def _only(allowed: str) -> str:
    return f"authorization {{ users: [{{ user: agent, password: secret, permissions: {{ {allowed} }} }}] }}"


def _login(folder: Path) -> dict[str, Any]:
    (folder / "password").write_text("secret")
    return {"user": "agent", "password_file": str(folder / "password")}


async def test_a_server_that_refuses_what_we_publish_is_no_way_until_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubles, "REFUSED_S", 0.3)
    echo_only = _only('publish: ["extproc.default.echo.*"], subscribe: "extproc.default.>"')
    async with nats_server(echo_only) as server, reached(nats_bus(server.url, **_login(tmp_path))) as (one,):
        bus = one.bus
        assert bus.refused is None
        bus.publish(NODES, b"report", "gpu-1")
        await until(lambda: bus.refused)
        assert bus.refused == 'permissions violation for publish to "extproc.default.nodes.gpu-1"'
        assert bus.connected
        assert bus.reason is None
        await until(lambda: bus.refused is None)
        bus.publish(NODES, b"report", "gpu-1")
        await until(lambda: bus.refused)
        monkeypatch.setattr(troubles, "REFUSED_S", 1e6)
        bus.publish(NODES, b"report", "gpu-1")
        await server.restart(_only('publish: "extproc.default.>", subscribe: "extproc.default.>"'))
        await until(lambda: one.reached == 2)
        assert bus.refused is None
        bus.publish(LOADS, b"allowed")
        await one.hears(b"allowed")
        assert bus.refused is None


async def test_a_server_that_lets_us_not_hear_says_so(tmp_path: Path) -> None:
    allowed = _only('publish: "extproc.default.>", subscribe: ["extproc.default.echo.*"]')
    async with nats_server(allowed) as server, reached(nats_bus(server.url, **_login(tmp_path))) as (one,):
        await until(lambda: "subscription" in (one.bus.refused or ""))
        assert one.bus.connected


async def test_the_reason_is_there_as_long_as_the_bus_is_not(tmp_path: Path) -> None:
    async with nats_server() as server:
        bus = nats_bus(server.url)
        ears = Ears(bus)
        assert bus.reason is None
        await server.kill()
        await bus.open(ears.connect)
        await until(lambda: bus.reason)
        await server.start()
        await until(lambda: ears.reached)
        assert bus.reason is None
        await server.kill()
        await until(lambda: bus.reason)
        assert not bus.connected
        await bus.close()
    local = LocalBus(tmp_path, "a")
    assert (local.reason, local.refused) == (None, None)
