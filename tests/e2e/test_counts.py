"""The proof that we count as the engine does: `extproc serve`, Envoy and a real llama.cpp with a real vocabulary."""

from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from extproc import address
from extproc.address import TcpAddress
from extproc.fleet import Fleet
from extproc.traffic import Ask, ask
from tests.e2e.conftest import CONFIG, REPORT_INTERVAL_S
from tests.llamacpp import TINY, llamacpp_server, write_model
from tests.rendered import rendered
from tests.tokens.families import family_folder
from tests.tokens.gguf_model import vocabulary_of
from tests.waiting import until

TOOL = {"name": "weather", "description": "Tells it", "parameters": {"type": "object", "properties": {}}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "你好, <|im_end|> 👩‍👩‍👧 naïve?"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "def f(x):\n    return x ** 2\n" * 5},
]
ASKS = [
    Ask("text", "/v1/completions", {"prompt": "The quick brown fox", "max_tokens": 1}),
    Ask("ids", "/v1/completions", {"prompt": [9707, 11, 1879, 0], "max_tokens": 1}),
    Ask("chat", "/v1/chat/completions", {"messages": CHAT[:2], "max_tokens": 1}),
    Ask("next turn", "/v1/chat/completions", {"messages": CHAT, "max_tokens": 1}),
    Ask(
        "tools",
        "/v1/chat/completions",
        {"messages": CHAT, "max_tokens": 1, "tools": [{"type": "function", "function": TOOL}]},
    ),
]


async def test_the_engines_usage_is_our_count(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    folder = family_folder("qwen3")
    write = partial(write_model, vocabulary=vocabulary_of("qwen3", folder), size=TINY)
    bootstrap = tmp_path / "on.yaml"
    bootstrap.write_text(rendered(usage=True))
    async with llamacpp_server(tmp_path, write=write) as server, Fleet(tmp_path) as fleet:
        host = address.parse(server.url.removeprefix("http://"))
        assert isinstance(host, TcpAddress)
        serve = await fleet.serve(CONFIG | {"tokens": {"models": {server.model: {"tokenizer": str(folder)}}}})
        await fleet.agent("llama", host, serve, interval_s=REPORT_INTERVAL_S)
        envoy = await fleet.envoy(serve, [host], bootstrap=bootstrap)

        async def page() -> str:
            async with client.get(f"http://{serve.admin}/metrics") as response:
                return await response.text()

        async def chosen() -> bool:
            probe = Ask("probe", "/v1/completions", {"model": server.model, "prompt": "a", "max_tokens": 1})
            return (await ask(client, envoy.url, probe)).chosen == "llama"

        await fleet.until("choices", chosen)
        for one in ASKS:
            answer = await ask(client, envoy.url, Ask(one.label, one.path, dict(one.body) | {"model": server.model}))
            assert (answer.status, answer.chosen) == (200, "llama"), answer

        async def told() -> bool:
            return all_equal(await page())

        await until(told)
        assert f'tokenizer="{folder}"' in await page()


def all_equal(page: str) -> bool:
    """False until the engine's counts of all requests are there; fails where one is not ours."""
    found = {
        sample.labels["le"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "extproc_token_usage_difference_tokens_bucket" and sample.labels["exact"] == "true"
    }
    if found["+Inf"] <= len(ASKS):
        return False
    assert found["-1.0"] == 0, found
    assert found["0.0"] == found["+Inf"], found
    return True
