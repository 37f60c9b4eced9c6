"""The emulated engine as a process: its settings, its beginning and its end."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.sim.emulator import run
from extproc.sim.engine import Engine
from tests.sim.emulating import settings


async def test_run_does_not_outlive_its_engine(http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[object]:
        raise ZeroDivisionError

    monkeypatch.setattr(Engine, "advance", broken)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(run(settings()), 10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_run_says_where_it_listens_and_ends_at_a_signal(http: aiohttp.ClientSession, number: int) -> None:
    code = (
        "import asyncio, structlog\n"
        "from extproc.sim.emulator import run\n"
        "from extproc.sim.emulatorsettings import EmulatorSettings\n"
        "structlog.configure(processors=[structlog.processors.JSONRenderer()])\n"
        "asyncio.run(run(EmulatorSettings(name='gpu-9', model='tiny')))"
    )
    root = str(Path(__file__).parents[2])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd=root, env=os.environ | {"PYTHONPATH": root}
    )
    assert process.stdout is not None
    try:
        line = json.loads(await asyncio.wait_for(process.stdout.readline(), 20))
        assert (line["event"], line["name"], line["model"]) == ("emulated engine listening", "gpu-9", "tiny")
        async with http.get(f"http://{line['host']}/health") as response:
            assert response.headers["x-engine"] == "gpu-9"
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("wrong", "said_of"),
    [
        ({"listen": "8000"}, "listen"),
        ({"listen": "127.0.0.1:"}, "listen"),
        ({"listen": "127.0.0.1:65536"}, "listen"),
        ({"listen": "127.0.0.1:-1"}, "listen"),
        ({"name": ""}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "a\r\nb"}, "name"),
        ({"model": ""}, "model"),
        ({"speed": 0.0}, "speed"),
        ({"kv_blocks": 2048}, "2049 kv_blocks, got 2048"),
        ({"requests_open_max": 0}, "requests_open_max"),
        ({"body_bytes_max": 0}, "body_bytes_max"),
        ({"output_tokens_max": 0}, "output_tokens_max"),
    ],
)
def test_settings_that_could_not_run_are_refused(wrong: dict[str, Any], said_of: str) -> None:
    with pytest.raises(ValueError, match=said_of):
        settings(**wrong)


def test_settings_at_their_edges_are_allowed() -> None:
    settings(kv_blocks=2049, listen="[::1]:65535", name="x" * 64)
