"""How late the event loop gets while long prompts are counted in threads, and what more threads do for more."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from statistics import median
from typing import Final

import uvloop
from rich.table import Table

from bench.tokens.families import MODEL, Family, counter
from bench.tokens.tables import made, verdict
from bench.tokens.texts import KB, FreshText
from extproc.core.request import CountSource
from extproc.prompt import CountedPrompt, Prompt
from extproc.sizes import GIB
from extproc.tokens.counter import TokenCounter
from extproc.tokens.loading import CountedModel

TICK_S: Final = 0.001
SIZE: Final = 512 * KB
TASKS: Final = 8
_TEXTS: Final = 24


class Lags:
    """How many ms later than asked for a ticker woke."""

    def __init__(self) -> None:
        self._all: list[float] = []

    def add(self, lag_s: float) -> None:
        self._all.append(lag_s * 1000)

    def quantile(self, share: float) -> float:
        ordered = sorted(self._all) or [0.0]
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    def __str__(self) -> str:
        return " / ".join(f"{self.quantile(share):.1f}" for share in (0.5, 0.99, 1.0))


@asynccontextmanager
async def ticking() -> AsyncIterator[Lags]:
    """Measure the loop until the block's end, and the wake-up that is due then."""
    lags, ended = Lags(), False

    async def tick() -> None:
        while not ended:
            begun = time.perf_counter()
            await asyncio.sleep(TICK_S)
            lags.add(time.perf_counter() - begun - TICK_S)

    task = asyncio.create_task(tick())
    await asyncio.sleep(0)  # it is to be waiting when the block begins
    try:
        yield lags
    finally:
        ended = True
        await task


def endless(text: FreshText) -> Iterator[str]:
    """Texts of `SIZE` at the speed of the fastest library: 12 MB in turn, each time with another beginning."""
    texts = [text.take(SIZE) for _ in range(_TEXTS)]
    number = 0
    while True:
        number += 1
        yield f"{number} {texts[number % _TEXTS]}"


async def keep_counting(counting: TokenCounter, texts: Iterator[str], seconds: float) -> float:
    """Count prompts in `TASKS` tasks, each one the next as soon as it has a count. Returns MB/s."""
    begun = time.perf_counter()
    done = 0

    async def again_and_again() -> None:
        nonlocal done
        while time.perf_counter() < begun + seconds:
            found = counting.count(MODEL, Prompt((next(texts),)), 1_000_000, lambda _: None)
            found = found if isinstance(found, CountedPrompt) else await found
            assert found.count.source is CountSource.COUNTED, "all can wait, and none comes twice"
            done += SIZE

    await asyncio.gather(*(again_and_again() for _ in range(TASKS)))
    return done / 1e6 / (time.perf_counter() - begun)


def loop_lag(families: Sequence[Family], text: FreshText, seconds: float) -> Table:
    """Table 4, first half."""
    table = made("family", "library", right=("idle: p50 / p99 / max ms", "counting: p50 / p99 / max ms", "MB/s"))
    worst = 0.0
    for family in families:
        for model in family.models:
            idle, busy, rate = uvloop.run(_lags(model, endless(text), seconds))
            table.add_row(family.name, model.encoder.engine, str(idle), str(busy), f"{rate:.1f}")
            worst = max(worst, busy.quantile(0.99))
    table.title = f"4a · Lag of a loop (uvloop) while {TASKS} prompts of 512 KB are being counted by 2 threads"
    table.caption = verdict("p99 at most 5 ms", worst <= 5, f"{worst:.1f}")
    return table


def threads(families: Sequence[Family], text: FreshText, seconds: float, rounds: int) -> Table:
    """Table 4, second half."""
    table = made(
        "family", "library", right=("1 thread, 1 core: MB/s", "2 threads, 2 cores: MB/s", "ratio", "of the cores got")
    )
    table.title = "4b · The same, more cores"
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        table.caption = "not measured: no two cores that this system lets choose"
        return table
    least = float("inf")
    for family in families:
        for model in family.models:
            found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
            for _ in range(rounds):
                for number, rates in found.items():
                    with _on(cores[:number]):
                        rates.append(uvloop.run(_rate(model, endless(text), seconds, number)))
            (one, got_one), (two, got_two) = (map(median, zip(*found[number], strict=True)) for number in found)
            got = f"{got_one:.1f} of 1, {got_two:.1f} of 2"
            table.add_row(family.name, model.encoder.engine, f"{one:.1f}", f"{two:.1f}", f"{two / one:.2f}", got)
            least = min(least, two / one)
    table.caption = (
        verdict("at least 1.6 times", least >= 1.6, f"{least:.2f}")
        + ".[/] Where a row got less than its cores, others had them: the ratio is then not ours"
    )
    return table


def patient(model: CountedModel, threads: int = 2) -> TokenCounter:
    """A counter that all prompts can wait for."""
    return counter(model, token_budget_ms=10_000.0, waiting_bytes_max=GIB, threads=threads)


async def _lags(model: CountedModel, texts: Iterator[str], seconds: float) -> tuple[Lags, Lags, float]:
    next(texts)
    async with ticking() as idle:
        await asyncio.sleep(seconds / 2)
    counting = patient(model)
    async with ticking() as busy:
        rate = await keep_counting(counting, texts, seconds)
    counting.close()
    return idle, busy, rate


async def _rate(model: CountedModel, texts: Iterator[str], seconds: float, number: int) -> tuple[float, float]:
    """MB/s, and the seconds of CPU that this process had in one."""
    next(texts)
    counting = patient(model, number)
    begun, cpu = time.perf_counter(), time.process_time()
    rate = await keep_counting(counting, texts, seconds)
    got = (time.process_time() - cpu) / (time.perf_counter() - begun)
    counting.close()
    return rate, got


@contextmanager
def _on(cores: Sequence[int]) -> Iterator[None]:
    """This thread, and those that it starts, on these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
