"""What clients get of a rendered bootstrap where extproc does not answer, and nobody else may serve."""

import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.fleet import Envoy, Fleet, Serve
from extproc.render.description import BodyMode
from extproc.traffic import Ask, ask, completion
from tests.e2e.scripted import CONFIG
from tests.rendered import rendered

BODY = completion("demo", "Once upon a time", output_tokens=5, stream=False)
MESSAGE_TIMEOUT_S = 0.3


async def envoy_without_nodes(fleet: Fleet, serve: Serve | None, **described: Any) -> Envoy:
    path = fleet.folder / "rendered.yaml"
    path.write_text(rendered(**{"fail_open": False, "nodes": [], "processor": ["127.0.0.1:1"], **described}))
    return await fleet.envoy(serve, [], bootstrap=path)


async def error(client: aiohttp.ClientSession, envoy: Envoy) -> tuple[int, dict[str, Any]]:
    answer = await ask(client, envoy.url, Ask("completion", "/v1/completions", BODY))
    found: dict[str, Any] = json.loads(answer.text)["error"]
    return answer.status, found


@pytest.mark.parametrize("body_mode", ["buffered", "full-duplex", "none"])
async def test_while_extproc_is_away_an_openai_client_can_parse_the_error(body_mode: BodyMode, tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet, aiohttp.ClientSession() as client:
        envoy = await envoy_without_nodes(fleet, None, body_mode=body_mode)
        status, told = await error(client, envoy)
    assert told.pop("message").startswith("this gateway could not choose a node; try again (ext_proc_error_gRPC_")
    assert (status, told) == (500, {"type": "server_error", "param": None, "code": "gateway_error"})


async def test_an_extproc_that_hangs_is_told_alike(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet, aiohttp.ClientSession() as client:
        serve = await fleet.serve(CONFIG)
        envoy = await envoy_without_nodes(fleet, serve, message_timeout_s=MESSAGE_TIMEOUT_S)

        async def asked() -> bool:
            _, told = await error(client, envoy)
            return bool(told["code"] == "node_unreachable")  # extproc knows no node, and Envoy has none

        await fleet.until("an answer of extproc's", asked)
        serve.child.signal(signal.SIGSTOP)
        try:
            status, told = await error(client, envoy)
        finally:
            serve.child.signal(signal.SIGCONT)
    assert (status, told["code"]) == (504, "gateway_error")


async def test_extprocs_own_500_says_what_it_says(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet, aiohttp.ClientSession() as client:
        serve = await fleet.serve(CONFIG | {"policies_strict": True})
        envoy = await envoy_without_nodes(fleet, serve, policy="unheard-of")

        async def refused() -> bool:
            status, told = await error(client, envoy)
            return (status, told["code"]) == (500, "policy_error") and "unheard-of" in told["message"]

        await fleet.until("a refusal of extproc's", refused)
