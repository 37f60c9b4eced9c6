"""Chats as clients send them, of all that templates and tokenizers treat in their own way."""

from datetime import datetime
from pathlib import Path
from typing import Any, Final

Body = dict[str, Any]

NOW: Final = datetime(2026, 1, 30, 9, 5)  # noqa: DTZ001 - a clock on the wall
FOLDER: Final = Path(__file__).parent
OURS: Final = {"deepseek": FOLDER / "deepseek.jinja", "gptoss": FOLDER / "gptoss.jinja"}
"""Templates of families whose packages have none: ours, with what theirs are made of."""

TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": "forecast",
            "description": 'Weather of a "city", in °C & <mm>',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name\nas people there write it"},
                    "days": {"type": "integer", "minimum": 1, "default": 3},
                    "share": {"type": "number", "minimum": 0.5, "maximum": 1.0, "multipleOf": 1e-7},
                    "units": {"type": ["string", "null"], "enum": ["C", "F", None], "default": None},
                    "exact": {"type": "boolean", "default": True},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "description": None, "parameters": None}},
]
ARGUMENTS: Final = (
    '{"city": "Zürich \\"HB\\"", "days": 2, "share": 1.0, "tiny": 1e-07, "huge": 1e22, "less": -0.5, "units": null, '
    '"exact": true, "places": ["a", {"b": 3.0}], "id": 12345678901234567890}'
)


def call(number: int, arguments: str = ARGUMENTS) -> Body:
    function = {"name": "forecast", "arguments": arguments}
    return {"id": f"call_{number:04}", "type": "function", "function": function}


def say(role: str, content: object, **fields: object) -> Body:
    return {"role": role, "content": content} | fields


LONG: Final = "The quick brown fox jumps over the lazy dog. " * 40

CHATS: Final[dict[str, Body]] = {
    "plain": {"messages": [say("user", "Hello, world!")]},
    "system": {"messages": [say("system", " Be brief.\n"), say("user", "Why is the sky blue?\n\n")]},
    "turns": {
        "messages": [
            say("user", "Hi"),
            say("assistant", "<think>\nA greeting.\n</think>\n\nHello! How can I help?"),
            say("user", LONG),
            say("assistant", "I see."),
            say("user", "Go on…"),
        ]
    },
    "tools": {"messages": [say("user", "Weather in Zürich?")], "tools": TOOLS},
    "tools with a system message": {"messages": [say("system", "S"), say("user", "Weather?")], "tools": TOOLS},
    "tools in another order": {
        "messages": [say("user", "Weather?")],
        "tools": [{"function": {"strict": True, "parameters": {}, "name": "f"}, "type": "function"}],
    },
    "calls and results": {
        "messages": [
            say("user", "Weather?"),
            say("assistant", None, tool_calls=[call(1)]),
            say("tool", '{"t": 1.0}', tool_call_id="call_0001"),
            say("assistant", "Cold."),
            say("user", "And there?"),
            say("assistant", "Let me see.", tool_calls=[call(2), call(3, '{"city": "B"}')]),
            say("tool", "2", tool_call_id="call_0002", name="forecast"),
            say("tool", "3", tool_call_id="call_0003", name="forecast"),
        ],
        "tools": TOOLS,
    },
    "reasoning": {
        "messages": [
            say("user", "Weather?"),
            say("assistant", "", reasoning_content="\nI need the forecast.\n", tool_calls=[call(1, '{"city": "A"}')]),
            say("tool", "1", tool_call_id="call_0001"),
        ],
        "tools": TOOLS,
    },
    "empty": {"messages": [say("user", ""), say("assistant", ""), say("user", "")]},
    "part": {"messages": [say("user", [{"type": "text", "text": "One part\n"}])]},
    "chinese": {"messages": [say("user", "请用三句话解释一下什么是大语言模型，以及它为什么会产生幻觉。")]},
    "arabic": {"messages": [say("user", "اشرح لي بإيجاز كيف تعمل الشبكات العصبية الاصطناعية.")]},
    "code": {
        "messages": [say("user", 'def f(x):\n\tif x > 1_000:\n\t\treturn {"a": [x, None]}  # ok?\n\n\n    f(2)\r\n')]
    },
    "emoji": {"messages": [say("user", "👩‍👩‍👧 🏳️‍🌈 e\u0301 ﷽ \u200b\ufeff\u00a0 ½ ™")]},
    "base64": {
        "messages": [
            say("user", "iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4//8/w38GIAXDIBKE0DHx" * 5)
        ]
    },
    "control tokens": {
        "messages": [
            say(
                "user",
                "<|im_end|>\n<|im_start|>system\n<|eot_id|><|end|><｜User｜></think></tool_response>{{ x }}{% if %}",
            )
        ]
    },
    "continued": {
        "messages": [say("user", "Count"), say("assistant", "One, two,  ")],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "not answered": {"messages": [say("user", "Hi")], "add_generation_prompt": False},
    "arguments for the template": {
        "messages": [say("user", "Hi"), say("assistant", "Ho"), say("user", "Hi")],
        "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "high"},
    },
}
