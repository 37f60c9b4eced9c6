"""Asking an emulated engine over real HTTP."""

import json
from pathlib import Path
from typing import Any

import aiohttp

from extproc.sim.emulator import Emulator
from extproc.sim.emulatorsettings import EmulatorSettings

SAMPLES = Path(__file__).parents[1] / "samples" / "vllm_http_samples.txt"
CHAT = "/v1/chat/completions"


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}


def settings(**fields: Any) -> EmulatorSettings:
    chosen: dict[str, Any] = {"name": "gpu-1", "model": "tiny", "speed": 50.0} | fields
    return EmulatorSettings(**chosen)


async def post(http: aiohttp.ClientSession, engine: Emulator, path: str, body: Any) -> tuple[int, Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(engine.url + path, data=raw) as response:
        assert response.headers["x-engine"] == engine.settings.name
        return response.status, await response.json()


async def streamed(http: aiohttp.ClientSession, engine: Emulator, path: str, body: dict[str, Any]) -> list[Any]:
    """The `data:` of each event; `[DONE]` as that text."""
    async with http.post(engine.url + path, json=body | {"stream": True}) as response:
        assert response.status == 200
        assert response.headers["x-engine"] == engine.settings.name
        assert response.content_type == "text/event-stream"
        text = await response.text()
    assert text.endswith("\n\n")
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def sample(name: str) -> Any:
    """An error body captured from vLLM."""
    line = SAMPLES.read_text().split(f"== {name}\n")[1].splitlines()[0]
    return json.loads(line.rsplit(" [", 1)[0])["error"]
