"""What tests of the counter share: counting in a word, and encoders that wait or tell what they were given."""

import threading
from collections.abc import Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer

from extproc.core.request import CountSource, TokenCount
from extproc.ops.metrics import Metrics
from extproc.prompt import CountedPrompt, Prompt
from extproc.tokens.counter import TokenCounter
from extproc.tokens.loading import WARMING, CountedModel, Tokenizers
from extproc.tokensettings import TokenSettings

FOX = "the quick brown fox jumps over the lazy dog"


COUNTED, CACHED, ESTIMATED = CountSource.COUNTED, CountSource.CACHED, CountSource.ESTIMATED


PATIENT = TokenSettings(token_budget_ms=10_000)


def value(metrics: Metrics, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(metrics.page([]).decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return 0.0


def nobody(count: TokenCount) -> None:
    raise AssertionError(count)


async def counted(counter: TokenCounter, prompt: Prompt, model: str = "known") -> CountedPrompt:
    found = counter.count(model, prompt, 10_000, nobody)
    return found if isinstance(found, CountedPrompt) else await found


async def count_of(counter: TokenCounter, prompt: Prompt, model: str = "known") -> TokenCount:
    return (await counted(counter, prompt, model)).count


def ids(reference: Tokenizer, text: str, *, special: bool = False) -> int:
    return len(reference.encode(text, add_special_tokens=special).ids)


class Recording:
    """A tokenizer's encoder that tells what it was given, and where."""

    engine, reason = "fastokens", "test"

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.texts: list[list[str]] = []
        self.threads: list[str] = []

    def counts(self, texts: Sequence[str], add_special_tokens: bool) -> list[int] | None:
        if texts is WARMING:
            return [1]
        self.texts.append(list(texts))
        self.threads.append(threading.current_thread().name.partition("_")[0])
        found: list[int] | None = self.encoder.counts(texts, add_special_tokens)
        return found

    def ids(self, texts: Sequence[str]) -> list[bytes] | None:
        self.texts.append(list(texts))
        found: list[bytes] | None = self.encoder.ids(texts)
        return found


class Held:
    """An encoder that counts one token a text when it is told to: makes a full queue without long texts."""

    engine, reason = "fastokens", "test"

    def __init__(self, engine: str = "fastokens") -> None:
        self.engine = engine
        self.go = threading.Event()
        self.calls = 0
        self.tokens: int | None = 1

    def counts(self, texts: Sequence[str], add_special_tokens: bool) -> list[int] | None:  # noqa: ARG002
        if texts is WARMING:
            return [1]
        self.calls += 1
        assert self.go.wait(20)
        return None if self.tokens is None else [self.tokens] * len(texts)

    def ids(self, texts: Sequence[str]) -> list[bytes] | None:
        counts = self.counts(texts, add_special_tokens=False)
        return None if counts is None else [bytes(4 * tokens) for tokens in counts]


def holding(held: Held, metrics: Metrics, **changes: Any) -> TokenCounter:
    model: Any = CountedModel("held", held, 0, 1)
    some: dict[str, Any] = {"inline_bytes_max": 0, "token_budget_ms": 10_000, "threads": 1} | changes
    return TokenCounter(TokenSettings(**some), Tokenizers({"known": model}), metrics)
