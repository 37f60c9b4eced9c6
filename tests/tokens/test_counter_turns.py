import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.request import TokenCount
from extproc.ops.metrics import Metrics
from extproc.prompt import Chat, Prompt
from extproc.tokens.counter import TokenCounter
from extproc.tokens.loading import CountedModel, Tokenizers
from extproc.tokensettings import TokenSettings
from tests.tokens.chatml import END, START, loaded, said, write
from tests.tokens.counting import (
    CACHED,
    COUNTED,
    FOX,
    PATIENT,
    Recording,
    count_of,
    value,
)


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


@settings(deadline=None, max_examples=30)
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
