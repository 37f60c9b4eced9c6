"""The simulator's generated workloads as requests of real clients: texts for its blocks, real answers between turns.

An arrival's blocks become text, 64 words of one token each, so prompts share what the arrivals share. A later turn of a
session repeats all before it, the answers included, which are known beforehand: an emulated engine's answer is a
function of its prompt.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from bench.engines.workloads import MODEL, Timed
from bench.routers.engines import settings
from bench.strategies.cases import SETTINGS
from bench.strategies.running import arrivals_of, capacity_of
from extproc.core.request import Endpoint
from extproc.sim import pseudotokens
from extproc.sim.apirequest import ApiRequest, parse
from extproc.sim.pacing import scaled
from extproc.sim.saturation import REQUESTS_PER_NODE
from extproc.sim.sequences import Sequence as Computed
from extproc.sim.sequences import sequences_of
from extproc.sim.traces import BLOCK_TOKENS, Arrival

WORKLOADS: Final = ("agents", "heavy")
NODES: Final = 8
_ENGINE: Final = settings("any", 1.0)
_OWN: Final = 1 << 62
"""Seeds of texts that no block stands for."""


@cache
def capacity_per_s(workload: str, seed: int) -> float:
    """Requests per second that the eight engines carry at speed 1, as `extproc simulate` measures it."""
    return capacity_of(SETTINGS[workload].trace, REQUESTS_PER_NODE * NODES, seed, "even")


def arrivals(workload: str, requests: int, load: float, seed: int, speed: float = 1.0) -> list[Arrival]:
    """So many arrivals at this share of what eight engines of this speed carry; the same arguments give the same."""
    rate = load * capacity_per_s(workload, seed) * speed
    return scaled(arrivals_of(SETTINGS[workload].trace, requests, seed), rate)


def written(come: Sequence[Arrival]) -> list[Timed]:
    """Requests for arrivals in order of time."""
    sessions: dict[str, _Session] = {}
    found = []
    for number, one in enumerate(come):
        session = sessions.setdefault(one.session, _Session()) if one.session else _Session()
        session.messages.append({"role": "user", "content": _new_text(one, number, session)})
        session.tokens = one.prompt_tokens + one.output_tokens
        body = json.dumps(
            {"model": MODEL, "messages": session.messages, "max_tokens": one.output_tokens, "stream": True}
        ).encode()
        computed = _computed(body, number)
        session.messages.append({"role": "assistant", "content": computed.choice.text})
        name = one.session or f"single-{number}"
        found.append(Timed(number, one.at_s, one.kind, name, body, computed.request))
    return found


@dataclass(slots=True)
class _Session:
    messages: list[dict[str, str]] = field(default_factory=list)
    tokens: int = 0
    """Of the prompt and the answer so far, as the arrivals count them."""


def _new_text(one: Arrival, number: int, session: _Session) -> str:
    if session.tokens:
        return _text(_OWN + number, max(1, one.prompt_tokens - session.tokens))
    rest = one.prompt_tokens - BLOCK_TOKENS * len(one.prompt_blocks)
    return "".join(_text(block, BLOCK_TOKENS) for block in one.prompt_blocks) + _text(_OWN + number, rest)


def _text(seed: int, tokens: int) -> str:
    # Multiplied by an odd number, since the generator would begin alike with neighbours.
    return b"".join(pseudotokens.answer(seed * 0x9E3779B97F4A7C15 & (2**64 - 1), tokens)).decode()


def _computed(body: bytes, number: int) -> Computed:
    request = parse(Endpoint.CHAT, body, MODEL, _ENGINE.context_length_tokens)
    assert isinstance(request, ApiRequest), request
    (one,) = sequences_of(request, str(number), _ENGINE.context_length_tokens, _ENGINE.output_tokens_max)
    return one
