"""What odd prompts cost, by the default settings: how soon there is an answer, and what the event loop feels of it."""

import asyncio
import base64
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import uvloop
from msgspec import Raw
from rich.table import Table

from bench.tokens.families import MODEL, Family, counter
from bench.tokens.lag import Lags, ticking
from bench.tokens.tables import made, verdict
from bench.tokens.texts import KB, said
from extproc.core.request import TokenCount
from extproc.prompt import Chat, CountedPrompt, Prompt
from extproc.tokens.loading import CountedModel

MB: Final = 1000 * KB
_WAIT_S_MAX: Final = 60.0
_MESSAGES: Final = 50_000
_DEPTH: Final = 10_000
_MESSAGE_BYTES: Final = 40
_chance = random.Random(3)


def _text(text: str) -> tuple[Prompt, int]:
    return Prompt((text,)), len(text.encode())


def _chat(chat: Chat, size: int) -> tuple[Prompt, int]:
    return Prompt(chat=chat), size


def _random_unicode() -> str:
    # No surrogates, and about 1 MB: most characters have 4 bytes.
    return "".join(chr(_chance.randrange(0xE000, 0x110000)) for _ in range(MB // 4))


INPUTS: Final[dict[str, Callable[[], tuple[Prompt, int]]]] = {
    "1 MB of a": lambda: _text("a" * MB),
    "1 MB of blanks": lambda: _text(" " * MB),
    "1 MB of line breaks": lambda: _text("\n" * MB),
    "1 MB of NUL": lambda: _text("\0" * MB),
    "1 MB of !?": lambda: _text("!?" * (MB // 2)),
    "100,000 combining marks": lambda: _text("e" + "\u0301" * 100_000),
    "1 MB of base64": lambda: _text(base64.b64encode(_chance.randbytes(MB * 3 // 4)).decode()),
    "1 MB of random letters": lambda: _text("".join(_chance.choices("abcdefghijklmnopqrstuvwxyz", k=MB))),
    "1 MB of random characters": lambda: _text(_random_unicode()),
    f"{_MESSAGES:,} messages": lambda: _chat(said(["Hi."] * _MESSAGES), _MESSAGES * _MESSAGE_BYTES),
    f"tools nested {_DEPTH:,} deep": lambda: _chat(
        Chat(said(["Hi."]).messages, tools=Raw(b"[" * _DEPTH + b"]" * _DEPTH)), 2 * _DEPTH
    ),
}


@dataclass(frozen=True, slots=True)
class Felt:
    """What became of one prompt."""

    answer_s: float
    count: TokenCount
    late: TokenCount | None
    """The count, if it came after all."""
    late_s: float
    lags: Lags


def hostile(families: Sequence[Family]) -> Table:
    """Table 6."""
    table = made(
        *("prompt", "family", "library", "source"),
        right=("answer ms", "tokens", "count ms", "its tokens", "worst lag ms"),
    )
    worst = 0.0
    for name, make in INPUTS.items():
        prompt, size = make()
        for family in families:
            for model in family.models:
                felt = uvloop.run(_felt(model, prompt, size))
                lag_ms = felt.lags.quantile(1.0)
                late = ("", "") if felt.late is None else (f"{felt.late_s * 1000:.0f}", str(felt.late.tokens))
                answer = f"{felt.answer_s * 1000:.1f}", str(felt.count.tokens)
                source = felt.count.source.value
                table.add_row(name, family.name, model.encoder.engine, source, *answer, *late, f"{lag_ms:.1f}")
                worst = max(worst, lag_ms)
    table.title = "6 · Odd prompts, by the default settings (20 ms for a count)"
    table.caption = verdict("the loop never later than 50 ms", worst <= 50, f"{worst:.0f}")
    return table


async def _felt(model: CountedModel, prompt: Prompt, size: int) -> Felt:
    counting = counter(model)
    corrected: asyncio.Future[TokenCount] = asyncio.get_running_loop().create_future()
    async with ticking() as lags:
        begun = time.perf_counter()
        found = counting.count(MODEL, prompt, size, corrected.set_result)
        found = found if isinstance(found, CountedPrompt) else await found
        answer_s = time.perf_counter() - begun
        # A thread that is not through would disturb what is measured next.
        late = await asyncio.wait_for(corrected, _WAIT_S_MAX) if counting.waiting_bytes else None
        late_s = time.perf_counter() - begun
    counting.close()
    return Felt(answer_s, found.count, late, late_s, lags)
