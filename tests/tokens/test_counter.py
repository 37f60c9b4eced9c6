from datetime import UTC, datetime
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from extproc.core.request import TokenCount
from extproc.ops.metrics import Metrics
from extproc.ops.tokenmetrics import Estimated
from extproc.prompt import Chat, Media, Prompt
from extproc.tokens.counter import READ_INLINE_BYTES_MAX, TokenCounter
from extproc.tokens.estimator import LEARNED_ALL, LEARNED_EVERY
from extproc.tokens.loading import Tokenizers
from tests.tokens.chatml import END, START, TEMPLATE, loaded, said, write
from tests.tokens.counting import CACHED, COUNTED, ESTIMATED, FOX, PATIENT, count_of, counted, ids, value


@pytest.mark.usefixtures("where")
async def test_texts_are_counted_as_the_tokenizer_counts_them(
    counter: TokenCounter,
    reference: Tokenizer,
) -> None:
    expected = ids(reference, FOX, special=True) + ids(reference, "dog", special=True)
    assert await count_of(counter, Prompt((FOX, "dog"))) == TokenCount(expected, True, COUNTED)
    assert await count_of(counter, Prompt(("",))) == TokenCount(1, True, COUNTED)
    without = Prompt((FOX, "dog"), add_special_tokens=False)
    assert await count_of(counter, without) == TokenCount(expected - 2, False, CACHED), "llama.cpp adds them"


@pytest.mark.usefixtures("where")
async def test_a_chat_is_counted_as_the_template_writes_it(
    counter: TokenCounter,
    reference: Tokenizer,
) -> None:
    text = f"<s>{START}user\n{FOX}{END}\n{START}assistant\n{END}{END}\n{START}user\nmore{END}\n{START}assistant\n"
    chat = said(FOX, END, "more")
    assert await count_of(counter, Prompt(chat=chat)) == TokenCount(ids(reference, text), True, COUNTED)
    more = Prompt(chat=Chat(chat.messages, add_special_tokens=True))
    count = await count_of(counter, more)
    assert (count.tokens, count.exact) == (ids(reference, text, special=True), False)


async def test_a_template_that_leaves_out_the_tokenizers_beginning_is_not_exact(
    tmp_path: Path, metrics: Metrics, reference: Tokenizer
) -> None:
    """llama.cpp puts it there all the same, vLLM does not."""
    counter = TokenCounter(PATIENT, loaded(known=write(tmp_path / "bare", "{{ messages[0].content }}")), metrics)
    assert await count_of(counter, Prompt(chat=said(FOX))) == TokenCount(ids(reference, FOX), False, COUNTED)
    counter.close()


async def test_the_template_is_told_what_time_it_is(tmp_path: Path, metrics: Metrics) -> None:
    dated = loaded(known=write(tmp_path / "dated", TEMPLATE + "{{ strftime_now('%Y ') * 3 }}"))
    counts = []
    for year in (2026, 9):
        counter = TokenCounter(PATIENT, dated, metrics, lambda year=year: datetime(year, 1, 1, tzinfo=UTC))  # type: ignore[misc]
        counts.append((await count_of(counter, Prompt(chat=said("a")))).tokens)
        counter.close()
    assert counts[0] != counts[1]


async def test_a_chat_without_a_template_is_its_texts_and_never_exact(
    tmp_path: Path, metrics: Metrics, reference: Tokenizer
) -> None:
    counter = TokenCounter(PATIENT, loaded(known=write(tmp_path / "base", None)), metrics)
    expected = ids(reference, FOX) + ids(reference, "dog") + 2 * PATIENT.message_tokens
    assert await count_of(counter, Prompt(chat=said(FOX, "dog"))) == TokenCount(expected, False, COUNTED)
    counter.close()


@pytest.mark.parametrize("model", ["known", "other"])
async def test_token_ids_count_as_given(counter: TokenCounter, model: str) -> None:
    prompt = Prompt(token_ids=7, ids=(1,) * 7)
    assert await count_of(counter, prompt, model=model) == TokenCount(7, True, COUNTED)


@pytest.mark.parametrize(
    ("media", "tokens"),
    [(Media(images=2), 2000), (Media(audios=1), 500), (Media(1, 1, 1), 3500), (Media(files=3), 6000)],
)
async def test_media_parts_cost_what_the_configuration_says(counter: TokenCounter, media: Media, tokens: int) -> None:
    plain = (await count_of(counter, Prompt((FOX,)))).tokens
    assert await count_of(counter, Prompt((FOX,), media=media)) == TokenCount(plain + tokens, False, CACHED)
    assert await count_of(counter, Prompt(media=media)) == TokenCount(tokens, False, COUNTED)
    assert await count_of(counter, Prompt(("abcd",), media=media), model="other") == TokenCount(
        tokens + 1, False, ESTIMATED
    )


