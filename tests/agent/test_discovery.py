"""Routers that are found by name: several at a time, which come and go."""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from extproc.address import TcpAddress, UnixAddress
from extproc.agent import discovery
from extproc.agent.discovery import ABSENT_LOOKUPS, Routers, look_up
from extproc.agent.routername import RouterName, parse
from extproc.agent.settings import ROUTERS_MAX, AgentConfig
from extproc.agent.settings import parse as parse_settings
from extproc.core.settings import Fault
from extproc.pb.nodes_pb2_grpc import add_NodesServicer_to_server
from tests.agent.test_push import SlowRouter, report
from tests.certificates import Authority
from tests.waiting import until

ENGINE = {"node_id": "gpu-1", "engine": "http://127.0.0.1:1"}
NAME = RouterName("routers.example", 9004)


def config(folder: Path = Path(), **told: Any) -> AgentConfig:
    found = parse_settings({"engines": [ENGINE], "routers": [str(NAME)], "resolve_interval_s": 0.1} | told, folder)
    assert isinstance(found, AgentConfig), found
    return found


class Names:
    """What a resolver would say; a text is what it fails with."""

    def __init__(self, *addresses: TcpAddress) -> None:
        self.answers: dict[RouterName, tuple[TcpAddress, ...] | str] = {NAME: addresses}
        self.asked = 0
        self.asked_for: Counter[RouterName] = Counter()
        self.hold = asyncio.Event()
        self.held: set[RouterName] = set()

    async def __call__(self, name: RouterName) -> frozenset[TcpAddress]:
        self.asked += 1
        self.asked_for[name] += 1
        if name in self.held:
            await self.hold.wait()
        answer = self.answers[name]
        if isinstance(answer, str):
            raise OSError(answer)
        return frozenset(answer)

    async def asked_again(self, times: int = 1) -> None:
        """Until what is told from here on was taken in as often."""
        before = self.asked
        await until(lambda: self.asked > before + times)


@contextlib.asynccontextmanager
async def running(names: Names, told: AgentConfig) -> AsyncIterator[Routers]:
    routers = Routers(told, asyncio.get_running_loop().time, structlog.get_logger(), names)
    task = asyncio.create_task(routers.run())
    try:
        yield routers
    finally:
        routers.leave()
        await asyncio.wait_for(task, 10)


@contextlib.asynccontextmanager
async def listening(*hosts: str, tls: Any = None) -> AsyncIterator[dict[TcpAddress, SlowRouter]]:
    """A router at each of these loopback hosts, all on one port, as pods behind a headless Service."""
    servers, routers = [], {}
    port = 0
    for host in hosts:
        router, server = SlowRouter(), grpc.aio.server()
        router.may_read.set()
        add_NodesServicer_to_server(router, server)  # type: ignore[no-untyped-call]
        at = f"{host}:{port}"
        port = server.add_insecure_port(at) if tls is None else server.add_secure_port(at, tls)
        await server.start()
        servers.append(server)
        routers[TcpAddress(host, port)] = router
    try:
        yield routers
    finally:
        for server in servers:
            await server.stop(0)


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def told(router: SlowRouter) -> list[str]:
    return [one.WhichOneof("message") or "" for one in router.heard]


async def test_every_address_of_a_name_is_told_what_comes_and_what_came_before_it() -> None:
    async with listening("127.0.0.1", "127.0.0.2") as at:
        first, second = at
        names = Names(first)
        async with running(names, config()) as routers:
            routers.offer(report(1))
            await until(lambda: at[first].heard)
            names.answers[NAME] = (first, second)
            await until(lambda: at[second].heard)
            assert at[second].heard[0].snapshot.sequence == 1
            routers.offer(report(2))
            await until(lambda: all(one.heard[-1].snapshot.sequence == 2 for one in at.values()))
        assert {tuple(told(one)[-1:]) for one in at.values()} == {("goodbye",)}


