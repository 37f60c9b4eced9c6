"""What `extproc check --envoy` finds of bodies, failures and load is what the real Envoy does."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import aiohttp

from extproc.address import Address, TcpAddress
from extproc.config import Config
from extproc.core.settings import Fault
from extproc.envoycheck import bodies, failing
from extproc.envoycheck.processors import Processors, processors_of
from tests.bootstraps import (
    FILTER,
    HOST,
    LISTEN,
    MODE,
    ROUTE,
    bootstrap,
    complete,
    complete_clusters,
    configured,
    listener,
    own,
    put,
    without,
)
from tests.envoytrial import Trial, trial
from tests.waiting import until

Json = Any

LIMIT, OLD = "request_body_buffer_limit", "per_request_buffer_limit_bytes"
LONG, SHORT = 4_000_000, 1000
LONG_BODY = b"x" * 2_000_000
NONE = without(complete(), f"{HOST}{LIMIT}")
SECOND = f"{HOST}routes.1."


def limited(*limits: tuple[str, int]) -> Json:
    made = NONE
    for path, limit in limits:
        made = put(made, path, limit)
    return made


LIMITS: dict[str, Json] = {
    "none": NONE,
    "route": limited((f"{SECOND}{LIMIT}", LONG)),
    "the other route": limited((f"{ROUTE}{LIMIT}", LONG)),
    "host": limited((f"{HOST}{LIMIT}", LONG)),
    "old, route": limited((f"{SECOND}{OLD}", LONG)),
    "old, host": limited((f"{HOST}{OLD}", LONG)),
    "route before host": limited((f"{SECOND}{LIMIT}", SHORT), (f"{HOST}{LIMIT}", LONG)),
    "host before old route": limited((f"{SECOND}{OLD}", LONG), (f"{HOST}{LIMIT}", SHORT)),
    "host before old route, long": limited((f"{SECOND}{OLD}", SHORT), (f"{HOST}{LIMIT}", LONG)),
    "old route before old host": limited((f"{SECOND}{OLD}", SHORT), (f"{HOST}{OLD}", LONG)),
    "listener": listener(NONE) | {"per_connection_buffer_limit_bytes": LONG},
    "listener, and less": listener(limited((f"{SECOND}{LIMIT}", SHORT))) | {"per_connection_buffer_limit_bytes": LONG},
    "short listener": listener(limited((f"{HOST}{LIMIT}", LONG))) | {"per_connection_buffer_limit_bytes": SHORT},
}
"""What is held of a body of 2 MB."""
LASTING: dict[str, Json] = {
    f"{body} {head} {trailers} {answer}": put(
        complete(),
        MODE,
        {
            "request_body_mode": body,
            "response_header_mode": head,
            "response_trailer_mode": trailers,
            "response_body_mode": answer,
        },
    )
    for body, head, trailers, answer in itertools.product(
        ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL"), ("SKIP", "SEND"), ("SKIP", "SEND"), ("NONE", "STREAMED")
    )
}
"""How long a stream may last."""
UPGRADE = [{"upgrade_type": "websocket"}]
UPGRADING: dict[str, Json] = {
    "upgrade": put(complete(), "upgrade_configs", UPGRADE),
    "upgrade on the route": put(complete(), f"{SECOND}route.upgrade_configs", UPGRADE),
    "upgrade, mode override": put(put(complete(), "upgrade_configs", UPGRADE), f"{FILTER}allow_mode_override", True),
    "upgrade past the filter": put(
        complete(), "upgrade_configs", [UPGRADE[0] | {"filters": complete()["http_filters"][1:]}]
    ),
    "upgrade, streamed": put(put(complete(), "upgrade_configs", UPGRADE), f"{MODE}.request_body_mode", "STREAMED"),
}
CLOSED = put(complete(), f"{FILTER}failure_mode_allow", False)
FAILING: dict[str, Json] = {
    "open": complete(),
    "closed": CLOSED,
    "closed by default": put(complete(), f"{FILTER}failure_mode_allow", None),
    "opened by a host": put(CLOSED, f"{HOST}typed_per_filter_config.ours", own(failure_mode_allow=True)),
    "closed by a host": put(complete(), f"{HOST}typed_per_filter_config.ours", own(failure_mode_allow=False)),
    "full duplex": put(complete(), MODE, {"request_body_mode": "FULL_DUPLEX_STREAMED", "request_trailer_mode": "SEND"}),
    "deaf": put(complete(), f"{FILTER}disable_immediate_response", True),
}


def faults(made: Json, settings: Config) -> list[Fault]:
    document = bootstrap(complete(), clusters=complete_clusters())
    document["static_resources"]["listeners"] = [listener(made) if "http_filters" in made else made]
    processors = processors_of(document, LISTEN)
    assert isinstance(processors, Processors)
    return [*bodies.faults_in(processors, settings), *failing.faults_in(processors, settings)]


def is_told(made: Json, *words: str, settings: Config | None = None) -> bool:
    told = [str(one) for one in faults(made, settings or Config())]
    return any(all(word in one for word in words) for one in told)


def clusters(processor: Address, known: Address, _: TcpAddress) -> list[Json]:
    few = complete_clusters(processor)[0] | {"name": "few", "circuit_breakers": {"thresholds": [{"priority": "HIGH"}]}}
    return [*complete_clusters(processor, known), few]


async def is_early(made: Trial, name: str) -> bool:
    """Whether the stream of a request has ended before its answer."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(made.socket(name))) as session,
        session.post("http://envoy/slow", data=b"a body") as answer,
    ):
        await answer.content.readexactly(len("chosen"))
        ended = asyncio.create_task(until(lambda: made.processor.open == 0))
        done, _ = await asyncio.wait([ended], timeout=5 if is_told(LASTING[name], "response_trailer_mode") else 0.1)
        made.go.set()
        await answer.read()
        await ended
        made.go.clear()
        return bool(done)


