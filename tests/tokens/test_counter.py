import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer

from extproc.config import TokenSettings
from extproc.core.request import Prompt, TokenCount
from extproc.ops.metrics import Metrics
from extproc.tokens.counter import TEXT_BYTES, TokenCounter
from extproc.tokens.loading import Tokenizers, load
from tests.tokens.bpe import train
from tests.waiting import until

FOX = "the quick brown fox jumps over the lazy dog"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokenizer.json"
    train(path)
    return path


@pytest.fixture(scope="module")
def reference(file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(file))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def counter(file: Path, metrics: Metrics) -> Iterator[TokenCounter]:
    tokenizers = load({"known*": file})
    assert isinstance(tokenizers, Tokenizers)
    counter = TokenCounter(TokenSettings(waiting_bytes_max=64 * 1024), tokenizers, metrics)
    yield counter
    counter.close()


def value(metrics: Metrics, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(metrics.page([]).decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return 0.0


async def both(counter: TokenCounter, model: str, prompt: Prompt) -> TokenCount:
    """The count, which is the same on the loop and in a thread."""
    count = counter.count_now(model, prompt)
    assert await counter.count(model, prompt) == count
    return count


async def test_texts_of_a_completion_are_counted_as_the_tokenizer_counts_them(
    counter: TokenCounter, reference: Tokenizer
) -> None:
    expected = len(reference.encode(FOX).ids) + len(reference.encode("dog").ids)
    assert await both(counter, "known-1", Prompt(texts=(FOX, "dog"))) == TokenCount(expected, exact=True)
    assert reference.encode(FOX).tokens[0] == "<s>"


async def test_chat_messages_are_counted_without_special_tokens_and_are_not_exact(
    counter: TokenCounter, reference: Tokenizer
) -> None:
    texts = len(reference.encode(FOX, add_special_tokens=False).ids)
    count = await both(counter, "known", Prompt(texts=(FOX,), messages=3))
    assert count == TokenCount(texts + 3 * TokenSettings().message_tokens, exact=False)


async def test_token_ids_count_as_given_for_any_model(counter: TokenCounter) -> None:
    assert await both(counter, "other", Prompt(token_ids=7)) == TokenCount(7, exact=True)
    assert await both(counter, "known", Prompt(token_ids=7)) == TokenCount(7, exact=True)


async def test_media_parts_make_a_count_inexact(counter: TokenCounter, reference: Tokenizer) -> None:
    expected = len(reference.encode(FOX).ids)
    assert await both(counter, "known", Prompt(texts=(FOX,), media_parts=1)) == TokenCount(expected, exact=False)


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("ééé", 2), ("\ud800", 1)])
async def test_a_model_without_a_tokenizer_is_estimated_by_its_bytes(
    counter: TokenCounter, metrics: Metrics, text: str, tokens: int
) -> None:
    assert await both(counter, "other", Prompt(texts=(text,))) == TokenCount(tokens, exact=False)
    assert value(metrics, "extproc_token_estimates_total", reason="no_tokenizer") == 2


async def test_text_that_cannot_be_encoded_is_estimated_and_counted(counter: TokenCounter, metrics: Metrics) -> None:
    assert await both(counter, "known", Prompt(texts=("\ud800" * 8,))) == TokenCount(6, exact=False)
    assert value(metrics, "extproc_token_estimates_total", reason="failed") == 2


