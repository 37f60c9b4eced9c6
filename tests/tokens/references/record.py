"""Records what transformers makes of the chats in `chats.py`: a digest of the text, and its tokens, by family.

It needs transformers and jinja2, which the tests do not: run it in an environment that has them, at the root of the
repository, as `python -m tests.tokens.references.record qwen3=FOLDER llama3_1=FOLDER deepseek=FOLDER gptoss=FOLDER`.
Each folder has the family's `tokenizer.json` and `tokenizer_config.json`.
"""

import hashlib
import importlib
import json
import os
import sys
from datetime import datetime, tzinfo
from typing import Any

from tests.tokens.references.chats import CHATS, FOLDER, NOW, OURS, Body


class _Clock(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        return NOW.replace(tzinfo=tz)


def as_vllm_does(body: Body) -> dict[str, Any]:
    """What vLLM calls `apply_chat_template` with, for a template that wants content as text."""
    return {
        "conversation": [_message(message) for message in body["messages"]],
        "tools": [_tool(tool) for tool in body["tools"]] if "tools" in body else None,
        "add_generation_prompt": body.get("add_generation_prompt", True),
        "continue_final_message": body.get("continue_final_message", False),
        **body.get("chat_template_kwargs", {}),
    }


def _message(message: Body) -> Body:
    content = message["content"]
    made = dict(message)
    made["content"] = content if isinstance(content, str) else "\n".join(part["text"] for part in content or [])
    if "reasoning_content" in message:
        made["reasoning"] = message["reasoning_content"]
    if "tool_calls" in message:
        made["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return made


def _call(call: Body) -> Body:
    function = call["function"]
    return call | {"function": {"arguments": json.loads(function["arguments"]), "name": function["name"]}}


def _tool(tool: Body) -> Body:
    function = {"name": None, "description": None, "parameters": None} | tool["function"]
    return {"type": "function", "function": function}


def main(families: list[str]) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = importlib.import_module("transformers")
    importlib.import_module("transformers.utils.chat_template_utils").datetime = _Clock  # type: ignore[attr-defined]
    recorded: dict[str, dict[str, dict[str, int | str]]] = {}
    for family in families:
        name, _, folder = family.partition("=")
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        template = OURS[name].read_text() if name in OURS else None
        recorded[name] = {}
        for title, body in CHATS.items():
            text = tokenizer.apply_chat_template(chat_template=template, tokenize=False, **as_vllm_does(body))
            tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            recorded[name][title] = {"tokens": tokens, "text": digest}
    versions = {"transformers": transformers.__version__}
    FOLDER.joinpath("chats.json").write_text(json.dumps({"by": versions, "families": recorded}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
