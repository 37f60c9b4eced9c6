"""What a count costs: text by its length, a short chat and its parts, the next turn of a long chat."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

from rich.table import Table

from bench.tokens.families import MODEL, Family, counter
from bench.tokens.tables import made, verdict
from bench.tokens.texts import KB, FreshText, said
from extproc.core.request import CountSource
from extproc.ops.metrics import Metrics
from extproc.prompt import Chat, CountedPrompt, Prompt
from extproc.tokens.blocks import blocks_of
from extproc.tokens.counter import TokenCounter
from extproc.tokens.estimator import LEARNED_ALL, LEARNED_EVERY, Estimator
from extproc.tokens.loading import CountedModel
from extproc.tokens.pieces import Cut, KnownPieces, cut
from extproc.tokens.template import Rendered
from extproc.tokensettings import TokenSettings

_CALLS: Final = {1 * KB: 100, 8 * KB: 20, 64 * KB: 5, 512 * KB: 1}
_MESSAGES: Final = 3
_TURNS: Final = 20
_LONG: Final = 40 * KB
_SEED: Final = 1
_PAUSE_S: Final = 0.002
"""Threads are to be done with what they had, and the processor's caches as cold for the parts as for the whole."""


class Parts(NamedTuple):
    """µs of CPU of the steps of one count: the rooms that `TokenCounter.count` goes through."""

    blocks: float
    render: float
    cut_and_look_up: float
    encode: float
    remember: float
    learn: float


def exact_counts(families: Sequence[Family], text: FreshText, rounds: int) -> Table:
    """Table 1."""
    table = made("family", "text", right=("fastokens µs/KB", "tokenizers µs/KB", "ratio"))
    worst = 0.0
    for family in families:
        for size, calls in _CALLS.items():
            found: dict[str, list[float]] = {"fastokens": [], "tokenizers": []}
            for _ in range(rounds):
                texts = [text.take(size) for _ in range(calls)]
                for model in family.models:
                    found[model.encoder.engine].append(_encoding(model, texts) / calls / (size / KB))
            per_kb = {engine: median(us) for engine, us in found.items() if us}
            fast, slow = per_kb.get("fastokens"), per_kb["tokenizers"]
            shown = ("", f"{slow:.0f}", "") if fast is None else (f"{fast:.1f}", f"{slow:.0f}", f"{slow / fast:.0f}")
            table.add_row(family.name, f"{size // KB} KB", *shown)
            if size >= 8 * KB:
                worst = max(worst, slow if fast is None else fast)
    table.title = "1 · Exact count of a text, CPU"
    table.caption = verdict("at most 12 µs/KB from 8 KB up, as loaded", worst <= 12, f"{worst:.1f}")
    return table


async def short_chats(families: Sequence[Family], text: FreshText, chats: int) -> Table:
    """Table 2."""
    table = _parts_table("family", "library")
    worst = 0.0
    for family in families:
        for model in family.models:
            counting, steps = await _started(model, text)
            wholes, parts = [], []
            for _ in range(chats):
                wholes.append(await _whole(counting, text.chat(_MESSAGES, KB)))
                parts.append(steps.of(text.chat(_MESSAGES, KB)))
            counting.close()
            whole = median(wholes)
            table.add_row(family.name, model.encoder.engine, *_shown(whole, _medians(parts)))
            if model is family.loaded:
                worst = max(worst, whole)
    table.title = f"2 · A chat of {_MESSAGES} messages and 1 KB, CPU in µs"
    table.caption = (
        verdict("at most 60 µs, as loaded", worst <= 60, f"{worst:.0f}")
        + f".[/] Medians: every {LEARNED_EVERY}th chat learns too, and takes longer"
    )
    return table


async def growing_chats(families: Sequence[Family], text: FreshText, chats: int) -> Table:
    """Table 3."""
    table = _parts_table("family", "library", "turn 20")
    least = float("inf")
    for family in families:
        for model in family.models:
            cold, cold_parts = await _last_turns(model, text, chats, warm=False)
            warm, warm_parts = await _last_turns(model, text, chats, warm=True)
            least = min(least, cold / warm)
            table.add_row(family.name, model.encoder.engine, "from scratch", *_shown(cold, cold_parts))
            table.add_row("", "", "after turn 19", *_shown(warm, warm_parts))
            both = zip((cold, *cold_parts), (warm, *warm_parts), strict=True)
            table.add_row("", "", "ratio", *(f"{one / other:.1f}" for one, other in both), "")
            table.add_section()
    table.title = f"3 · Turn {_TURNS} of a chat, {2 * _TURNS - 1} messages and 40 KB, CPU in µs"
    table.caption = (
        verdict("at least 5 times less after turn 19", least >= 5, f"{least:.1f}")
        + ".[/] All but encoding is done of the whole chat at every turn, and fast encoding is no more than that"
    )
    return table


