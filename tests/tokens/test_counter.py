import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from tokenizers import Tokenizer, models

from extproc.core.request import CountSource, Endpoint, TokenCount
from extproc.gateway import openai
from extproc.ops.metrics import Estimated, Metrics
from extproc.prompt import Chat, CountedPrompt, Media, Message, Part, Prompt
from extproc.tokens import counter as counter_module
from extproc.tokens.counter import READ_INLINE_BYTES_MAX, READ_INLINE_ITEMS_MAX, TEXT_BYTES, TokenCounter
from extproc.tokens.estimator import LEARNED_ALL, LEARNED_EVERY
from extproc.tokens.loading import WARMING, CountedModel, Tokenizers
from extproc.tokensettings import TokenSettings
from tests.tokens.chatml import END, START, TEMPLATE, loaded, said, write
from tests.waiting import until

FOX = "the quick brown fox jumps over the lazy dog"
COUNTED, CACHED, ESTIMATED = CountSource.COUNTED, CountSource.CACHED, CountSource.ESTIMATED
PATIENT = TokenSettings(token_budget_ms=10_000)


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


def value(metrics: Metrics, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(metrics.page([]).decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return 0.0


@pytest.fixture(params=["on the loop", "in a thread"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in a thread":
        monkeypatch.setattr(counter_module, "READ_INLINE_BYTES_MAX", -1)


def nobody(count: TokenCount) -> None:
    raise AssertionError(count)


async def counted(counter: TokenCounter, prompt: Prompt, model: str = "known") -> CountedPrompt:
    found = counter.count(model, prompt, 10_000, nobody)
    return found if isinstance(found, CountedPrompt) else await found


async def count_of(counter: TokenCounter, prompt: Prompt, model: str = "known") -> TokenCount:
    return (await counted(counter, prompt, model)).count


def ids(reference: Tokenizer, text: str, *, special: bool = False) -> int:
    return len(reference.encode(text, add_special_tokens=special).ids)


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


@pytest.mark.usefixtures("where")
async def test_text_that_cannot_be_encoded_is_estimated_and_counted(counter: TokenCounter, metrics: Metrics) -> None:
    assert (await count_of(counter, Prompt(("\ud800" * 8,)))).source is ESTIMATED
    assert value(metrics, "extproc_token_estimates_total", reason="failed") == 1
    assert value(metrics, "extproc_errors_total", where="tokens") == 0


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('no') }}", "{{ messages[9].content.x }}", "{% for i in range(9999999) %}{% endfor %}"],
)
@pytest.mark.usefixtures("where")
async def test_a_chat_whose_template_fails_is_estimated_counted_and_told_once(
    tmp_path: Path,
    metrics: Metrics,
    template: str,
) -> None:
    counter = TokenCounter(PATIENT, loaded(known=write(tmp_path / "broken", template)), metrics)
    with capture_logs() as logs:
        for _ in range(2):
            count = await count_of(counter, Prompt(chat=said("abcd" * 25)))
            assert count == TokenCount(23 + PATIENT.message_tokens, False, ESTIMATED)
    assert [(one["tokenizer"], one["log_level"]) for one in logs] == [(str(tmp_path / "broken"), "warning")]
    assert value(metrics, "extproc_token_estimates_total", reason="template") == 2
    counter.close()


async def test_a_chat_of_too_many_messages_is_not_rendered(tokenizers: Tokenizers, metrics: Metrics) -> None:
    counter = TokenCounter(TokenSettings(chat_messages_max=3), tokenizers, metrics)
    assert (await count_of(counter, Prompt(chat=said("a", "b", "c")))).exact
    assert (await count_of(counter, Prompt(chat=said("a", "b", "c", "d")))).source is ESTIMATED
    assert value(metrics, "extproc_token_estimates_total", reason="too_long") == 1
    counter.close()


async def test_the_next_turn_of_a_chat_encodes_its_new_messages_only(known: CountedModel, metrics: Metrics) -> None:
    recording = Recording(known.encoder)
    counter = TokenCounter(PATIENT, Tokenizers({"known": replace(known, encoder=recording)}), metrics)
    first = await count_of(counter, Prompt(chat=said(FOX * 9)))
    second = await count_of(counter, Prompt(chat=said(FOX * 9, "two", "three")))
    third = await count_of(counter, Prompt(chat=said(FOX * 9, FOX * 20)))
    assert [one.source for one in (first, second, third)] == [COUNTED, CACHED, COUNTED], "cached: most of it is known"
    assert recording.texts[:2] == [
        ["<s>", f"{START}user\n{FOX * 9}{END}\n", f"{START}assistant\n"],
        [f"{START}assistant\ntwo{END}\n", f"{START}user\nthree{END}\n"],
    ]
    assert value(metrics, "extproc_token_counts_total", source="cached") == 1
    assert value(metrics, "extproc_token_cache_bytes") > 0
    counter.close()


REWRITING = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}{{ loop.length if loop.last }}\n"
    "{{ m.content if loop.index0 >= ns.last else m.content.split('.')[-1] }}<|im_end|>{% endfor %}"
)
"""A template that changes earlier messages when new ones come, as those do that leave out earlier reasoning."""