async def test_text_over_what_may_wait_is_estimated_at_once(
    counter: TokenCounter, metrics: Metrics, reference: Tokenizer
) -> None:
    size = 64 * 1024 - TEXT_BYTES
    fits, over = "a" * size, "a" * (size + 1)
    assert await counter.count("known", Prompt(texts=(fits,))) == TokenCount(len(reference.encode(fits)), exact=True)
    assert await counter.count("known", Prompt(texts=(over,))) == TokenCount(size // 4 + 1, exact=False)
    many = ("a",) * (64 * 1024 // TEXT_BYTES)
    assert not (await counter.count("known", Prompt(texts=many))).exact, "each text weighs more than its bytes"
    assert value(metrics, "extproc_token_estimates_total", reason="busy") == 2


class Held:
    """A tokenizer that encodes when it is told to: makes a full queue without long texts."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.calls = 0

    def encode_batch_fast(self, texts: Sequence[str], **_: bool) -> list[list[int]]:
        self.calls += 1
        assert self.go.wait(20)
        return [[0]] * len(texts)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.go.set()


async def test_what_waits_is_bounded_and_released(held: Any, metrics: Metrics) -> None:
    counter = TokenCounter(TokenSettings(waiting_bytes_max=64 * 1024, threads=1), Tokenizers({"m": held}), metrics)
    half = Prompt(texts=("a" * (32 * 1024 - TEXT_BYTES),))
    waiting = [asyncio.ensure_future(counter.count("m", half)) for _ in range(2)]
    await until(lambda: held.calls == 1 and counter.waiting_bytes == 64 * 1024)
    assert await counter.count("m", Prompt(texts=("abcd",))) == TokenCount(1, exact=False)
    held.go.set()
    assert await asyncio.gather(*waiting) == [TokenCount(1, exact=True)] * 2
    await until(lambda: counter.waiting_bytes == 0)
    counter.close()


async def test_a_caller_that_goes_away_releases_its_place_and_does_no_harm(held: Any, metrics: Metrics) -> None:
    counter = TokenCounter(TokenSettings(threads=1), Tokenizers({"m": held}), metrics)
    running = asyncio.ensure_future(counter.count("m", Prompt(texts=("ab",))))
    await until(lambda: held.calls == 1)
    queued = asyncio.ensure_future(counter.count("m", Prompt(texts=("abcd",))))
    await until(lambda: counter.waiting_bytes == 6 + 2 * TEXT_BYTES)
    queued.cancel()
    running.cancel()
    await asyncio.gather(queued, running, return_exceptions=True)
    assert counter.waiting_bytes == 2 + TEXT_BYTES, "what a thread is at is still held"
    held.go.set()
    await until(lambda: counter.waiting_bytes == 0)
    assert held.calls == 1
    assert await counter.count("m", Prompt(texts=("a",))) == TokenCount(1, exact=True)
    counter.close()


async def test_the_loop_runs_while_a_thread_counts(held: Any, metrics: Metrics) -> None:
    counter = TokenCounter(TokenSettings(), Tokenizers({"m": held}), metrics)
    counting = asyncio.ensure_future(counter.count("m", Prompt(texts=("a",))))
    await until(lambda: held.calls == 1)
    assert counter.count_now("other", Prompt(token_ids=1)).tokens == 1
    held.go.set()
    assert (await counting).exact
    counter.close()


class PanicException(BaseException):
    """What a panic in the library's Rust code becomes: not an `Exception`."""


class Panicking:
    def encode_batch_fast(self, _: Sequence[str], **__: bool) -> list[list[int]]:
        raise PanicException


async def test_a_panic_of_the_library_is_an_estimate(metrics: Metrics) -> None:
    panicking: Any = Panicking()
    counter = TokenCounter(TokenSettings(), Tokenizers({"m": panicking}), metrics)
    assert await both(counter, "m", Prompt(texts=("abcd",))) == TokenCount(1, exact=False)
    counter.close()


prompts = st.builds(
    Prompt,
    texts=st.lists(st.text(st.characters(codec=None), max_size=30), max_size=4).map(tuple),
    token_ids=st.integers(0, 10),
    messages=st.integers(0, 3),
    media_parts=st.integers(0, 2),
)


@settings(deadline=None, max_examples=60)
@given(prompt=prompts, model=st.sampled_from(["known", "other", "", "\ud800"]))
def test_counting_never_raises(file: Path, prompt: Prompt, model: str) -> None:
    tokenizers = load({"known": file})
    assert isinstance(tokenizers, Tokenizers)
    counter = TokenCounter(TokenSettings(), tokenizers, Metrics())
    count = counter.count_now(model, prompt)
    assert count.tokens >= prompt.token_ids
    assert asyncio.run(counter.count(model, prompt)) == count
    counter.close()