async def test_an_address_that_stays_away_is_left_without_a_goodbye(logged: list[Any]) -> None:
    async with listening("127.0.0.1", "127.0.0.2") as at:
        first, second = at
        names = Names(first, second)
        async with running(names, config()) as routers:
            routers.offer(report(1))
            await until(lambda: all(one.heard for one in at.values()))
            names.answers[NAME] = (first,)
            await until(lambda: routers.addresses == {first})
            routers.offer(report(2))
            await until(lambda: at[first].heard[-1].snapshot.sequence == 2)
            assert told(at[second]) == ["snapshot"]
            assert [line["lookups"] for line in logged if line["event"] == "router gone"] == [ABSENT_LOOKUPS]
            names.answers[NAME] = (first, second)
            await until(lambda: len(at[second].heard) == 2)
            assert at[second].heard[-1].snapshot.sequence == 2, "it is back, and hears what it missed"


async def test_an_address_that_is_away_for_a_moment_is_kept() -> None:
    at = TcpAddress("127.0.0.1", 1)
    rounds = ((), (), (at,))
    assert len(rounds) == ABSENT_LOOKUPS
    seen: list[frozenset[Any]] = []

    class Flickering(Names):
        async def __call__(self, name: RouterName) -> frozenset[TcpAddress]:
            seen.append(routers.addresses)
            self.answers[name] = (at,) if self.asked == 0 else rounds[self.asked % len(rounds)]
            return await super().__call__(name)

    names = Flickering()
    async with running(names, config()) as routers:
        await until(lambda: names.asked > 3 * len(rounds))
    assert set(seen[1:]) == {frozenset((at,))}


@pytest.mark.parametrize("failure", ["Name or service not known", ""])
async def test_a_lookup_that_fails_changes_nothing_and_is_told_once(logged: list[Any], failure: str) -> None:
    at = TcpAddress("127.0.0.1", 1)
    names = Names(at)
    async with running(names, config()) as routers:
        await until(lambda: routers.addresses)
        for _ in range(2):
            names.answers[NAME] = failure
            await names.asked_again(ABSENT_LOOKUPS + 1)
            assert routers.addresses == {at}
            names.answers[NAME] = (at,)
            await names.asked_again()
    failures = [(line["reason"], line["kept"]) for line in logged if line["event"] == "routers not looked up"]
    assert failures == [(failure, 1)] * 2


async def test_a_resolver_that_hangs_is_asked_once_and_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    monkeypatch.setattr(discovery, "LOOKUP_S", 0.05)
    other = RouterName("other.example", 9004)
    names = Names()
    names.held.add(NAME)
    names.answers[other] = ()
    async with listening("127.0.0.1") as at:
        (listed,) = at
        async with running(names, config(routers=[str(NAME), str(other), str(listed)])) as routers:
            routers.offer(report(1))
            await until(lambda: at[listed].heard)
            await until(lambda: names.asked_for[other] > 3)
            assert names.asked_for[NAME] == 1
            assert [line["name"] for line in logged if line["event"] == "routers not looked up"] == [str(NAME)]
            names.answers[NAME] = (TcpAddress("127.0.0.1", 1),)
            names.hold.set()
            await until(lambda: len(routers.addresses) == 2)
            names.hold.clear()
            monkeypatch.setattr(discovery, "LOOKUP_S", 3600.0)
            await names.asked_again(0)
        # It ends while the resolver hangs.


async def test_a_link_that_fails_has_its_name_looked_up_at_once() -> None:
    names = Names(TcpAddress("127.0.0.1", 1))
    async with running(names, config(resolve_interval_s=3600)):
        await until(lambda: names.asked >= 2)