@pytest.mark.parametrize(("text", "tokens"), [("abcd" * 100, 90), ("1234" * 100, 200), ("é" * 200, 85)])
async def test_a_model_without_a_tokenizer_is_estimated_by_its_bytes(
    counter: TokenCounter, metrics: Metrics, text: str, tokens: int
) -> None:
    assert await count_of(counter, Prompt((text,)), model="other") == TokenCount(tokens, False, ESTIMATED)
    assert value(metrics, "extproc_token_estimates_total", reason="no_tokenizer") == 1
    assert value(metrics, "extproc_token_counts_total", source="estimated") == 1


async def test_models_of_other_vocabularies_know_nothing_of_each_other(
    tokenizers: Tokenizers, tmp_path: Path, metrics: Metrics
) -> None:
    (tmp_path / "other").mkdir()
    whole_words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    whole_words.save(str(tmp_path / "other" / "tokenizer.json"))
    both = loaded(known=Path(next(iter(tokenizers)).name), other=tmp_path / "other")
    counter = TokenCounter(PATIENT, both, metrics)
    alone = [await count_of(TokenCounter(PATIENT, both, Metrics()), Prompt((FOX,)), one) for one in ("known", "other")]
    for _ in range(2):
        counts = [(await count_of(counter, Prompt((FOX,)), model)).tokens for model in ("known", "other")]
        assert counts == [one.tokens for one in alone]
    assert counts[0] != counts[1]
    counter.close()


async def test_special_tokens_that_there_are_not_make_no_difference(tmp_path: Path, metrics: Metrics) -> None:
    Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    counter = TokenCounter(PATIENT, loaded(known=tmp_path), metrics)
    assert await count_of(counter, Prompt(("a",), add_special_tokens=False)) == TokenCount(1, True, COUNTED)
    counter.close()


async def test_prompts_of_a_shape_that_nobody_knows_are_not_exact(counter: TokenCounter) -> None:
    assert await count_of(counter, Prompt(as_usual=False)) == TokenCount(0, False, COUNTED)
    assert await count_of(counter, Prompt()) == TokenCount(0, False, COUNTED)


async def test_long_prompts_do_not_teach(counter: TokenCounter, metrics: Metrics) -> None:
    await count_of(counter, Prompt(("b" * (READ_INLINE_BYTES_MAX + 1),)))
    assert value(metrics, "extproc_token_estimate_error_ratio_count") == 0


async def test_models_of_one_tokenizer_share_what_is_learned(folder: Path, metrics: Metrics) -> None:
    estimates = []
    for taught in (False, True):
        counter = TokenCounter(PATIENT, loaded(one=folder, two=folder), metrics)
        for number in range(50 * taught):
            await count_of(counter, Prompt((f"{number} 314 " * 150,)), "one")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(counter._reader, "read", lambda *_: Estimated.FAILED)
            estimates.append((await count_of(counter, Prompt(("7314 " * 200,)), "two")).tokens)
        counter.close()
    assert estimates[1] > 1.2 * estimates[0]


async def test_exact_counts_make_the_estimate_better(counter: TokenCounter, metrics: Metrics) -> None:
    digits = Prompt(("7314 " * 200,))
    before = (await count_of(counter, digits, model="other")).tokens
    exact = (await count_of(counter, digits)).tokens
    for number in range(50):
        await count_of(counter, Prompt((f"{number} 314 " * 150,)))
    after = (await count_of(counter, digits, model="other")).tokens
    assert abs(after - exact) < abs(before - exact) / 4
    assert value(metrics, "extproc_token_estimate_error_ratio_count") == 51


async def test_later_counts_teach_by_every_eighth(counter: TokenCounter, metrics: Metrics) -> None:
    for number in range(LEARNED_ALL + 3 * LEARNED_EVERY):
        await count_of(counter, Prompt((f"number {number}",)))
    assert value(metrics, "extproc_token_estimate_error_ratio_count") == LEARNED_ALL + 3


async def test_the_prompts_blocks_come_with_every_count(counter: TokenCounter) -> None:
    texts = ["a" * 600, "a" * 600 + "b" * 600]
    for model in ("known", "other"):
        first, second = [await counted(counter, Prompt((text,)), model) for text in texts]
        assert len(first.blocks) == 600 // 256
        assert second.blocks[: len(first.blocks)] == first.blocks
        assert len(second.blocks) == 1200 // 256
    other = TokenCounter(PATIENT, Tokenizers({}), Metrics())
    assert (await counted(other, Prompt((texts[0],)))).blocks != first.blocks, "each process has a secret of its own"
    other.close()
