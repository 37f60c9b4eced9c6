"""Arrivals by name: `generated:NAME` from a seed, anything else from a trace's file.

The same name, seed and number give the same list on every machine. Chance comes from `random.Random(seed).random()`
alone, the one method whose sequence Python promises to keep; and what logarithms and powers give is rounded to whole
tokens and microseconds, so that the last bits of a machine's mathematics do not show.
"""

import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate, islice
from pathlib import Path
from random import Random
from typing import Final, assert_never

from extproc.core.settings import GOT_CHARS_MAX, Fault
from extproc.sim import traces
from extproc.sim.pacing import requests
from extproc.sim.profiles import WORKLOADS, Even, LogNormal, Sessions, SingleRequests
from extproc.sim.traces import BLOCK_TOKENS, Arrival

GENERATED: Final = "generated:"
REQUESTS_MAX: Final = 200_000
ANSWER_TOKEN_S: Final = 0.026
"""Assumed of the answers between turns: the pace of a node with 50 sequences, see `steptime.py`."""
FIRST_TOKEN_S: Final = 0.3
"""Assumed of the same: the wait before an answer."""
WARM_UP_US: Final = 300_000_000
"""Several of the longest pauses: after it users no longer come in step."""


def arrivals(source: str, wanted: int, seed: int) -> list[Arrival] | Fault:
    """Exactly so many arrivals, 1 to `REQUESTS_MAX`, of a generated workload or of a trace's file; or what is wrong.

    Where the file has more requests than wanted or fewer, `pacing.requests` says which are taken; the seed chooses
    where in the file it begins.
    """
    assert 1 <= wanted <= REQUESTS_MAX
    if source.startswith(GENERATED):
        name = source.removeprefix(GENERATED)
        if name in WORKLOADS:
            return generated(name, wanted, seed)
        listed = ", ".join(GENERATED + known for known in WORKLOADS)
        return Fault("--trace", f"one of {listed}, or a file", repr(source)[:GOT_CHARS_MAX])
    match traces.read(Path(source)):
        case Fault() as fault:
            return fault
        case recorded:
            return requests(recorded, wanted, start=_below(Random(seed), len(recorded)))  # noqa: S311 - no secret


def supply(source: str) -> int | Fault | None:
    """How many requests a trace's file has, `None` for what is generated; or what is wrong."""
    if source.startswith(GENERATED):
        found = arrivals(source, 1, seed=0)
        return found if isinstance(found, Fault) else None
    recorded = traces.read(Path(source))
    return recorded if isinstance(recorded, Fault) else len(recorded)


def kinds(source: str) -> tuple[str, ...]:
    """What `Arrival.kind` can be, of a generated workload or of a trace that can be read."""
    profile = WORKLOADS.get(source.removeprefix(GENERATED)) if source.startswith(GENERATED) else None
    match profile:
        case SingleRequests():
            return tuple(kind.name for kind in profile.kinds)
        case Sessions():
            return (profile.kind,)
        case None:
            recorded = traces.read(Path(source))
            return () if isinstance(recorded, Fault) else tuple(sorted({one.kind for one in recorded}))
        case other:
            assert_never(other)


def generated(name: str, wanted: int, seed: int) -> list[Arrival]:
    """Exactly so many arrivals of a workload in `WORKLOADS`, in order of time, at its own rate."""
    assert wanted >= 0
    chance = Random(seed)  # noqa: S311 - no secret
    match WORKLOADS[name]:
        case SingleRequests() as profile:
            return list(islice(_single(profile, chance), wanted))
        case Sessions() as profile:
            return list(islice(_turns(profile, chance), wanted))
        case other:
            assert_never(other)


def _below(chance: Random, number: int) -> int:
    return int(chance.random() * number)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _exponential(chance: Random, mean: float) -> float:
    return -mean * math.log(1.0 - chance.random())


def _drawn(chance: Random, spread: LogNormal | Even) -> float:
    if isinstance(spread, Even):
        return spread.least + _below(chance, spread.most - spread.least + 1)
    # Box and Muller's way to a normal quantity.
    normal = math.sqrt(-2.0 * math.log(1.0 - chance.random())) * math.cos(math.tau * chance.random())
    return min(spread.median * math.exp(spread.sigma * normal), spread.most)


def _tokens(chance: Random, spread: LogNormal | Even) -> int:
    return max(1, round(_drawn(chance, spread)))


def _pick(chance: Random, cumulative: Sequence[float]) -> int:
    """An index, as likely as its weight."""
    return min(bisect(cumulative, chance.random() * cumulative[-1]), len(cumulative) - 1)


