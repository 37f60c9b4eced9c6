"""A family's real vocabulary and chat template as llama.cpp has them in its GGUF files."""

import json
from pathlib import Path
from typing import Any

import gguf

from tests.llamacpp import Vocabulary

PRE = {"qwen3": "qwen2", "llama3_1": "llama-bpe", "deepseek": "deepseek-v3"}
"""llama.cpp's own name of each family's way to split text: its converter finds it by a hash of what it gives."""


def vocabulary_of(family: str, folder: Path, chat_template: str | None = None) -> Vocabulary:
    """What llama.cpp's converter makes of a folder's `tokenizer.json` and `tokenizer_config.json`."""
    tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_bytes())
    tokens = {token_id: (token, gguf.TokenType.NORMAL) for token, token_id in tokenizer["model"]["vocab"].items()}
    for added in tokenizer["added_tokens"]:
        kind = gguf.TokenType.CONTROL if _is_control(added) else gguf.TokenType.USER_DEFINED
        tokens[added["id"]] = (added["content"], kind)
    # Ids that nothing has still have rows in the model's embedding.
    places = [tokens.get(place, (f"[PAD{place}]", gguf.TokenType.UNUSED)) for place in range(max(tokens) + 1)]
    eos = _text(config["eos_token"])
    assert eos is not None
    return Vocabulary(
        pre=PRE[family],
        tokens=[token for token, _ in places],
        types=[kind for _, kind in places],
        merges=[merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]],
        bos=_text(config.get("bos_token")),
        eos=eos,
        adds_bos=_adds_bos(tokenizer["post_processor"]),
        chat_template=chat_template or config.get("chat_template"),
    )


def _is_control(added: dict[str, Any]) -> bool:
    content: str = added["content"]
    return added["special"] or (content.startswith(("<|", "<｜")) and content.endswith(("|>", "｜>")))


def _text(token: str | dict[str, Any] | None) -> str | None:
    """A token of the configuration, which may be an object with its content."""
    return token["content"] if isinstance(token, dict) else token


def _adds_bos(processor: dict[str, Any]) -> bool:
    """Whether the tokenizer puts a token in front of each text."""
    parts = processor.get("processors", [processor])
    return any("SpecialToken" in part["single"][0] for part in parts if part["type"] == "TemplateProcessing")
