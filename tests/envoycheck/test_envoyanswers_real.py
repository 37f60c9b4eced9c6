"""What `extproc check --envoy` finds of streams that do not begin, and of answers, is what the real Envoy does."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.address import Address, TcpAddress
from extproc.children import ChildFailedError
from extproc.config import Config
from extproc.envoycheck import answers, needs, starting
from extproc.envoycheck.processors import Processors, processors_of
from tests.bootstraps import (
    FILTER,
    HOST,
    LISTEN,
    METADATA,
    MODE,
    OPTIONS,
    TYPE,
    asking,
    bootstrap,
    complete,
    complete_clusters,
    own,
    put,
    without,
)
from tests.envoytrial import Trial, trial
from tests.waiting import until

Json = Any

CLOSED = put(complete(), f"{FILTER}failure_mode_allow", False)
CLUSTER, ENDS = f"{FILTER}grpc_service.envoy_grpc.cluster_name", f"{MODE}.response_trailer_mode"
PROTOCOL = {"@type": f"{TYPE}extensions.upstreams.http.v3.HttpProtocolOptions"}
VALUES = [
    *("default", "100%%", "50%", "a % b", "%REQ(x)%", "%REQ(x):5%", "%START_TIME(%s.%3f)%", "%REQ(x", "%%%"),
    *("%dynamic%", "%%%%REQ(x)%", "%RESPONSE_CODE%", "%DYNAMIC_METADATA(a:b)%", '{"name": "50%"}'),
]
PROTOCOLS = ("nothing", "older", "http1", "clients")
BEGUN: dict[str, Json] = (
    {f"filter {value}": put(CLOSED, METADATA, asking(value)) for value in VALUES}
    | {
        f"route {value}": put(
            CLOSED, f"{HOST}routes.1.typed_per_filter_config.ours", own(grpc_initial_metadata=asking(value))
        )
        for value in ("100%%", "50%")
    }
    | {name: put(CLOSED, CLUSTER, name) for name in PROTOCOLS}
)
TOLD: dict[str, Json] = {
    "held": put(complete(), f"{MODE}.response_body_mode", "BUFFERED"),
    "held in part": put(complete(), f"{MODE}.response_body_mode", "BUFFERED_PARTIAL"),
    "complete": complete(),
    "no trailers": put(complete(), ENDS, "SKIP"),
    "heads alone": put(put(complete(), ENDS, "SKIP"), f"{MODE}.response_header_mode", "SEND"),
}


def clusters(processor: Address, known: Address, chosen: TcpAddress) -> list[Json]:
    made = complete_clusters(processor, known)
    bare = without(made[0], "typed_extension_protocol_options")
    options: dict[str, Json] = {
        "http1": {"explicit_http_config": {"http_protocol_options": {}}},
        "clients": {"use_downstream_protocol_config": {"http2_protocol_options": {}}},
    }
    return [
        *made,
        bare | {"name": "nothing"},
        bare | {"name": "older", "http2_protocol_options": {}},
        *(put(made[0], OPTIONS, PROTOCOL | one) | {"name": name} for name, one in options.items()),
    ]


def found(manager: Json) -> list[str]:
    made = processors_of(bootstrap(manager, clusters=clusters(LISTEN, LISTEN, LISTEN)), LISTEN)
    assert isinstance(made, Processors)
    settings = Config()
    faults = [*starting.faults_in(made), *needs.faults_in(made, settings), *answers.faults_in(made, settings)]
    return [str(one) for one in faults]


async def has_begun(made: Trial, name: str, body: bytes | None) -> bool:
    """Whether a client has something of an answer whose engine has not ended it."""
    method = "GET" if body is None else "POST"
    connector = aiohttp.UnixConnector(made.socket(name))
    try:
        async with (
            asyncio.timeout(1),
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, "http://envoy/slow", data=body) as answer,
        ):
            return bool(await answer.content.readany())
    except TimeoutError:
        return False


async def test_what_is_found_is_what_the_real_envoy_does(tmp_path: Path) -> None:
    begun: dict[str, bool] = {}
    held: dict[str, bool] = {}
    async with trial(tmp_path, BEGUN | TOLD, clusters) as made:
        for name in BEGUN:
            begun[name] = (await made.ask(name))[0] == 200
        for name in TOLD:
            held[name] = not await has_begun(made, name, b"a body")
    for name, manager in BEGUN.items():
        lost = [one for one in found(manager) if "no stream to serve begins" in one]
        assert begun[name] == (lost == []), name
    assert [name for name, is_held in held.items() if is_held] == ["held", "held in part"]
    for name, is_held in held.items():
        assert is_held == any("answers are held" in one for one in found(TOLD[name])), name


def reached(made: Trial, count: int) -> bool:
    """Whether the engine has been asked for so many slow answers."""
    return made.slow == count


def is_open(made: Trial, count: int) -> bool:
    """Whether so many streams are."""
    return made.processor.open == count


@pytest.mark.parametrize("name", ["complete", "no trailers", "heads alone"])
async def test_without_trailers_streams_of_requests_without_a_body_end_early(tmp_path: Path, name: str) -> None:
    is_early = any("end before answers do" in one for one in found(TOLD[name]))
    async with trial(tmp_path, TOLD, clusters) as made:
        for count, body, left in ((1, b"a body", 1), (2, None, 0 if is_early else 1)):
            made.go.clear()
            task = asyncio.create_task(made.ask(name, "/slow", body))
            await until(partial(reached, made, count))
            # What Envoy had to say of the first request it has said by the end of others.
            assert [await made.ask(name) for _ in range(3)] == [(200, "chosen.")] * 3
            await until(partial(is_open, made, left))
            assert not task.done()
            made.go.set()
            assert await task == (200, "chosen.")
            await until(partial(is_open, made, 0))


@pytest.mark.parametrize("sender", ["request", "response"])
@pytest.mark.parametrize("trailers", ["SEND", "SKIP"])
async def test_envoy_does_not_start_without_the_trailers_of_full_duplex(
    tmp_path: Path, sender: str, trailers: str
) -> None:
    manager = put(complete(), f"{MODE}.{sender}_body_mode", "FULL_DUPLEX_STREAMED")
    manager = put(manager, f"{MODE}.{sender}_trailer_mode", trailers)
    told = any("Envoy does not start" in one for one in found(manager))
    try:
        async with trial(tmp_path, {"one": manager}, clusters):
            starts = True
    except ChildFailedError:
        starts = False
    assert starts == (trailers == "SEND") == (not told)
