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
from bench.tokens.lag import TICK_S, Lags, ticking
from bench.tokens.tables import made, verdict
from bench.tokens.texts import KB, said
from extproc.core.request import TokenCount
from extproc.prompt import Chat, CountedPrompt, Prompt
from extproc.tokens.loading import CountedModel

MB: Final = 1000 * KB
_MESSAGES: Final = 50_000
_DEPTH: Final = 10_000
_chance = random.Random(3)


def _random_unicode() -> str:
    # No surrogates, and about 1 MB: most characters have 4 bytes.
    return "".join(chr(_chance.randrange(0xE000, 0x110000)) for _ in range(MB // 4))


INPUTS: Final[dict[str, Callable[[], Prompt]]] = {
    "1 MB of a": lambda: Prompt(("a" * MB,)),
    "1 MB of blanks": lambda: Prompt((" " * MB,)),
    "1 MB of line breaks": lambda: Prompt(("\n" * MB,)),
    "1 MB of NUL": lambda: Prompt(("\0" * MB,)),
    "1 MB of !?": lambda: Prompt(("!?" * (MB // 2),)),
    "100,000 combining marks": lambda: Prompt(("e" + "\u0301" * 100_000,)),
    "1 MB of base64": lambda: Prompt((base64.b64encode(_chance.randbytes(MB * 3 // 4)).decode(),)),
    "1 MB of random letters": lambda: Prompt(("".join(_chance.choices("abcdefghijklmnopqrstuvwxyz", k=MB)),)),
    "1 MB of random characters": lambda: Prompt((_random_unicode(),)),
    f"{_MESSAGES:,} messages": lambda: Prompt(chat=said(["Hi."] * _MESSAGES)),
    f"tools nested {_DEPTH:,} deep": lambda: Prompt(
        chat=Chat(said(["Hi."]).messages, tools=Raw(b"[" * _DEPTH + b"]" * _DEPTH))
    ),
}


@dataclass(frozen=True, slots=True)
class Felt:
    """What became of one prompt."""

    answer_s: float
    count: TokenCount
    late: tuple[TokenCount, float] | None
    """The count, if it came after all, and when."""
    lags: Lags


def hostile(families: Sequence[Family]) -> Table:
    """Table 6."""
    table = made(
        *("prompt", "family", "library", "source"),
        right=("answer ms", "tokens", "count ms", "its tokens", "worst lag ms"),
    )
    worst = 0.0
    for name, make in INPUTS.items():
        prompt = make()
        for family in families:
            for model in family.models:
                felt = uvloop.run(_felt(model, prompt))
                lag_ms = felt.lags.quantile(1.0)
                late = ("", "") if felt.late is None else (f"{felt.late[1] * 1000:.0f}", str(felt.late[0].tokens))
                answer = f"{felt.answer_s * 1000:.1f}", str(felt.count.tokens)
                source = felt.count.source.value
                table.add_row(name, family.name, model.encoder.engine, source, *answer, *late, f"{lag_ms:.1f}")
                worst = max(worst, lag_ms)
    table.title = "6 · Odd prompts, by the default settings (20 ms for a count)"
    table.caption = verdict("the loop never later than 50 ms", worst <= 50, f"{worst:.0f}")
    return table


async def _felt(model: CountedModel, prompt: Prompt) -> Felt:
    counting = counter(model)
    late: list[tuple[TokenCount, float]] = []
    async with ticking() as lags:
        begun = time.perf_counter()
        found = counting.count(
            MODEL, prompt, 1_000_000, lambda count: late.append((count, time.perf_counter() - begun))
        )
        found = found if isinstance(found, CountedPrompt) else await found
        answer_s = time.perf_counter() - begun
        while counting.waiting_bytes:  # noqa: ASYNC110 - what a thread is still at would disturb what is measured next
            await asyncio.sleep(TICK_S)
        await asyncio.sleep(5 * TICK_S)
    counting.close()
    return Felt(answer_s, found.count, late[0] if late else None, lags)