words = st.sampled_from(
    [FOX, "a", ".", " ", "\n", START, END, "<|im_", "start|>", "é", "👩‍👩‍👧", "漢字", "\u0301", "\0", ""]
)
contents = st.lists(words, max_size=4).map("".join)


@pytest.fixture(scope="module")
def rewriting(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    return loaded(known=write(tmp_path_factory.mktemp("tokens") / "rewriting", REWRITING))


@settings(deadline=None, max_examples=60)
@given(turns=st.lists(contents, min_size=1, max_size=8), rewrites=st.booleans(), cache=st.sampled_from([0, 600, 2**20]))
def test_a_chat_grown_turn_by_turn_counts_as_from_scratch(
    tokenizers: Tokenizers, rewriting: Tokenizers, turns: list[str], rewrites: bool, cache: int
) -> None:
    used = rewriting if rewrites else tokenizers
    growing = TokenCounter(TokenSettings(token_budget_ms=10_000, cache_bytes_max=cache), used, Metrics())

    async def both(chat: Chat) -> tuple[TokenCount, TokenCount]:
        scratch = TokenCounter(PATIENT, used, Metrics())
        found = await count_of(growing, Prompt(chat=chat)), await count_of(scratch, Prompt(chat=chat))
        scratch.close()
        return found

    for end in range(1, len(turns) + 1):
        grown, scratch = asyncio.run(both(said(*turns[:end])))
        assert (grown.tokens, grown.exact) == (scratch.tokens, scratch.exact)
        (model,) = used
        assert model.boundary == START
        assert model.template is not None
        rendered: Any = model.template.render(said(*turns[:end]), datetime.now(UTC))
        assert model.encoder.counts([rendered.text], False) == [grown.tokens]
    growing.close()


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


@pytest.mark.parametrize(
    ("prompt", "thread"),
    [
        (Prompt(("b" * 8192,)), "MainThread"),
        (Prompt(("b" * 8193,)), "tokens"),
        (Prompt(chat=said(*["b"] * READ_INLINE_ITEMS_MAX)), "MainThread"),
        (Prompt(chat=said(*["b"] * (READ_INLINE_ITEMS_MAX + 1))), "tokens"),
        (Prompt(chat=said("b", "c" * (READ_INLINE_BYTES_MAX - 1))), "tokens"),
    ],
)
async def test_long_texts_and_chats_of_many_messages_are_encoded_in_a_thread(
    known: CountedModel, metrics: Metrics, prompt: Prompt, thread: str
) -> None:
    recording = Recording(known.encoder)
    settings = TokenSettings(inline_bytes_max=8192, token_budget_ms=10_000)
    counter = TokenCounter(settings, Tokenizers({"known": replace(known, encoder=recording)}), metrics)
    assert (await count_of(counter, prompt)).source is COUNTED
    assert recording.threads == [thread]
    counter.close()


async def test_what_is_known_of_a_long_chat_makes_it_short(known: CountedModel, metrics: Metrics) -> None:
    recording = Recording(known.encoder)
    counter = TokenCounter(PATIENT, Tokenizers({"known": replace(known, encoder=recording)}), metrics)
    first = said("b" * 30_000, "c" * 30_000)
    await count_of(counter, Prompt(chat=first))
    await count_of(counter, Prompt(chat=Chat((*first.messages, Message("user", "more")))))
    assert recording.threads == ["tokens", "MainThread"]
    counter.close()


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


@pytest.fixture(params=["fastokens", "tokenizers"])
async def held(request: pytest.FixtureRequest) -> AsyncIterator[Held]:
    held = Held(request.param)
    yield held
    held.go.set()


def holding(held: Held, metrics: Metrics, **changes: Any) -> TokenCounter:
    model: Any = CountedModel("held", held, 0, 1)
    some: dict[str, Any] = {"inline_bytes_max": 0, "token_budget_ms": 10_000, "threads": 1} | changes
    return TokenCounter(TokenSettings(**some), Tokenizers({"known": model}), metrics)


async def test_what_waits_is_bounded_and_released(held: Held, metrics: Metrics) -> None:
    """Text for the slower library weighs eightfold."""
    weight = {"fastokens": 1, "tokenizers": 8}[held.engine]
    counter = holding(held, metrics, waiting_bytes_max=64 * 1024)
    half = 32 * 1024 // weight - TEXT_BYTES
    waiting = [asyncio.ensure_future(count_of(counter, Prompt((letter * half,)))) for letter in "ab"]
    await until(lambda: held.calls == 1 and counter.waiting_bytes == 64 * 1024)
    assert (await count_of(counter, Prompt(("abcd",)))).source is ESTIMATED
    assert value(metrics, "extproc_token_estimates_total", reason="busy") == 1
    assert value(metrics, "extproc_token_waiting_bytes") == 64 * 1024
    held.go.set()
    assert await asyncio.gather(*waiting) == [TokenCount(1, True, COUNTED)] * 2
    await until(lambda: counter.waiting_bytes == 0)
    counter.close()


async def test_a_caller_that_goes_away_releases_its_place_and_does_no_harm(held: Held, metrics: Metrics) -> None:
    counter = holding(held, metrics)
    running = asyncio.ensure_future(count_of(counter, Prompt(("ab",))))
    await until(lambda: held.calls == 1)
    at_work = counter.waiting_bytes
    queued = asyncio.ensure_future(count_of(counter, Prompt(("abcd",))))
    await until(lambda: counter.waiting_bytes > at_work)
    queued.cancel()
    running.cancel()
    await asyncio.gather(queued, running, return_exceptions=True)
    assert counter.waiting_bytes == at_work, "what a thread is at is still held"
    held.go.set()
    await until(lambda: counter.waiting_bytes == 0)
    assert held.calls == 1
    assert await count_of(counter, Prompt(("a",))) == TokenCount(1, True, COUNTED)
    counter.close()


async def test_over_its_budget_a_count_is_estimated_and_told_later(held: Held, metrics: Metrics) -> None:
    counter = holding(held, metrics, token_budget_ms=0)
    told: list[TokenCount] = []
    waiting = counter.count("known", Prompt(("abcd" * 25,)), 200, told.append)
    assert not isinstance(waiting, CountedPrompt)
    assert (await waiting).count == TokenCount(23, False, ESTIMATED)
    assert value(metrics, "extproc_token_estimates_total", reason="late") == 1
    assert told == []
    held.go.set()
    await until(lambda: told)
    assert told == [TokenCount(1, True, COUNTED)]
    assert value(metrics, "extproc_token_counts_total", source="counted") == 1
    counter.close()


async def test_the_loop_runs_while_a_thread_counts(held: Held, metrics: Metrics) -> None:
    counter = holding(held, metrics)
    counting = asyncio.ensure_future(count_of(counter, Prompt(("a",))))
    await until(lambda: held.calls == 1)
    assert (await count_of(counter, Prompt(token_ids=1))).tokens == 1
    held.go.set()
    assert (await counting).exact
    counter.close()


async def test_closing_ends_what_waits_with_an_estimate(held: Held, metrics: Metrics) -> None:
    counter = holding(held, metrics)
    running, queued = (asyncio.ensure_future(count_of(counter, Prompt((text,)))) for text in ("ab", "cd"))
    await until(lambda: held.calls == 1)
    counter.close()
    assert (await queued).source is ESTIMATED
    held.go.set()
    assert (await running).source is COUNTED
    assert (await count_of(counter, Prompt(("ef",)))).source is ESTIMATED


class Broken:
    """An encoder with a fault of ours."""

    engine, reason = "fastokens", "test"

    def counts(self, texts: Sequence[str], add_special_tokens: bool) -> list[int]:  # noqa: ARG002
        if texts is WARMING:
            return [1]
        msg = "broken"
        raise RuntimeError(msg)


@pytest.mark.usefixtures("where")
async def test_a_fault_of_ours_is_an_estimate(metrics: Metrics) -> None:
    broken: Any = CountedModel("broken", Broken(), 0, 1)
    counter = TokenCounter(PATIENT, Tokenizers({"known": broken}), metrics)
    assert (await count_of(counter, Prompt(("abcd" * 25,)))).source is ESTIMATED
    assert value(metrics, "extproc_errors_total", where="tokens") == 1
    counter.close()


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


async def test_text_that_can_never_fit_is_not_called_waiting(held: Held, metrics: Metrics) -> None:
    counter = holding(held, metrics, waiting_bytes_max=64 * 1024)
    assert (await count_of(counter, Prompt(("b" * 64 * 1024,)))).source is ESTIMATED
    assert value(metrics, "extproc_token_estimates_total", reason="too_long") == 1
    counter.close()


async def test_many_small_texts_weigh_more_than_their_bytes(held: Held, metrics: Metrics) -> None:
    counter = holding(held, metrics, waiting_bytes_max=64 * 1024)
    assert (await count_of(counter, Prompt(("b",) * (64 * 1024 // TEXT_BYTES)))).source is ESTIMATED
    assert held.calls == 0
    counter.close()


async def test_a_chat_of_too_much_text_is_not_rendered(tokenizers: Tokenizers, metrics: Metrics) -> None:
    counter = TokenCounter(TokenSettings(chat_bytes_max=1024, token_budget_ms=10_000), tokenizers, metrics)
    assert (await count_of(counter, Prompt(chat=said("b" * 1024)))).source is COUNTED
    assert (await count_of(counter, Prompt(chat=said("b" * 1025)))).source is ESTIMATED
    assert value(metrics, "extproc_token_estimates_total", reason="too_long") == 1
    counter.close()


async def test_media_do_not_weigh(held: Held, metrics: Metrics) -> None:
    """An image may have megabytes, and nobody encodes them."""
    counter = holding(held, metrics, waiting_bytes_max=64 * 1024)
    part = Part(type=Raw(b'"image_url"'), image_url=Raw(b'"' + b"x" * 2**20 + b'"'))
    counting = asyncio.ensure_future(count_of(counter, Prompt(chat=Chat((Message("user", ["hi", part]),)))))
    await until(lambda: held.calls == 1)
    assert counter.waiting_bytes < 64 * 1024
    held.go.set()
    assert (await counting).source is COUNTED
    counter.close()


async def test_a_failing_template_of_one_model_does_not_silence_anothers(tmp_path: Path, metrics: Metrics) -> None:
    broken = {name: write(tmp_path / name, "{{ raise_exception('no') }}") for name in ("one", "two")}
    counter = TokenCounter(PATIENT, loaded(**broken), metrics)
    with capture_logs() as logs:
        for model in ("one", "one", "two"):
            await count_of(counter, Prompt(chat=Chat(())), model)
            await count_of(counter, Prompt(chat=said("a")), model)
    assert [one["tokenizer"] for one in logs] == [str(broken["one"]), str(broken["two"])]
    assert all("refuses the chat: no" in one["fault"] for one in logs), "and not that a client sent no message"
    counter.close()


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(("",) * 50_000, prompts=50_000),
        Prompt(("b",) * 50_000, prompts=50_000),
        Prompt(chat=Chat((Message("user", [""] * 50_000),))),
        Prompt(chat=Chat((Message("user", [Part()] * 50_000),))),
        Prompt(chat=Chat((Message("user", [Part("b")] * 50_000),))),
        Prompt(chat=Chat((Message(),) * 50_000)),
        Prompt(chat=Chat((Message("user", "b"),), tools=Raw(b"[" + b"1.5," * 50_000 + b"1]"))),
        Prompt(chat=Chat((Message("assistant", "b", tool_calls=Raw(b"[" + b"{}," * 50_000 + b"1]")),))),
        Prompt(chat=Chat((Message("user", "b"),), documents=Raw(b"[" + b"[]," * 50_000 + b"1]"))),
    ],
)
@pytest.mark.parametrize("model", ["known", "other"])
def test_many_small_things_are_not_gone_through(tokenizers: Tokenizers, prompt: Prompt, model: str) -> None:
    """A body of 1 MB held the event loop for up to two seconds."""
    counter = TokenCounter(PATIENT, tokenizers, Metrics())
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        found = counter.count(model, prompt, 200_000, nobody)
    finally:
        sys.setprofile(None)
    assert isinstance(found, CountedPrompt), "nor is a thread asked"
    assert (found.count.source, found.count.exact) == (ESTIMATED, False)
    assert calls < 200_000, "one for each length, and a few for each of the first ones, which the blocks are made of"
    counter.close()


@pytest.mark.parametrize("text", ["b", "b" * 9000, "b" * (READ_INLINE_BYTES_MAX + 1)])
async def test_what_waits_holds_nothing_of_the_body(held: Held, metrics: Metrics, text: str) -> None:
    body = b'{"messages": [{"role": "user", "name": "x", "content": [{"type": "text", "text": "%s"},' % text.encode()
    body += b'{"type": "image_url", "image_url": "%s"}]}], "model": "known", "tools": null}' % (b"i" * 2**20)
    before = sys.getrefcount(body)
    parsed = openai.parse(Endpoint.CHAT, body, 1000)
    assert isinstance(parsed, openai.ParsedBody)
    counter = holding(held, metrics, waiting_bytes_max=2**20, token_budget_ms=0)
    told: list[TokenCount] = []
    waiting = counter.count("known", parsed.prompt, len(body), told.append)
    assert not isinstance(waiting, CountedPrompt)
    await waiting
    del parsed, waiting
    assert sys.getrefcount(body) == before
    held.go.set()
    await until(lambda: told)
    assert told[0].tokens == 1 + 4 + PATIENT.image_tokens
    counter.close()


async def test_prompts_of_a_shape_that_nobody_knows_are_not_exact(counter: TokenCounter) -> None:
    assert await count_of(counter, Prompt(as_usual=False)) == TokenCount(0, False, COUNTED)
    assert await count_of(counter, Prompt()) == TokenCount(0, False, COUNTED)


async def test_long_prompts_do_not_teach(counter: TokenCounter, metrics: Metrics) -> None:
    await count_of(counter, Prompt(("b" * (READ_INLINE_BYTES_MAX + 1),)))
    assert value(metrics, "extproc_token_estimate_error_ratio_count") == 0


async def test_a_late_failure_is_not_told_and_a_late_fault_is_counted(metrics: Metrics) -> None:
    held = Held()
    held.tokens = None
    counter = holding(held, metrics, token_budget_ms=0)
    told: list[TokenCount] = []
    waiting = counter.count("known", Prompt(("abcd",)), 100, told.append)
    assert not isinstance(waiting, CountedPrompt)
    await waiting
    held.go.set()
    await until(lambda: counter.waiting_bytes == 0)
    held.tokens = 1
    waiting = counter.count("known", Prompt(("efgh",)), 100, nobody)
    assert not isinstance(waiting, CountedPrompt)
    await waiting
    await until(lambda: value(metrics, "extproc_errors_total", where="tokens") == 1)
    assert told == []
    counter.close()


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


raws = st.sampled_from(
    [b"", b"null", b'"x"', b"7", b"[]", b'[{"function": {"name": "f", "arguments": "{}"}}]', b"{", b"\xff"]
)
messages = st.builds(
    Message,
    role=st.sampled_from([None, "user", "assistant", "tool", "\ud800"]),
    content=st.none() | st.text(st.characters(codec=None), max_size=30),
    tool_calls=raws.map(Raw),
    reasoning=raws.map(Raw),
)
chats = st.builds(
    Chat,
    messages=st.lists(messages, max_size=4).map(tuple),
    tools=raws.map(Raw),
    documents=raws.map(Raw),
    template_kwargs=raws.map(Raw),
    add_generation_prompt=st.booleans(),
    continue_final_message=st.booleans(),
    add_special_tokens=st.booleans(),
)
prompts = st.builds(
    Prompt,
    texts=st.lists(st.text(st.characters(codec=None), max_size=30), max_size=4).map(tuple),
    token_ids=st.integers(0, 10),
    chat=st.none() | chats,
    media=st.builds(Media, st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)),
    prompts=st.integers(1, 3),
)


@settings(deadline=None, max_examples=150)
@given(
    prompt=prompts,
    model=st.sampled_from(["known", "other", "", "\ud800"]),
    inline_bytes_max=st.sampled_from([-1, READ_INLINE_BYTES_MAX]),
)
def test_counting_never_raises(tokenizers: Tokenizers, prompt: Prompt, model: str, inline_bytes_max: int) -> None:
    metrics = Metrics()
    counter = TokenCounter(PATIENT, tokenizers, metrics)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(counter_module, "READ_INLINE_BYTES_MAX", inline_bytes_max)
        count = asyncio.run(count_of(counter, prompt, model))
    assert count.tokens >= prompt.token_ids
    assert not (count.exact and (count.source is ESTIMATED or prompt.media))
    assert value(metrics, "extproc_errors_total", where="tokens") == 0
    counter.close()
