"""Clients that name destinations, policies and classes themselves: whatever state serve is in, nobody listens."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable

import aiohttp
import pytest
import pytest_asyncio

from extproc.pb import nodes_pb2 as pb
from tests.e2e.attacking import (
    AT_ONCE,
    CLOSED,
    DUPLEX,
    LISTENERS,
    NAKED,
    ROUTING,
    Answered,
    Headers,
    Secret,
    attacked,
    request,
    secret,
    send,
    spoofed,
)
from tests.e2e.listeners import DESTINATIONS, NODES
from tests.e2e.modenodes import Got
from tests.e2e.modes import Running
from tests.e2e.scripted import GOOD, UNAVAILABLE

OPEN = (*DESTINATIONS, DUPLEX)
PATH = "/v1/completions"
WEBSOCKET = [
    ("connection", "upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-key", "eA=="),
    ("sec-websocket-version", "13"),
]
STEERING = {
    "x-envoy-retry-on": "5xx,connect-failure,reset,retriable-4xx",
    "x-envoy-max-retries": "5",
    "x-envoy-retriable-status-codes": "503",
    "x-envoy-upstream-rq-timeout-ms": "1",
    "x-envoy-upstream-rq-per-try-timeout-ms": "1",
    "x-envoy-upstream-rq-timeout-alt-response": "1",
    "x-envoy-hedge-on-per-try-timeout": "true",
    "x-envoy-original-path": "/forged",
    "x-envoy-original-host": "forged",
    "x-envoy-internal": "true",
    "x-envoy-upstream-alt-stat-name": "forged",
    "x-envoy-decorator-operation": "forged",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(client: aiohttp.ClientSession, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with attacked(client, tmp_path_factory.mktemp("attacks")) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def other() -> AsyncIterator[Secret]:
    """Beside the nodes. Nobody may be sent there."""
    async with secret() as found:
        yield found
    assert found.connections == 0, "somebody was sent there"


async def all_spoofed(
    system: Running, host: str, names: Iterable[str] = LISTENERS, *, method: str = "POST", path: str = PATH
) -> dict[str, set[int]]:
    """Send every spoofed head to these listeners; the statuses that came."""

    turns = asyncio.Semaphore(AT_ONCE)

    async def one(name: str, headers: Headers) -> tuple[str, Answered]:
        async with turns:
            return name, await send(system.urls[name], request(headers, method=method, path=path))

    found: dict[str, set[int]] = {name: set() for name in names}
    for name, answered in await asyncio.gather(*(one(name, headers) for name in names for headers in spoofed(host))):
        found[name].add(answered.status)
    return found


def nothing_forged(got: Iterable[Got], system: Running, *forged: str) -> None:
    """Of the names that clients may not use a node sees only what serve says."""
    ours = {str(one.address) for one in system.nodes.values()}
    for one in got:
        seen = {name: one.headers[name] for name in ROUTING if name in one.headers}
        assert all(set(value.split(",")) <= ours for value in seen.values()), seen
        assert not set(seen) & {"x-extproc-policy", *ROUTING[2:]}, seen
        assert not set(seen.values()) & set(forged), seen


async def test_while_serve_is_well_its_choice_holds(system: Running, other: Secret) -> None:
    for host in (other.host, str(system.nodes["known"].address)):
        assert await all_spoofed(system, host) == {name: {200} for name in LISTENERS}
        got = system.got()
        assert {one.node for one in got} == {"a"}, "all ask for its model"
        nothing_forged(got, system, host)
    assert {one["policy"] for one in await system.decisions(500)} == set(DESTINATIONS)


async def test_what_serve_does_nothing_about_stays_with_envoy(system: Running, other: Secret) -> None:
    """There the only route is that to the chosen node, and none is chosen."""
    for policy in ("observing", "off"):
        for path in (f"/{policy}/v1/completions", f"/{policy}/v1/models", f"/{policy}/v1/x/../completions"):
            assert await all_spoofed(system, other.host, [CLOSED], path=path) == {CLOSED: {503}}
    assert system.got() == []


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/rerank"), ("DELETE", "/v1/x")])
async def test_what_is_no_inference_goes_where_serve_says(
    system: Running, other: Secret, method: str, path: str
) -> None:
    assert await all_spoofed(system, other.host, method=method, path=path) == {name: {200} for name in LISTENERS}
    got = system.got()
    assert {one.node for one in got} == set(NODES), "in turn"
    nothing_forged(got, system)


NAMED = [(name, "HOST") for name in ROUTING]
REFUSED = {
    400: request(NAMED, body=b"{"),
    404: request(NAMED, body=b'{"model": "nobodys", "prompt": "x"}'),
    413: request([("content-length", "1000001"), *NAMED], body=b""),
    429: request(NAMED),
    503: request(NAMED),
}


@pytest.mark.parametrize("status", REFUSED)
async def test_refusals_stay_refusals(system: Running, other: Secret, status: int) -> None:
    data = REFUSED[status].replace(b"HOST", other.host.encode())
    if status == 429:
        await system.report("a", waiting_queue_size=1000)
    if status == 503:
        await system.report(*NODES, state=pb.NODE_STATE_LOADING)
    try:
        answered = await asyncio.gather(*(send(system.urls[name], data) for name in LISTENERS))
    finally:
        await system.report(*NODES)
    assert [one.status for one in answered] == [status] * len(LISTENERS)
    assert system.got() == []


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/completions"])
async def test_upgrades_go_where_serve_says(system: Running, other: Secret, path: str) -> None:
    for name in LISTENERS:
        for headers in spoofed(other.host):
            data = request([*WEBSOCKET, *headers], method="GET", path=path).replace(b"connection: close\r\n", b"")
            answered = await send(system.urls[name], data, upgrade=True)
            assert answered.status in (200, 403, 503), answered.raw
    got = system.got()
    assert {one.node for one in got} == set(NODES)
    nothing_forged(got, system)


async def test_trailers_name_nothing(system: Running, other: Secret) -> None:
    for name in LISTENERS:
        for headers in spoofed(other.host):
            answered = await send(system.urls[name], request(trailers=headers))
            assert answered.status == 200, (name, answered.raw)
    got = system.got()
    assert {one.node for one in got} == {"a"}
    nothing_forged(got, system)


async def test_headers_that_steer_envoy_are_taken_away(system: Running) -> None:
    headers = [pair for pair in STEERING.items() if "timeout" not in pair[0]]
    listeners = [name for name in LISTENERS if name != "override-host"]  # which asks again of its own
    system.nodes["a"].behaviour = UNAVAILABLE
    try:
        for name in listeners:
            assert (await send(system.urls[name], request(headers))).status == 503
    finally:
        system.nodes["a"].behaviour = GOOD
        got = system.got()
    assert [one.node for one in got] == ["a"] * len(listeners), "no retry that only the client asks for"
    assert not set(STEERING) & {key for one in got for key in one.headers}


async def test_a_client_sets_no_time(system: Running) -> None:
    released = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        await GOOD(reader, writer)

    system.nodes["a"].behaviour = late
    try:
        asking = [asyncio.ensure_future(send(system.urls[name], request(list(STEERING.items())))) for name in LISTENERS]
        await asyncio.wait(asking, timeout=0.2)  # two hundred times what they ask for
        early = sum(one.done() for one in asking)
    finally:
        released.set()
        system.nodes["a"].behaviour = GOOD
    answered = await asyncio.gather(*asking)
    got = system.got()
    assert (early, [one.status for one in answered]) == (0, [200] * len(LISTENERS))
    assert [one.node for one in got] == ["a"] * len(LISTENERS)


async def test_a_client_names_no_class(system: Running) -> None:
    names = ("x-priority", "x-extproc-priority", "priority", "x-gateway-inference-objective", "x-tenant")
    for name in LISTENERS:
        await send(system.urls[name], request([(header, "interactive") for header in names]))
    found = await system.decisions(len(LISTENERS))
    assert {one["priority"] for one in found} == {"standard"}
    assert "interactive" not in str(found)
    system.got()


async def test_while_serve_hangs_envoys_own_cluster_serves(system: Running, other: Secret) -> None:
    system.serve.child.signal(signal.SIGSTOP)
    try:
        # Full duplex knows no time limit: it goes on when serve does.
        held = asyncio.ensure_future(send(system.urls[DUPLEX], request(NAMED)))
        found = await all_spoofed(system, other.host, (*DESTINATIONS, CLOSED))
    finally:
        system.serve.child.signal(signal.SIGCONT)
    assert {name: found[name] for name in DESTINATIONS} == {name: {200} for name in DESTINATIONS}
    assert found[CLOSED] <= {500, 504}
    assert (await held).status in (200, 500)
    nothing_forged(system.got(), system)
    await system.choosing()


async def test_while_serve_is_gone_too(system: Running, other: Secret) -> None:
    await system.fleet.kill(system.serve.child)
    try:
        found = await all_spoofed(system, other.host)
        assert found == {name: {200} for name in DESTINATIONS} | {CLOSED: {500}, DUPLEX: {500}}
        nothing_forged(system.got(), system)
        await aimed(system, "override-host", at_most=0.5)
        await _prove_that_the_header_would_be_heard(system)
    finally:
        await system.start_serve_again()


async def test_while_serve_knows_no_node_too(system: Running, other: Secret) -> None:
    for name in NODES:
        await system.reporter.leave(name)
    try:
        assert await all_spoofed(system, other.host) == {name: {200} for name in OPEN} | {CLOSED: {503}}
        nothing_forged(system.got(), system)
        await aimed(system, "override-host", at_most=0.5)
    finally:
        await system.report(*NODES)


async def aimed(system: Running, name: str, *, at_most: float) -> None:
    """What share of requests comes to the node that clients name, where another could serve each of them."""
    await all_spoofed(system, str(system.nodes["c"].address), [name])
    nodes = Counter(one.node for one in system.got())
    assert nodes["c"] <= at_most * nodes.total(), nodes


async def _prove_that_the_header_would_be_heard(system: Running) -> None:
    """Else these tests would pass whatever Envoy does. Of the other destinations Envoy reads metadata alone."""
    async with secret() as free:
        assert (await send(system.urls[NAKED], request([(ROUTING[0], free.host)]))).status == 200
        assert free.connections == 1
