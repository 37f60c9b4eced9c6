"""A rendered bootstrap beside a serve whose configuration says nothing of how Envoy is told of nodes."""

from pathlib import Path

import aiohttp
import pytest

from extproc.fleet import Fleet
from extproc.render.description import Destination
from extproc.traffic import Ask, ask, completion
from tests.e2e.edited import engine
from tests.e2e.reporter import Reporter
from tests.e2e.scripted import CONFIG
from tests.rendered import rendered

BODY = completion("demo", "Once upon a time", output_tokens=5, stream=False)
INLINE = {"strategy": "round-robin"}
ROUTES = [{"prefix": "/inline/v1/", "rewrite": "/v1/", "policy": INLINE}, {"prefix": "/v1/"}]


@pytest.mark.parametrize("destination", ["original-dst", "original-dst-metadata", "override-host"])
async def test_requests_go_to_the_chosen_node_by_policies_that_name_no_destination(
    destination: Destination, tmp_path: Path
) -> None:
    async with (
        Fleet(tmp_path) as fleet,
        aiohttp.ClientSession() as client,
        engine("known") as (known, robbed),
        engine("chosen") as (chosen, _),
    ):
        serve = await fleet.serve(CONFIG)
        nodes = [known, chosen] if destination == "override-host" else [known]
        path = tmp_path / "rendered.yaml"
        path.write_text(
            rendered(destination=destination, nodes=[str(one) for one in nodes], routes=ROUTES, health_path=None)
        )
        envoy = await fleet.envoy(serve, [], bootstrap=path)
        async with Reporter(serve.agents) as reporter:
            await reporter.report("chosen", chosen)

            async def decided() -> bool:
                answer = await ask(client, envoy.url, Ask("completion", "/v1/completions", BODY))
                return answer.chosen == "chosen"

            await fleet.until("a choice", decided)
            robbed.clear()
            for prefix, policy in (("", "default"), ("/inline", "inline")):
                for _ in range(4):
                    answer = await ask(client, envoy.url, Ask("completion", f"{prefix}/v1/completions", BODY))
                    assert (answer.status, answer.engine, answer.policy) == (200, "chosen", policy), answer
    assert robbed == []
