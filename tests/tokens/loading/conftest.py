"""A small real tokenizer of a test's own, which it may change."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from tests.tokens.bpe import train
from tests.tokens.loading.loaded import TEMPLATE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model" / "tokenizer.json"
    path.parent.mkdir()
    train(path)
    return path


@pytest.fixture
def folder(file: Path) -> Path:
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens([AddedToken("<|u|>", special=True, normalized=False)])
    tokenizer.save(str(file))
    (file.parent / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": TEMPLATE}))
    return file.parent
