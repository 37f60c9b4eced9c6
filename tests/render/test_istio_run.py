"""A real Envoy and a real serve, Envoy with what Istio makes of the resources."""

from pathlib import Path

import aiohttp
import yaml

from tests.e2e.scripted import GOOD, running
from tests.render import istiomesh
from tests.render.listedhosts import KNOWN, ROUTES, assert_listed_nodes_serve
from tests.render.test_istio import rendered


async def test_requests_go_where_extproc_says_and_a_clients_own_header_nowhere(tmp_path: Path) -> None:
    made = istiomesh.bootstrap(rendered(usage=True), engines=KNOWN)
    async with (
        aiohttp.ClientSession() as client,
        running(client, tmp_path, yaml.safe_dump(made)) as system,
        system.nodes(GOOD) as (model, (node,)),
        system.nodes(GOOD) as (_, (other,)),
    ):
        asked = 4
        for _ in range(asked):
            answer = await system.ask_and_tell(model)
            assert answer.status == 200, answer
        named = {"x-envoy-original-dst-host": str(other.address)}
        assert (await system.ask(model, headers=named)).status == 200
        assert (node.requests, other.requests) == (asked + 1, 0)
        # The script for usage is switched off, and on for these routes.
        assert await system.envoy_stat("http.llm.lua.executions") >= asked
        async with client.get(f"{system.envoy.url}/metrics") as response:
            assert response.status == 404


async def test_listed_nodes_serve_under_the_policy_of_the_route(tmp_path: Path) -> None:
    text = rendered(destination="override-host", routes=ROUTES)
    await assert_listed_nodes_serve(tmp_path, lambda _: istiomesh.bootstrap(text, engines=KNOWN))