async def _last_turns(model: CountedModel, text: FreshText, chats: int, *, warm: bool) -> tuple[float, Parts]:
    """The whole and the parts, of different chats: nothing is to remember the other's text."""
    counting, steps = await _started(model, text)
    wholes, parts = [], []
    for _ in range(chats):
        one, other = (text.chat(2 * _TURNS - 1, _LONG) for _ in range(2))
        if warm:
            await _whole(counting, _without_last_turn(one))
        await asyncio.sleep(_PAUSE_S)
        wholes.append(await _whole(counting, one))
        if warm:
            steps.of(_without_last_turn(other))
        await asyncio.sleep(_PAUSE_S)
        parts.append(steps.of(other))
    counting.close()
    return median(wholes), _medians(parts)


async def _started(model: CountedModel, text: FreshText) -> "tuple[TokenCounter, _Steps]":
    """A counter and one in single steps, which have learned what they learn first: after that they learn seldom."""
    counting, steps = counter(model, token_budget_ms=10_000.0), _Steps(model)
    for _ in range(LEARNED_ALL):
        await _whole(counting, text.chat(_MESSAGES, KB))
        steps.of(text.chat(_MESSAGES, KB))
    return counting, steps


def _without_last_turn(chat: Chat) -> Chat:
    return said([str(message.content) for message in chat.messages[:-2]])


async def _whole(counting: TokenCounter, chat: Chat) -> float:
    """µs of CPU of the process, whichever thread it was."""
    prompt = Prompt(chat=chat)
    begun = time.process_time()
    found = counting.count(MODEL, prompt, 1_000_000, lambda _: None)
    found = found if isinstance(found, CountedPrompt) else await found
    spent = time.process_time() - begun
    assert found.count.source is not CountSource.ESTIMATED
    return spent * 1e6


class _Steps:
    """A counter in single steps."""

    def __init__(self, model: CountedModel) -> None:
        assert model.template is not None, "a family with chats"
        self._model = model
        self._template = model.template
        settings = TokenSettings()
        self._inline_bytes_max = settings.inline_bytes_max
        self._known = KnownPieces(settings.cache_bytes_max)
        self._estimator = Estimator(settings)
        self._metrics = Metrics()
        self._thread = ThreadPoolExecutor(1)

    def of(self, chat: Chat) -> Parts:
        """Count a chat step by step. Each one finds the processor's caches full of the others, as in `serve`."""
        prompt, model, clock = Prompt(chat=chat), self._model, time.process_time
        at = [clock()]
        blocks_of(MODEL, prompt, _SEED)
        at.append(clock())
        rendered = self._template.render(chat, datetime.now())  # noqa: DTZ005 - the clock on the wall
        at.append(clock())
        assert isinstance(rendered, Rendered)
        found = self._known.look_up(cut(rendered.text, model.boundary), _SEED)
        at.append(clock())
        counts = self._counts(found)
        at.append(clock())
        assert counts is not None
        self._known.keep(found.keys, counts)
        self._metrics.tokens.counted(CountSource.COUNTED, 0.0)
        at.append(clock())
        self._estimator.learn(model.name, prompt, found.known_tokens + sum(counts))
        at.append(clock())
        return Parts(*((end - start) * 1e6 for start, end in pairwise(at)))

    def _counts(self, found: Cut) -> list[int] | None:
        """Long text in a thread, as the counter does: from this one `tokenizers` takes longer for it."""
        if found.new_bytes <= self._inline_bytes_max:
            return self._model.encoder.counts(found.pieces, add_special_tokens=False)
        return self._thread.submit(self._model.encoder.counts, found.pieces, add_special_tokens=False).result()


def _encoding(model: CountedModel, texts: Sequence[str]) -> float:
    """µs of CPU, likewise."""
    begun = time.process_time()
    for text in texts:
        assert model.encoder.counts([text], add_special_tokens=False) is not None
    return (time.process_time() - begun) * 1e6


def _medians(found: Sequence[Parts]) -> Parts:
    return Parts(*(median(column) for column in zip(*found, strict=True)))


def _shown(whole: float, parts: Parts) -> list[str]:
    return [f"{us:.0f}" for us in (whole, *parts, whole - sum(parts))]


def _parts_table(*left: str) -> Table:
    return made(*left, right=("whole", *(name.replace("_", " ") for name in Parts._fields), "rest"))
