"""Several emulated engines in one process, which saves the machine most of what eight processes cost.

    python -m bench.routers.engines SPEED NAME …

Logs one JSON line once all listen: `hosts` by name, and `truth`, the address of a page that tells how many sequences
each of them holds at this very moment, by name; it costs next to nothing.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import uvloop
from aiohttp import web

from bench.engines.workloads import MODEL
from extproc.sim.emulator import emulated
from extproc.sim.emulatorsettings import EmulatorSettings

KV_BLOCKS: Final = 25_000
CONTEXT_TOKENS: Final = 131_072
SEQUENCES_MAX: Final = 256
"""As the simulator's engines have it, of whose capacity loads are shares."""


def settings(name: str, speed: float) -> EmulatorSettings:
    """One engine as the simulator has it by default, in real time."""
    return EmulatorSettings(
        name=name,
        model=MODEL,
        speed=speed,
        kv_blocks=KV_BLOCKS,
        context_length_tokens=CONTEXT_TOKENS,
        sequences_max=SEQUENCES_MAX,
    )


async def run(speed: float, names: Sequence[str]) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with AsyncExitStack() as stack:
        engines = {name: await stack.enter_async_context(emulated(settings(name, speed))) for name in names}

        async def truth(_: web.Request) -> web.Response:
            return web.json_response({name: one.engine.requests_open for name, one in engines.items()})

        app = web.Application()
        app.router.add_get("/", truth)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        hosts = {name: one.host for name, one in engines.items()}
        print(json.dumps({"event": "engines listening", "hosts": hosts, "truth": f"{host}:{port}"}), flush=True)
        await stopped.wait()


if __name__ == "__main__":
    uvloop.run(run(float(sys.argv[1]), sys.argv[2:]))
