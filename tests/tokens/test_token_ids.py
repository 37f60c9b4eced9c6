"""The blocks of token ids by which a prompt is known in the caches of nodes that tell them."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from extproc.core.request import TokenCount
from extproc.kvchain import TOKEN_BLOCKS_MAX, token_blocks_of
from extproc.ops.metrics import Metrics
from extproc.prompt import Chat, Media, Prompt
from extproc.tokens.counter import TokenCounter
from extproc.tokens.encoders import Fast, Reference
from extproc.tokens.loading import CountedModel, Tokenizers
from extproc.tokensettings import TokenSettings
from tests.tokens.chatml import END, START, said
from tests.tokens.counting import CACHED, FOX, PATIENT, Held, Recording, counted

TELLING = TokenSettings(token_budget_ms=10_000, kv_blocks=True)


@pytest.fixture
def telling(tokenizers: Tokenizers, metrics: Metrics) -> Iterator[TokenCounter]:
    counter = TokenCounter(TELLING, tokenizers, metrics)
    yield counter
    counter.close()


def blocks_of(reference: Tokenizer, text: str, *, special: bool) -> tuple[int, ...]:
    return token_blocks_of(reference.encode(text, add_special_tokens=special).ids)


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("special", [True, False])
async def test_a_text_has_the_blocks_of_its_ids(telling: TokenCounter, reference: Tokenizer, special: bool) -> None:
    found = await counted(telling, Prompt((FOX * 40,), add_special_tokens=special))
    ids = reference.encode(FOX * 40, add_special_tokens=special).ids
    assert found.count == TokenCount(len(ids), exact=special)
    # A prompt that wants other special tokens than usual is not known exactly.
    assert found.token_blocks == (token_blocks_of(ids) if special else ())
    assert len(ids) // 16 > 10


@pytest.mark.usefixtures("where")
async def test_a_chat_has_the_blocks_of_what_its_template_made(telling: TokenCounter, known: CountedModel) -> None:
    chat = said(FOX * 9, "two", FOX * 5)
    assert known.template is not None
    rendered: Any = known.template.render(chat, datetime.now(UTC))
    raw = known.encoder.ids([rendered.text])
    assert raw is not None
    ids = memoryview(raw[0]).cast("I").tolist()
    assert (await counted(telling, Prompt(chat=chat))).token_blocks == token_blocks_of(ids)


words = st.sampled_from([FOX, "a", ".", " ", "\n", START, END, "<|im_", "start|>", "é", "👩‍👩‍👧", "漢字", "\0", ""])
contents = st.lists(words, max_size=4).map("".join)


@settings(deadline=None, max_examples=25)
@given(turns=st.lists(contents, min_size=1, max_size=6), cache=st.sampled_from([0, 900, 2**20]))
def test_a_chat_grown_turn_by_turn_has_the_blocks_of_one_from_scratch(
    tokenizers: Tokenizers, turns: list[str], cache: int
) -> None:
    (model,) = tokenizers
    growing = TokenCounter(
        TokenSettings(token_budget_ms=10_000, cache_bytes_max=cache, kv_blocks=True), tokenizers, Metrics()
    )
    before: tuple[int, ...] = ()
    for end in range(1, len(turns) + 1):
        chat: Chat = said(*turns[:end])
        found = asyncio.run(counted(growing, Prompt(chat=chat)))
        assert model.template is not None
        rendered: Any = model.template.render(chat, datetime.now(UTC))
        raw = model.encoder.ids([rendered.text])
        assert raw is not None
        wanted = token_blocks_of(memoryview(raw[0]).cast("I").tolist())
        assert found.token_blocks == (wanted if found.count.exact else ())
        before = found.token_blocks
    assert len(before) <= found.count.tokens // 16
    growing.close()


async def test_what_is_known_is_not_encoded_again(known: CountedModel, metrics: Metrics) -> None:
    recording = Recording(known.encoder)
    counter = TokenCounter(TELLING, Tokenizers({"known": replace(known, encoder=recording)}), metrics)
    first = await counted(counter, Prompt(chat=said(FOX * 9)))
    second = await counted(counter, Prompt(chat=said(FOX * 9, "two", "three")))
    assert second.count.source is CACHED
    assert recording.texts[1] == [f"{START}assistant\ntwo{END}\n", f"{START}user\nthree{END}\n"]
    shared = len(first.token_blocks) - 1  # the last holds the beginning of the answer
    assert second.token_blocks[:shared] == first.token_blocks[:shared]
    counter.close()


async def test_ids_are_taken_as_they_are(telling: TokenCounter) -> None:
    ids = tuple(range(50))
    found = await counted(telling, Prompt(ids=ids, token_ids=50))
    assert found.token_blocks == token_blocks_of(ids)
    assert len(found.token_blocks) == 3


@pytest.mark.parametrize("odd", [2**32, -1, 2**80])
async def test_ids_that_no_model_has_make_no_blocks_and_no_fault(
    telling: TokenCounter, metrics: Metrics, odd: int
) -> None:
    found = await counted(telling, Prompt(ids=(odd, *range(40)), token_ids=41))
    assert (found.count.tokens, found.token_blocks) == (41, ())
    assert b"extproc_errors_total{" not in metrics.page([])


async def test_blocks_are_bounded(telling: TokenCounter) -> None:
    count = 16 * (TOKEN_BLOCKS_MAX + 1)
    found = await counted(telling, Prompt(ids=tuple(range(count)), token_ids=count))
    assert len(found.token_blocks) == TOKEN_BLOCKS_MAX


async def test_it_is_off_by_default(counter: TokenCounter) -> None:
    assert PATIENT.kv_blocks is False
    assert (await counted(counter, Prompt((FOX * 40,)))).token_blocks == ()
    assert (await counted(counter, Prompt(ids=tuple(range(50)), token_ids=50))).token_blocks == ()


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt((FOX * 9, FOX * 9), prompts=2),
        Prompt((FOX * 9,), media=Media(images=1)),
        Prompt((FOX * 9,), as_usual=False),
        Prompt(token_ids=50, prompts=2),
        Prompt(ids=tuple(range(50)), token_ids=50, media=Media(images=1)),
        Prompt((FOX * 9,), unread_bytes=5),
    ],
)
async def test_what_is_not_one_exactly_known_prompt_has_none(telling: TokenCounter, prompt: Prompt) -> None:
    assert (await counted(telling, prompt)).token_blocks == ()


async def test_models_without_a_tokenizer_have_none_but_for_ids(telling: TokenCounter) -> None:
    assert (await counted(telling, Prompt((FOX * 40,)), "unknown")).token_blocks == ()
    found = await counted(telling, Prompt(ids=tuple(range(50)), token_ids=50), "unknown")
    assert found.token_blocks == token_blocks_of(range(50))


async def test_an_adapter_has_blocks_of_its_own(known: CountedModel, metrics: Metrics) -> None:
    tokenizers = Tokenizers({"known": known, "sql": known, "ft-*": known}, adapters=["sql", "ft-*"])
    counter = TokenCounter(TELLING, tokenizers, metrics)
    prompt = Prompt(ids=tuple(range(50)), token_ids=50)
    for model, adapter in (("known", ""), ("sql", "sql"), ("ft-a", "ft-a"), ("ft-b", "ft-b")):
        found = await counted(counter, prompt, model)
        assert found.token_blocks == token_blocks_of(range(50), adapter)
    counter.close()


async def test_a_count_that_comes_late_leaves_the_estimate_without_blocks(metrics: Metrics) -> None:
    held = Held()
    model: Any = CountedModel("held", held, 0, 1)
    patience = TokenSettings(inline_bytes_max=0, token_budget_ms=0, kv_blocks=True)
    counter = TokenCounter(patience, Tokenizers({"known": model}), metrics)
    late: list[TokenCount] = []
    answer = counter.count("known", Prompt((FOX,)), 100, late.append)
    assert not isinstance(answer, TokenCount)
    found = await answer  # type: ignore[misc]
    assert found.token_blocks == ()
    held.go.set()
    counter.close()


def test_both_libraries_give_the_same_ids(reference: Tokenizer, known: CountedModel) -> None:
    texts = [FOX, "", "é漢字👩‍👩‍👧", START + FOX + END]
    assert isinstance(known.encoder, Fast)
    wanted = Reference(reference, "test").ids(texts)
    assert wanted is not None
    assert known.encoder.ids(texts) == wanted
    assert [memoryview(one).cast("I").tolist() for one in wanted] == [
        reference.encode(text, add_special_tokens=False).ids for text in texts
    ]


def test_what_cannot_be_encoded_has_none(reference: Tokenizer, known: CountedModel) -> None:
    assert known.encoder.ids(["a", "\ud800"]) is None
    assert Reference(reference, "test").ids(["a", "\ud800"]) is None
