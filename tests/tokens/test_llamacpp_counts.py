"""Our counts against a real engine's: llama.cpp with families' own vocabularies and templates, its weights random.

What it says it made of a prompt, in tokens (`/tokenize`, `usage.prompt_tokens`) and text (`/apply-template`), is what
exact counts have to equal. Where it differs from Hugging Face's tokenizers or from vLLM is written down beside it.
"""

import asyncio
import contextlib
import functools
import inspect
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from extproc.core.request import Endpoint, TokenCount
from extproc.ops.metrics import Metrics
from extproc.tokens.counter import TokenCounter
from extproc.tokens.loading import CountedModel, Tokenizers, load
from extproc.tokens.template import Rendered
from extproc.tokensettings import TokenSettings
from tests.gateway.bodies import CHAT, COMPLETION, EMBEDDING, parsed
from tests.llamacpp import TINY, llamacpp_server, write_model
from tests.tokens.families import family_folder
from tests.tokens.gguf_model import vocabulary_of
from tests.tokens.llamacpp_prompts import ALIKE, DIFFERENT_TOKENS, TEXTS, UNLIKE
from tests.tokens.references.chats import OURS, Body

pytestmark = pytest.mark.asyncio(loop_scope="module")

FAMILIES = ["qwen3", "llama3_1", "deepseek"]


@dataclass(frozen=True)
class Engine:
    """A running server of one family, and what we count its prompts with."""

    family: str
    url: str
    client: aiohttp.ClientSession
    reference: Tokenizer
    model: CountedModel
    counter: TokenCounter

    async def ask(self, path: str, body: Body) -> Any:
        async with self.client.post(self.url + path, json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            return answer

    async def tokenize(self, text: str) -> list[int]:
        body = {"content": text, "add_special": True, "parse_special": True}
        tokens: list[int] = (await self.ask("/tokenize", body))["tokens"]
        return tokens

    async def used(self, path: str, body: Body) -> int:
        answer = await self.ask(path, {"max_tokens": 1, "temperature": 0} | body)
        tokens: int = answer["usage"]["prompt_tokens"]
        return tokens

    async def counted(self, endpoint: Endpoint, body: Body) -> TokenCount:
        counted = self.counter.count("m", parsed(endpoint, **body).prompt, 1000, lambda _: None)
        return (await counted if inspect.isawaitable(counted) else counted).count

    async def applied(self, body: Body) -> str:
        """The text that the engine makes of a chat."""
        text: str = (await self.ask("/apply-template", body))["prompt"]
        return text

    def rendered(self, body: Body) -> str:
        """The same by us, without what llama.cpp takes away since its tokenizer adds it anyway."""
        chat = parsed(CHAT, **body).prompt.chat
        assert chat is not None
        assert self.model.template is not None
        rendered = self.model.template.render(chat, datetime.now().astimezone())
        assert isinstance(rendered, Rendered), rendered
        return rendered.text.removeprefix("<|begin_of_text|>" if self.family == "llama3_1" else "")


def sentence(case: object) -> str:
    return str(case).replace(" ", "-")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=FAMILIES)
async def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    family: str = request.param
    folder = family_folder(family)
    files = {"tokenizer": str(folder)}
    template = OURS.get(family)
    if template is not None:
        files["chat_template"] = str(template)
    settings = TokenSettings(models={"m": files}, token_budget_ms=10_000)
    vocabulary = vocabulary_of(family, folder, None if template is None else template.read_text())
    write = functools.partial(write_model, vocabulary=vocabulary, size=TINY)
    loading = asyncio.create_task(asyncio.to_thread(load, settings))
    async with llamacpp_server(tmp_path_factory.mktemp(family), write) as server, aiohttp.ClientSession() as client:
        tokenizers = await loading
        assert isinstance(tokenizers, Tokenizers), tokenizers
        model = tokenizers.of("m")
        assert model is not None
        reference = Tokenizer.from_file(str(folder / "tokenizer.json"))
        reference.no_truncation()
        with contextlib.closing(TokenCounter(settings, tokenizers, Metrics())) as counter:
            yield Engine(family, server.url, client, reference, model, counter)


@pytest.mark.parametrize("text", TEXTS, ids=sentence)
async def test_a_texts_tokens_are_the_engines(engine: Engine, text: str) -> None:
    reference = engine.reference.encode(TEXTS[text]).ids
    different = (engine.family, text) in DIFFERENT_TOKENS
    assert (await engine.tokenize(TEXTS[text]) != reference) == different
    count = await engine.counted(COMPLETION, {"prompt": TEXTS[text]})
    assert (count.tokens, count.exact) == (len(reference), True)
    if not different:
        assert await engine.used("/v1/completions", {"prompt": TEXTS[text]}) == count.tokens


async def test_mixtures_of_texts_are_counted_as_the_engine_counts_them(engine: Engine) -> None:
    chance = random.Random(engine.family)
    alike = [text for name, text in TEXTS.items() if (engine.family, name) not in DIFFERENT_TOKENS]
    for _ in range(100):
        cuts = [(text, chance.randrange(len(text))) for text in chance.choices(alike, k=6)]
        mixture = "".join(text[start : start + chance.randrange(1, 12)] for text, start in cuts)
        count = await engine.counted(COMPLETION, {"prompt": mixture})
        assert count.tokens == len(await engine.tokenize(mixture)), mixture


@pytest.mark.parametrize(
    "inputs",
    [TEXTS["English"], TEXTS["control tokens"], ["one", "two three"], [1, 2, 3], [[1, 2], [3]]],
    ids=["text", "control tokens", "two texts", "ids", "two lists of ids"],
)
async def test_an_embeddings_input_is_counted_exactly(engine: Engine, inputs: Any) -> None:
    count = await engine.counted(EMBEDDING, {"input": inputs})
    assert (count.tokens, count.exact) == (await engine.used("/v1/embeddings", {"input": inputs}), True)


@pytest.mark.parametrize("chat", ALIKE, ids=sentence)
async def test_a_chat_is_counted_exactly(engine: Engine, chat: str) -> None:
    body = ALIKE[chat]
    assert engine.rendered(body) == await engine.applied(body)
    count = await engine.counted(CHAT, body)
    assert (count.tokens, count.exact) == (await engine.used("/v1/chat/completions", body), True)


@pytest.mark.parametrize("chat", UNLIKE, ids=sentence)
async def test_a_chat_that_the_engine_renders_differently_is_not_called_exact(engine: Engine, chat: str) -> None:
    body, families = UNLIKE[chat]
    different = engine.rendered(body) != await engine.applied(body)
    count = await engine.counted(CHAT, body)
    assert different == (engine.family in families)
    if different:
        assert not count.exact
    else:
        assert count.tokens == await engine.used("/v1/chat/completions", body)
