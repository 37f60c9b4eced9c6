"""A real Envoy and a real serve that lists hosts: whose nodes serve, under which policy, and what clients can do."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from extproc.address import TcpAddress
from extproc.fleet import Fleet
from extproc.traffic import Answer, Ask, ask, completion
from tests.waiting import until

KNOWN = "known-nodes"
"""What the cluster of the nodes has to be called."""
MODEL = "demo"
CONFIG: dict[str, Any] = {
    "nodes": {"fresh_s": 3000, "stale_s": 3000, "member_s": 3000, "report_interval_s": 0.2, "settle_s": 0},
    "policies": {
        "default": {"destination": "override-host"},
        "batch": {"destination": "override-host", "strategy": "round-robin"},
    },
}
ROUTES = [
    {"prefix": "/batch/v1/", "rewrite": "/v1/", "name": "batch", "policy": "batch"},
    {"prefix": "/v1/", "name": "chat"},
]


async def assert_listed_nodes_serve(folder: Path, made: Callable[[Sequence[TcpAddress]], Any]) -> None:
    """With the bootstrap that is made for two nodes, and has the routes of `ROUTES`."""
    async with aiohttp.ClientSession() as client, Fleet(folder) as fleet:
        engines = [await fleet.engine(name, MODEL) for name in ("gpu-1", "gpu-2")]
        serve = await fleet.serve(CONFIG)
        for engine in engines:
            await fleet.agent(engine.name, engine.address, serve, interval_s=0.2)
        known = [engine.address for engine in engines]
        path = folder / "envoy.yaml"
        path.write_text(yaml.safe_dump(made(known)))
        envoy = await fleet.envoy(serve, known, bootstrap=path)

        async def asked(path: str, headers: dict[str, str] | None = None) -> Answer:
            body = completion(MODEL, "Once upon a time", output_tokens=1, stream=False)
            return await ask(client, envoy.url, Ask("completion", path, body), headers)

        async def latest() -> dict[str, Any]:
            found = (await fleet.json(f"http://{serve.admin}/decisions?limit=1"))["decisions"]
            return found[0] if found else {"outcome": {"kind": "none"}}

        async def chosen() -> bool:
            return (await asked("/v1/completions")).status == 200 and (await latest())["outcome"]["kind"] == "chosen"

        await until(lambda: fleet.nodes_ready(serve, {"gpu-1", "gpu-2"}), within_s=30)
        await until(chosen, within_s=30)
        served: Counter[str | None] = Counter()
        disobeyed = 0
        for number in range(8):
            # Each other request names a node itself, in turns.
            other = engines[number // 2 % 2] if number % 2 else None
            named = None if other is None else {"x-gateway-destination-endpoint": str(other.address)}
            answer = await asked("/batch/v1/completions", named)
            decision = await latest()
            assert (answer.status, decision["policy"]) == (200, "batch"), answer
            assert answer.engine == decision["outcome"]["node_id"]
            served[answer.engine] += 1
            disobeyed += other is not None and other.name != answer.engine
        assert served == {"gpu-1": 4, "gpu-2": 4}
        assert disobeyed == 2
        async with client.get(f"{envoy.url}/metrics") as response:
            assert response.status == 404
        # Nobody chooses any more: any node serves.
        await fleet.stop(serve.child)
        assert (await asked("/v1/completions")).status == 200
