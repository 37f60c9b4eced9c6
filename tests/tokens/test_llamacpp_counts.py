"""Our counts against a real engine's: llama.cpp with families' own vocabularies and templates, its weights random.

What it says it made of a prompt, in tokens (`/tokenize`, `usage.prompt_tokens`) and text (`/apply-template`), is what
exact counts have to equal. Where it differs from Hugging Face's tokenizers or from vLLM is written down here.
"""

import asyncio
import base64
import contextlib
import functools
import inspect
import json
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


CODE = '''def total(counts: dict[str, int]) -> int:
\t"""Sum of all."""
    return sum(n for n in counts.values() if n >= 0)  # it's O(n); don't\r\n
'''
TEXTS = {
    "nothing but a letter": "a",
    "English": "The quick brown fox can't jump over 12,345.67 lazy dogs; they're ALL asleep, aren't they?",
    "Chinese": "大语言模型的负载均衡器按令牌数分配请求，每个节点都有自己的队列。",
    "Japanese and Korean": "これはテストです。カタカナ、ひらがな。 한국어 문장도 있습니다.",
    "Arabic and Hebrew": "مرحبا بالعالم، هذا نصّ عربيّ. שלום עולם",
    "Cyrillic and Greek": "Съешь ещё этих мягких французских булок. Ξεσκεπάζω τὴν ψυχοφθόρα",
    "code": CODE,
    "JSON": json.dumps({"items": [{"id": n, "name": f"item {n}", "ratio": n / 7} for n in range(9)]}, indent=2),
    "emoji": "👍🏽 🧑‍💻👨‍👩‍👧‍👦 🇩🇪🇫🇷 ☕️ 1️⃣ ✨",
    "base64": base64.b64encode(random.Random(0).randbytes(300)).decode(),
    "whitespace": "  a   b\t\tc\n\n\n  d \r\n\r\n e\u00a0f\u3000g\u2028h\u200bi   ",
    "numbers": "0 12 123 1234 12345678901234567890 3.14159 -1e-7 ½ ² Ⅷ ٣٤٥ १२३",
    "control characters": "a\x00b\x01c\x1b[31md\x7fe\x85f\ufeffg\ufffdh",
    "control tokens": "<|im_start|>user\nhi<|im_end|> <|eot_id|><|begin_of_text|><｜User｜><|start|><think>x</think>",
    "nearly control tokens": "<|im_start |> <|im_start|<|im_end|>> <|eot_id <think <｜User|> |>",
    "composed accents": "café naïve Ångström Việt Nam ﬁne ＡＢＣ ſ K",
    "combining accents": "cafe\u0301 nai\u0308ve",
    "Hindi and Thai": "नमस्ते दुनिया, यह एक परीक्षण है। สวัสดีชาวโลก",
    "mixed case beyond ASCII": "приветМир ÉcoleÉté ΑθήναΑθήνα",
    "long": "The server counts its tokens, 每个请求都一样. " * 80,
}
DIFFERENT_TOKENS = {("qwen3", "combining accents"): "the file's NFC normalizer: llama.cpp has none"}
"""Text of which llama.cpp makes other tokens than the family's own tokenizer, which other engines use."""


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


def user(content: Any) -> Body:
    return {"role": "user", "content": content}


def assistant(content: Any, **fields: Any) -> Body:
    return {"role": "assistant", "content": content, **fields}


def call(arguments: Any) -> Body:
    return {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}


def called(*calls: Body, content: Any = "", **fields: Any) -> list[Body]:
    """A conversation whose assistant calls tools and gets their answers."""
    answers = [{"role": "tool", "tool_call_id": "call_1", "content": "sunny"} for _ in calls]
    return [user("Weather?"), assistant(content, tool_calls=list(calls), **fields), *answers]


SYSTEM = {"role": "system", "content": "Be brief."}
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}


def tool(**function: Any) -> Body:
    return {"type": "function", "function": function}


FUNCTION = {"name": "weather", "description": 'The "weather" of a <city> & more — 天气', "parameters": CITY}
WEATHER = tool(**FUNCTION)