async def test_there_are_64_routers_at_most_and_those_that_are_told_stay(logged: list[Any]) -> None:
    listed = [f"127.0.0.1:{port}" for port in range(1, ROUTERS_MAX - 1)]
    kept, *more = (TcpAddress("127.0.0.9", port) for port in (5, 1, 2, 3))
    names = Names(kept)
    async with running(names, config(routers=[str(NAME), *listed], reconnect_backoff_s_max=600)) as routers:
        await until(lambda: kept in routers.addresses)
        names.answers[NAME] = (kept, *more, TcpAddress("127.0.0.1", 1))
        await until(lambda: len(routers.addresses) == ROUTERS_MAX)
        await names.asked_again(2)
        assert routers.addresses >= {kept, more[0]}
        assert routers.addresses.isdisjoint(more[1:])
    assert [line["left_out"] for line in logged if line["event"].startswith("too many")] == [2]


@pytest.mark.parametrize(
    ("issued", "server_name", "reached"),
    [(NAME.host, None, True), ("other.example", None, False), ("other.example", "other.example", True)],
)
async def test_a_certificate_has_the_name_that_led_there_unless_another_is_told(
    tmp_path: Path, logged: list[Any], issued: str, server_name: str | None, reached: bool
) -> None:
    authority = Authority()
    own = authority.issue(issued)
    tls = {"ca": authority.written(tmp_path)} | ({} if server_name is None else {"server_name": server_name})
    credentials = grpc.ssl_server_credentials([(own.key, own.certificate)])
    async with listening("127.0.0.1", tls=credentials) as at:
        (router,) = at.values()
        async with running(Names(*at), config(tmp_path, tls=tls)) as routers:
            routers.offer(report(1))
            await until(lambda: router.heard or any(line["event"] == "router not reached" for line in logged))
            assert bool(router.heard) == reached


async def test_a_name_of_this_machine_leads_to_its_router() -> None:
    async with listening("127.0.0.1") as at:
        ((address, router),) = at.items()
        clock, found = asyncio.get_running_loop().time, config(routers=[f"dns:localhost:{address.port}"])
        routers = Routers(found, clock, structlog.get_logger())
        task = asyncio.create_task(routers.run())
        routers.offer(report(1))
        await until(lambda: router.heard)
        routers.leave()
        await asyncio.wait_for(task, 10)
        assert told(router) == ["snapshot", "goodbye"]


async def test_the_systems_resolver_is_asked_for_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TcpAddress("127.0.0.1", 9004) in await look_up(RouterName("localhost", 9004))
    rows = [(socket.AF_INET, 1, 6, "", ("10.0.0.2", 9)), (socket.AF_INET6, 1, 6, "", ("fd00::0:2", 9, 0, 0))] * 2
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
    assert await look_up(RouterName("a", 9)) == {TcpAddress("10.0.0.2", 9), TcpAddress("fd00::2", 9)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("dns:serve.llm.svc:9004", RouterName("serve.llm.svc", 9004)),
        ("serve.llm.svc:9004", TcpAddress("serve.llm.svc", 9004)),
        ("unix:/run/dns:a", UnixAddress("/run/dns:a")),
    ],
)
def test_what_begins_with_dns_is_a_name_of_several(text: str, found: object) -> None:
    assert parse(text) == found
    assert str(found) == text


@pytest.mark.parametrize(
    "text", ["dns:", "dns:a", "dns:10.0.0.1:9004", "dns:[::1]:9004", "dns:unix:/a", "dns:a b:1", "dns:dns:a:1"]
)
def test_what_is_no_name_with_a_port_is_a_fault(text: str) -> None:
    found = parse_settings({"engines": [ENGINE], "routers": [text]})
    assert found == [Fault("routers.0", "dns:name:port", repr(text))]


@pytest.mark.parametrize(("name", "refused"), [("dns:serve.example:9004", True), ("dns:localhost:9004", False)])
def test_a_token_goes_in_plain_text_to_no_name_but_this_machines(tmp_path: Path, name: str, refused: bool) -> None:
    found = parse_settings({"engines": [ENGINE], "routers": [name], "token_file": "t"}, tmp_path)
    assert isinstance(found, list) == refused
    assert isinstance(parse_settings({"engines": [ENGINE], "routers": ["dns:a:0"]}), list)
