import asyncio
import sys
from dataclasses import replace

import pytest
from msgspec import Raw

from extproc.core.request import Endpoint, TokenCount
from extproc.gateway import openai
from extproc.ops.metrics import Metrics
from extproc.prompt import Chat, CountedPrompt, Message, Part, Prompt
from extproc.tokens.counter import READ_INLINE_BYTES_MAX, READ_INLINE_ITEMS_MAX, TEXT_BYTES, TokenCounter
from extproc.tokens.loading import CountedModel, Tokenizers
from extproc.tokensettings import TokenSettings
from tests.tokens.chatml import said
from tests.tokens.counting import (
    COUNTED,
    ESTIMATED,
    PATIENT,
    Held,
    Recording,
    count_of,
    holding,
    nobody,
    value,
)
from tests.waiting import until


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
    held.go.clear()  # else it may be counted within the budget of nothing
    waiting = counter.count("known", Prompt(("efgh",)), 100, nobody)
    assert not isinstance(waiting, CountedPrompt)
    await waiting
    held.go.set()
    await until(lambda: value(metrics, "extproc_errors_total", where="tokens") == 1)
    assert told == []
    counter.close()