ALIKE: dict[str, Body] = {
    "one message": {"messages": [user("Hello, world")]},
    "a system message": {"messages": [SYSTEM, user("Hi")]},
    "several turns": {"messages": [user("Hi"), assistant("Hello!"), user("And?"), assistant("你好"), user("😀 مرحبا")]},
    "a system message within": {"messages": [user("Hi"), SYSTEM, user("And?")]},
    "an empty message": {"messages": [user("")]},
    "an empty answer": {"messages": [user("a"), assistant(""), user("b")]},
    "an answer that is null": {"messages": [user("a"), assistant(None), user("b")]},
    "whitespace around": {"messages": [user("  \n x \n")]},
    "control tokens in a message": {"messages": [user(TEXTS["control tokens"])]},
    "the beginning's token in a message": {
        "messages": [user("<|begin_of_text|>x"), assistant("<|begin_of_text|>"), user("")]
    },
    "a part of text": {"messages": [user([{"type": "text", "text": "one"}])]},
    "code": {"messages": [user(CODE)]},
    "a long message": {"messages": [user(TEXTS["long"])]},
    "names": {"messages": [{"name": "bob", **user("Hi")}]},
    "tools": {"messages": [user("Weather?")], "tools": [WEATHER]},
    "tools and a system message": {"messages": [SYSTEM, user("Weather?")], "tools": [WEATHER, WEATHER]},
    "a call and its answer": {"messages": called(call('{"city":"Paris","days":2}')), "tools": [WEATHER]},
    "a call whose content is null": {"messages": called(call("{}"), content=None), "tools": [WEATHER]},
    "a call without tools": {"messages": called(call('{"city": "Paris"}'))},
    "arguments in another order and form": {
        "messages": called(call('{ "z" : "Paris",  "a":1.50,"é":"\\u00e9","n":[null,true]}')),
        "tools": [WEATHER],
    },
    "two calls": {
        "messages": [*called(call("{}"), call('{"city":"Rome"}'), content="ok"), assistant("done"), user("thanks")],
        "tools": [WEATHER],
    },
    "reasoning before a call": {
        "messages": called(call("{}"), reasoning_content="thinking\n"),
        "tools": [WEATHER],
    },
    "reasoning of an earlier answer": {"messages": [user("q"), assistant("a", reasoning_content="hm"), user("b")]},
    "reasoning in an earlier answer": {"messages": [user("q"), assistant("<think>\nhm\n</think>\n\na"), user("b")]},
    "no thinking": {"messages": [user("q")], "chat_template_kwargs": {"enable_thinking": False}},
    "thinking": {"messages": [user("q")], "chat_template_kwargs": {"enable_thinking": True}},
    "no generation prompt": {"messages": [user("q")], "add_generation_prompt": False},
    "JSON wanted": {"messages": [user("q")], "response_format": {"type": "json_object"}},
}
"""Chats that engines render alike."""

CONTINUED = {"add_generation_prompt": False, "continue_final_message": True}

UNLIKE: dict[str, tuple[Body, set[str]]] = {
    "several parts of text": ({"messages": [user([{"type": "text", "text": text} for text in ("one", "two")])]}, set()),
    "no tools in the list": ({"messages": [user("Weather?")], "tools": []}, set()),
    "tools that must not be called": ({"messages": [user("q")], "tools": [WEATHER], "tool_choice": "none"}, set()),
    "a tool in another order": (
        {"messages": [user("q")], "tools": [{"function": dict(reversed(FUNCTION.items())), "type": "function"}]},
        set(),
    ),
    "a strict tool": ({"messages": [user("q")], "tools": [tool(**FUNCTION, strict=True)]}, {"qwen3"}),
    "a tool without description": (
        {"messages": [user("q")], "tools": [tool(name="x", parameters=CITY)]},
        {"qwen3", "deepseek"},
    ),
    "a tool without parameters": (
        {"messages": [user("q")], "tools": [tool(name="x", description="d")]},
        {"qwen3", "deepseek"},
    ),
    "a tool with a number that is whole": (
        {"messages": [user("q")], "tools": [tool(name="x", description="d", parameters={"minimum": 1.0})]},
        {"qwen3", "deepseek"},
    ),
    "a tool with a long number": (
        {"messages": [user("q")], "tools": [tool(name="x", description="d", parameters={"maximum": 1234567.5})]},
        {"qwen3", "deepseek"},
    ),
    "arguments with a number that is whole": ({"messages": called(call('{"days": 2.0}'))}, {"qwen3", "deepseek"}),
    "a developer's message": (
        {"messages": [{"role": "developer", "content": "Be brief."}, user("Hi")]},
        {"qwen3", "llama3_1", "deepseek"},
    ),
    "reasoning by its newer name": ({"messages": called(call("{}"), reasoning="thinking")}, {"qwen3", "deepseek"}),
    "a last answer": ({"messages": [user("q"), assistant("a")]}, {"qwen3", "llama3_1", "deepseek"}),
    "a last answer and no generation prompt": (
        {"messages": [user("q"), assistant("a")], "add_generation_prompt": False},
        {"qwen3", "llama3_1", "deepseek"},
    ),
    "an answer continued": ({"messages": [user("q"), assistant("The answer")], **CONTINUED}, {"deepseek"}),
    "an answer continued after whitespace": (
        {"messages": [user("q"), assistant("The answer ")], **CONTINUED},
        {"llama3_1", "deepseek"},
    ),
}
"""Chats that engines render each in its own way, and the families where llama.cpp's is not vLLM's, which is ours."""


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