def _single(profile: SingleRequests, chance: Random) -> Iterator[Arrival]:
    cumulative = list(accumulate(kind.share for kind in profile.kinds))
    free = 1
    for at_us in _moments(profile, chance):
        kind = profile.kinds[_pick(chance, cumulative)]
        prompt_tokens = _tokens(chance, kind.prompt_tokens)
        output_tokens = _tokens(chance, kind.output_tokens)
        blocks = tuple(range(free, free + prompt_tokens // BLOCK_TOKENS))
        free += len(blocks)
        yield Arrival(at_us / 1e6, prompt_tokens, output_tokens, blocks, kind=kind.name)


def _moments(profile: SingleRequests, chance: Random) -> Iterator[int]:
    """When requests come, in microseconds: at random, with a rate that changes between quiet times and bursts."""
    bursts = profile.bursts
    phases = [(profile.rate_per_s, 0.0)]
    if bursts is not None:
        quiet_per_s = profile.rate_per_s / (1 + (bursts.factor - 1) * bursts.lasting_s / bursts.every_s)
        quiet = (quiet_per_s, bursts.every_s - bursts.lasting_s)
        phases = [quiet, (quiet_per_s * bursts.factor, bursts.lasting_s)]
    at_us, phase = 0, 0
    end_us = None if bursts is None else _microseconds(_exponential(chance, phases[0][1]))
    while True:
        next_us = at_us + _microseconds(_exponential(chance, 1 / phases[phase][0]))
        if end_us is not None and next_us >= end_us:
            # Exponential gaps have no memory: the rest of this one is drawn anew at the next phase's rate.
            at_us, phase = end_us, 1 - phase
            end_us = at_us + _microseconds(_exponential(chance, phases[phase][1]))
            continue
        at_us = next_us
        yield at_us


@dataclass(slots=True)
class _Session:
    name: str = ""
    tokens: int = 0
    """Of the system prompt, the turns and the answers so far."""
    blocks: list[int] = field(default_factory=list)
    """The full ones of these."""


def _turns(profile: Sessions, chance: Random) -> Iterator[Arrival]:
    free = 1
    system_prompts = []
    for _ in range(profile.system_prompts):
        tokens = _tokens(chance, profile.system_tokens)
        system_prompts.append((tokens, range(free, free + tokens // BLOCK_TOKENS)))
        free += tokens // BLOCK_TOKENS
    cumulative = list(accumulate(1 / (rank + 1) for rank in range(profile.system_prompts)))
    sessions = [_Session() for _ in range(profile.at_once)]
    due = [(_first_us(profile, chance), user) for user in range(profile.at_once)]
    heapify(due)
    begun = 0
    while True:
        at_us, user = heappop(due)
        session = sessions[user]
        new_tokens = _tokens(chance, profile.new_tokens)
        output_tokens = _tokens(chance, profile.output_tokens)
        over = session.tokens + new_tokens + output_tokens > profile.context_tokens_max
        if not session.tokens or over or chance.random() * profile.turns_mean < 1:
            begun += 1
            tokens, blocks = system_prompts[_pick(chance, cumulative)]
            session = sessions[user] = _Session(f"{profile.kind}-{begun}", tokens, list(blocks))
        prompt_tokens = session.tokens + new_tokens
        session.tokens = prompt_tokens + output_tokens
        grown = session.tokens // BLOCK_TOKENS - len(session.blocks)
        session.blocks += range(free, free + grown)
        free += grown
        full = prompt_tokens // BLOCK_TOKENS
        prompt_blocks, answer_blocks = tuple(session.blocks[:full]), tuple(session.blocks[full:])
        yield Arrival(
            at_us / 1e6, prompt_tokens, output_tokens, prompt_blocks, answer_blocks, session.name, profile.kind
        )
        heappush(due, (at_us + _turn_us(profile, chance, output_tokens), user))


def _turn_us(profile: Sessions, chance: Random, output_tokens: int) -> int:
    """From a turn to the next one of the same user."""
    return _microseconds(FIRST_TOKEN_S + output_tokens * ANSWER_TOKEN_S + _drawn(chance, profile.pause_s))


def _first_us(profile: Sessions, chance: Random) -> int:
    """When a user comes first: as if all had been there for long, lest they come together."""
    at_us = -WARM_UP_US
    while at_us < 0:
        at_us += _turn_us(profile, chance, _tokens(chance, profile.output_tokens))
    return at_us