async def is_answered(made: Trial, name: str) -> bool:
    """Whether a request for an upgrade reaches an engine, and not only in the end."""
    reader, writer = await asyncio.open_unix_connection(made.socket(name))
    head = "GET / HTTP/1.1\r\nhost: envoy\r\nconnection: upgrade\r\nupgrade: websocket\r\nx-does: upgrade\r\n\r\n"
    writer.write(head.encode())
    answered = asyncio.create_task(reader.readline())
    done, _ = await asyncio.wait([answered], timeout=0.5 if is_told(UPGRADING[name], "allow_mode_override") else 5)
    writer.close()
    answered.cancel()
    return bool(done)


async def test_what_is_found_is_what_the_real_envoy_does_with_bodies(tmp_path: Path) -> None:
    tried = LIMITS | LASTING | UPGRADING
    async with trial(tmp_path, tried, clusters) as made:
        short = {name: (await made.ask(name, body=LONG_BODY))[0] for name in LIMITS}
        early = {name: await is_early(made, name) for name in LASTING}
        upgraded = await asyncio.gather(*(is_answered(made, one) for one in UPGRADING))
    settings = configured(limits={"body_bytes_max": len(LONG_BODY)})
    assert short == {
        name: 413 if is_told(one, "limits.body_bytes_max", settings=settings) else 200 for name, one in LIMITS.items()
    }
    assert early == {name: is_told(one, "response_trailer_mode") for name, one in LASTING.items()}
    assert upgraded == [not is_told(one, "allow_mode_override") for one in UPGRADING.values()]


async def is_gone(made: Trial) -> bool:
    """Whether Envoy has noticed that the processor is away."""
    _, page = await made.ask("admin", "/stats?filter=^cluster.extproc.upstream_cx_active", None)
    assert "upstream_cx_active" in page
    return page.strip().endswith(": 0")


async def test_what_is_found_is_what_the_real_envoy_does_while_serve_fails(tmp_path: Path) -> None:
    running = {name: one for name, one in FAILING.items() if name != "full duplex"}
    async with trial(tmp_path, FAILING, clusters) as made:
        refused = {name: await made.ask(name, headers={"x-does": "refuse"}) for name in running}
        asked = {name: asyncio.create_task(made.ask(name, "/slow")) for name in running}
        await until(lambda: made.processor.open == len(running))
        await until(lambda: made.slow == len(running))
        await made.stop_processor()
        await until(lambda: is_gone(made))
        made.go.set()
        came = {name: (await one)[0] for name, one in asked.items()}
        away = {name: (await made.ask(name))[0] for name in FAILING}
        _, page = await made.ask("admin", "/clusters", None)
        await made.start_processor()
    assert {name: status != 429 for name, (status, _) in refused.items()} == {
        name: is_told(one, "disable_immediate_response") for name, one in running.items()
    }
    is_open = {name: not is_told(one, "while serve is away") for name, one in FAILING.items()}
    assert away == {name: 200 if is_open[name] else 500 for name in FAILING}
    assert came == {name: 200 if is_open[name] else "cut" for name in running}
    assert "few::default_priority::max_requests::1024" in page
    assert "extproc::default_priority::max_requests::99999" in page
