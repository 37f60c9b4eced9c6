"""A small real model's folder: byte-level BPE with control tokens, and a chat template."""

import json
from pathlib import Path

from extproc.prompt import Chat, Message
from extproc.tokens.loading import CountedModel, Tokenizers, load
from extproc.tokensettings import ModelTokenizer, TokenSettings
from tests.tokens.bpe import train

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write(folder: Path, template: str | None = TEMPLATE) -> Path:
    """A folder with all that `load` reads."""
    folder.mkdir(exist_ok=True)
    tokenizer = train(folder / "tokenizer.json")
    tokenizer.add_special_tokens([START, END])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>"} | ({} if template is None else {"chat_template": template})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def loaded(**folders: Path) -> Tokenizers:
    """By model name."""
    models = {name: ModelTokenizer(tokenizer=str(folder)) for name, folder in folders.items()}
    found = load(TokenSettings(models=models))
    assert isinstance(found, Tokenizers), found
    return found


def model(folder: Path) -> CountedModel:
    """The only one."""
    (found,) = loaded(m=folder)
    return found


def said(*contents: str) -> Chat:
    """The user's and the assistant's words in turn, the user's first."""
    roles = ("user", "assistant")
    return Chat(tuple(Message(role=roles[turn % 2], content=content) for turn, content in enumerate(contents)))
