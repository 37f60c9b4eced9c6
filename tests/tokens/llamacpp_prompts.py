"""Texts and chats for a real llama.cpp, with what it is known to make of them otherwise than we do."""

import base64
import json
import random
from typing import Any

from tests.tokens.references.chats import Body

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
