import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from structlog.testing import capture_logs

from extproc.core.request import TokenCount
from extproc.ops.metrics import Metrics
from extproc.prompt import Chat, CountedPrompt, Media, Message, Part, Prompt
from extproc.tokens import counter as counter_module
from extproc.tokens.counter import READ_INLINE_BYTES_MAX, TokenCounter
from extproc.tokens.loading import WARMING, CountedModel, Tokenizers
from extproc.tokensettings import TokenSettings
from tests.calls import calls_of
from tests.tokens.chatml import loaded, said, write
from tests.tokens.counting import (
    COUNTED,
    ESTIMATED,
    PATIENT,
    count_of,
    nobody,
    value,
)


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


class Broken:
    """An encoder with a fault of ours."""

    engine, reason = "fastokens", "test"

    def counts(self, texts: Sequence[str], add_special_tokens: bool) -> list[int]:  # noqa: ARG002
        if texts is WARMING:
            return [1]
        msg = "broken"
        raise RuntimeError(msg)

    def ids(self, texts: Sequence[str]) -> list[bytes]:  # noqa: ARG002
        msg = "broken"
        raise RuntimeError(msg)


@pytest.mark.usefixtures("where")
async def test_a_fault_of_ours_is_an_estimate(metrics: Metrics) -> None:
    broken: Any = CountedModel("broken", Broken(), 0, 1)
    counter = TokenCounter(PATIENT, Tokenizers({"known": broken}), metrics)
    assert (await count_of(counter, Prompt(("abcd" * 25,)))).source is ESTIMATED
    assert value(metrics, "extproc_errors_total", where="tokens") == 1
    counter.close()


async def test_a_chat_of_too_much_text_is_not_rendered(tokenizers: Tokenizers, metrics: Metrics) -> None:
    counter = TokenCounter(TokenSettings(chat_bytes_max=1024, token_budget_ms=10_000), tokenizers, metrics)
    assert (await count_of(counter, Prompt(chat=said("b" * 1024)))).source is COUNTED
    assert (await count_of(counter, Prompt(chat=said("b" * 1025)))).source is ESTIMATED
    assert value(metrics, "extproc_token_estimates_total", reason="too_long") == 1
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
    calls, found = calls_of(lambda: counter.count(model, prompt, 200_000, nobody))
    assert isinstance(found, CountedPrompt), "nor is a thread asked"
    assert (found.count.source, found.count.exact) == (ESTIMATED, False)
    assert calls < 200_000, "one for each length, and a few for each of the first ones, which the blocks are made of"
    counter.close()


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
