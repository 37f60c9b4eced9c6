"""What is sent to the real vLLM, and what the clients saw of it: who waits for a first token, who gets tokens."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from bench.realvllm.engine import KV_BLOCK_TOKENS
from bench.realvllm.kvcache import Heard, found_tokens
from bench.realvllm.listening import KeepingRouter
from bench.realvllm.model import MODEL
from bench.realvllm.recording import Recording

IDLE_S: Final = 2.0
POLL_S: Final = 0.05
SAID_S: Final = 0.3
"""After an answer, until its blocks have been published; and after a report, until the blocks have come behind it."""
_TOKEN_IDS: Final = range(1000, 100_000)


@dataclass(slots=True)
class Answers:
    """Sums over the answers since vLLM's start."""

    asked: int = 0
    failed: int = 0
    """Not 200, or broken off by somebody else than the client."""
    answered: int = 0
    """That an answer began for."""
    chosen: int = 0
    """Of these, with a header that names the node that extproc chose."""
    first_tokens: int = 0
    first_tokens_s: float = 0.0
    """Of these, from asking to the first token, as the client saw it."""
    prompt_tokens: int = 0
    """Of requests that got a first token."""
    cached_tokens: int = 0
    prompt_tokens_left: int = 0
    """Of requests that were aborted before a first token: vLLM may have looked them up or not."""
    output_tokens: int = 0


@dataclass(slots=True)
class Clients:
    """Asks for completions with prompts of token ids, so that their lengths are known."""

    session: aiohttp.ClientSession
    url: str
    recording: Recording
    clock: Callable[[], float]
    router: KeepingRouter
    heard: Heard
    answers: Answers = field(default_factory=Answers)
    pending: int = 0
    """Asked, and without a first token."""
    decoding: int = 0

    async def ask(self, prompt: list[int], output_tokens: int) -> int:
        """One request; how many of its tokens vLLM found in its cache. Cancelling aborts it."""
        body = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sums, asked_s = self.answers, self.clock()
        got_first, cached = False, 0
        self._count(pending=1)
        sums.asked += 1
        try:
            async with self.session.post(f"{self.url}/v1/completions", json=body) as response:
                sums.answered += 1
                sums.chosen += "x-extproc-node" in response.headers
                usage: dict[str, Any] = {}
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    told = json.loads(line[6:])
                    usage = told.get("usage") or usage
                    if told["choices"] and not got_first:
                        got_first = True
                        self._count(pending=-1, decoding=1)
                        sums.first_tokens += 1
                        sums.first_tokens_s += self.clock() - asked_s
                sums.failed += not usage
                sums.output_tokens += usage.get("completion_tokens", 0)
                cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                sums.cached_tokens += cached
        except aiohttp.ClientError:
            sums.failed += 1
        finally:
            if got_first:
                sums.prompt_tokens += len(prompt)
                self._count(decoding=-1)
            else:
                sums.prompt_tokens_left += len(prompt)
                self._count(pending=-1)
        return cached

    async def ask_again(self, prompt: list[int]) -> None:
        """A request alone, beside what the agent told of the cache by then."""
        await asyncio.sleep(SAID_S)
        await self.looked()
        await asyncio.sleep(SAID_S)
        expected = found_tokens(prompt, self.router.held, KV_BLOCK_TOKENS)
        asked_s = self.clock()
        cached = await self.ask(prompt, 2)
        told = {"prompt_tokens": len(prompt), "expected": expected, "cached": cached}
        self.recording.repeats.append((asked_s, told))
        self.heard.repeats.append((asked_s, prompt, cached))

    async def looked(self) -> None:
        """Wait until the agent has told of a look that begins from here on."""
        since_s = self.clock()
        while True:
            await asyncio.sleep(POLL_S)
            heard_s, fields = self.recording.snapshots[-1]
            if heard_s - fields["sample_age_s"] >= since_s:
                return

    def told(self) -> None:
        """Put the sums into the recording."""
        sums = {name: getattr(self.answers, name) for name in Answers.__slots__}
        self.recording.answers.append((self.clock(), sums | {"first_tokens_s": round(self.answers.first_tokens_s, 3)}))

    def _count(self, *, pending: int = 0, decoding: int = 0) -> None:
        self.pending += pending
        self.decoding += decoding
        self.recording.clients.append((self.clock(), {"pending": self.pending, "decoding": self.decoding}))


async def idle(_: Clients) -> None:
    """Nothing."""
    await asyncio.sleep(IDLE_S)


async def single(clients: Clients) -> None:
    """One request after another."""
    for number in range(2):
        await clients.ask(_tokens(f"single {number}", 200), 40)


async def shared(clients: Clients) -> None:
    """Prompts that begin alike, the first one alone, so that the others find its blocks."""
    beginning = _tokens("shared", 512)
    await clients.ask(beginning + _tokens("first", 40), 16)
    await _together(clients.ask(beginning + _tokens(f"next {number}", 40), 32) for number in range(5))


async def burst(clients: Clients) -> None:
    """More than the cache holds: some wait, and some of those that run are preempted."""
    await _together(clients.ask(_tokens(f"burst {number}", 250), 70) for number in range(28))


async def aborted(clients: Clients) -> None:
    """A burst of which clients leave, some before and some after their first token."""
    enough = clients.answers.first_tokens + 8
    asking = [asyncio.create_task(clients.ask(_tokens(f"left {number}", 250), 50)) for number in range(24)]
    while True:
        await asyncio.sleep(POLL_S)
        if clients.answers.first_tokens >= enough:
            break
    for leaving in (*asking[:4], *asking[-4:]):
        leaving.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


async def filling(clients: Clients) -> None:
    """One after another, more than the cache holds: the oldest blocks are thrown out."""
    for number in range(9):
        await clients.ask(_tokens(f"filling {number}", 480), 2)


async def repeated(clients: Clients) -> None:
    """Prompts from before, whole, longer, and cut short, and one that was never there."""
    shared = _tokens("shared", 512)
    for prompt in (
        *(_tokens(f"filling {number}", 480) for number in (8, 5, 0)),
        shared + _tokens("next 0", 40),
        shared + _tokens("other", 40),
        _tokens("filling 7", 480)[:320],
        _tokens("filling 6", 480) + _tokens("longer", 100),
        _tokens("never", 200),
        _tokens("single 0", 200),
        _tokens("filling 8", 480),
    ):
        await clients.ask_again(prompt)


PHASES: Final[tuple[Callable[[Clients], Awaitable[None]], ...]] = (idle, single, shared, burst, idle, aborted, idle)
"""What is sent before the restart, in this order."""
AFTERWARDS: Final[tuple[Callable[[Clients], Awaitable[None]], ...]] = (single, shared, filling, repeated)
"""And after it."""


def _tokens(name: str, count: int) -> list[int]:
    return random.Random(name).choices(_TOKEN_IDS, k=count)


async def _together(asking: Any) -> None:
    await asyncio.gather(*asking)
