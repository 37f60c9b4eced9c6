"""Many engines in one process, as far as an agent sees them: vLLM's pages over real aiohttp servers.

    python -m bench.enginepages ENGINES idle|busy

Prints one JSON line with the ports, then answers until it is killed. A busy engine's counters move between two looks.
At `/asked` of any port: how many requests each path got.
"""

import asyncio
import json
import re
import sys
from collections import Counter
from pathlib import Path

import uvloop
from aiohttp import web

SAMPLES = Path(__file__).parent.parent / "tests" / "samples"
PAGES = {"idle": SAMPLES / "vllm_0.32.0_cpu_after.prom", "busy": SAMPLES / "vllm_0.32.0_cpu_load_3.prom"}
MODELS = '{"object": "list", "data": [{"id": "m", "max_model_len": 4096}]}'
_STEPS = re.compile(
    r"^(vllm:(?:generation_tokens_total|iteration_tokens_total_count|inter_token_latency_seconds_(?:sum|count))\{.*\})"
    r" .*$",
    re.MULTILINE,
)


class Pages:
    """One engine's pages."""

    def __init__(self, page: str, moving: bool, asked: Counter[str]) -> None:
        self._page = page
        self._moving = moving
        self._asked = asked
        self._steps = 1e6

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.get("/asked", self._asked_so_far),
            ]
        )
        return app

    async def _health(self, request: web.Request) -> web.Response:
        self._asked[request.path] += 1
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        self._asked[request.path] += 1
        self._steps += 1
        page = _STEPS.sub(rf"\1 {self._steps}", self._page) if self._moving else self._page
        return web.Response(text=page)

    async def _models(self, request: web.Request) -> web.Response:
        self._asked[request.path] += 1
        return web.Response(text=MODELS)

    async def _asked_so_far(self, _: web.Request) -> web.Response:
        return web.json_response(self._asked)


async def serve(engines: int, load: str) -> None:
    """Answer until killed."""
    asked: Counter[str] = Counter()
    ports = []
    for _ in range(engines):
        runner = web.AppRunner(Pages(PAGES[load].read_text(), load == "busy", asked).app(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Be what the command line says."""
    match sys.argv[1:]:
        case [engines, ("idle" | "busy") as load]:
            uvloop.run(serve(int(engines), load))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
