"""A small real tokenizer with a template, and the counter around it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from extproc.ops.metrics import Metrics
from extproc.tokens import counter as counter_module
from extproc.tokens.counter import TokenCounter
from extproc.tokens.loading import CountedModel, Tokenizers
from tests.tokens.chatml import loaded, write
from tests.tokens.counting import PATIENT, Held


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tokens") / "chatml")


@pytest.fixture(scope="module")
def tokenizers(folder: Path) -> Tokenizers:
    return loaded(known=folder)


@pytest.fixture(scope="module")
def known(tokenizers: Tokenizers) -> CountedModel:
    (model,) = tokenizers
    return model


@pytest.fixture(scope="module")
def reference(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def counter(tokenizers: Tokenizers, metrics: Metrics) -> Iterator[TokenCounter]:
    counter = TokenCounter(PATIENT, tokenizers, metrics)
    yield counter
    counter.close()


@pytest.fixture(params=["on the loop", "in a thread"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in a thread":
        monkeypatch.setattr(counter_module, "READ_INLINE_BYTES_MAX", -1)


@pytest.fixture(params=["fastokens", "tokenizers"])
async def held(request: pytest.FixtureRequest) -> AsyncIterator[Held]:
    held = Held(request.param)
    yield held
    held.go.set()
