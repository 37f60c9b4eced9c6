"""What the clients ask: the same requests at the same moments for everybody who is compared.

An open loop: each request has its moment, however late the answers before it are. Texts are made of words of four
bytes, one token each to an emulated engine. Chats are real ones: each turn repeats all before it, the answers included,
which are known beforehand, since an emulated engine's answer is a function of its prompt.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from random import Random
from typing import Final

from extproc.core.request import Endpoint
from extproc.sim import pseudotokens
from extproc.sim.apirequest import ApiRequest, parse
from extproc.sim.emulatorsettings import EmulatorSettings
from extproc.sim.events import Request
from extproc.sim.profiles import Bursts, Even, Kind, LogNormal
from extproc.sim.sequences import Sequence as Computed
from extproc.sim.sequences import sequences_of
from extproc.sim.workloads import ANSWER_TOKEN_S, FIRST_TOKEN_S

MODEL: Final = "bench"
_DEFAULTS: Final = EmulatorSettings()


@dataclass(frozen=True, slots=True)
class Timed:
    """One request and its moment."""

    number: int
    """Its place in the order of time, from 0."""
    at_s: float
    """Since the first one."""
    kind: str
    session: str
    """Of a chat its name; a request that has nothing to do with others is one of its own."""
    body: bytes
    computed: Request
    """What an emulated engine computes for it; its id is `number` and something after a hyphen."""

    @property
    def prompt_tokens(self) -> int:
        """As an emulated engine counts them."""
        return self.computed.prompt_tokens

    @property
    def output_tokens(self) -> int:
        """How long its answer is."""
        return self.computed.output_tokens


@dataclass(frozen=True, slots=True)
class Chats:
    """Chats over a few system prompts; the n-th is asked for 1/n as often as the first."""

    system_prompts: int
    system_tokens: Even
    new_tokens: LogNormal
    """Of a question."""
    output_tokens: LogNormal
    turns_mean: float
    pause_s: float
    """From a turn to the next at least, beside what an engine that is not in a hurry needs for the answer."""


Shape = tuple[Kind, ...] | Chats
"""What is asked: single requests of several kinds, or chats."""

MIXED: Final[Shape] = (
    Kind("chat", 0.5, LogNormal(150, sigma=0.8, most=1500), LogNormal(200, sigma=0.7, most=500)),
    Kind("document", 0.5, LogNormal(2500, sigma=0.7, most=12_000), LogNormal(30, sigma=0.7, most=150)),
)
BURSTS: Final = Bursts(factor=3.0, lasting_s=2.0, every_s=10.0)
CHATS: Final[Shape] = Chats(
    system_prompts=24,
    system_tokens=Even(2000, 6000),
    new_tokens=LogNormal(60, sigma=0.8, most=600),
    output_tokens=LogNormal(100, sigma=0.7, most=400),
    turns_mean=4.0,
    pause_s=2.0,
)


def timed(shape: Shape, wanted: int, rate_per_s: float, seed: int, bursts: Bursts | None = None) -> list[Timed]:
    """So many requests at a mean rate, the first at 0 s; the same arguments give the same."""
    chance = Random(seed)
    moments = islice(_moments(rate_per_s, bursts, chance), wanted)
    asked = _chats(shape, moments, chance) if isinstance(shape, Chats) else _single(shape, moments, chance)
    return list(asked)


def _computed(body: bytes, number: int) -> Computed:
    """What an emulated engine makes of a body of ours."""
    asked = parse(Endpoint.CHAT, body, MODEL, _DEFAULTS.context_length_tokens)
    assert isinstance(asked, ApiRequest), asked
    (one,) = sequences_of(asked, str(number), _DEFAULTS.context_length_tokens, _DEFAULTS.output_tokens_max)
    return one


def _moments(rate_per_s: float, bursts: Bursts | None, chance: Random) -> Iterator[float]:
    """At random; bursts come at random too, but a run has its share of them: they are drawn in turns of `every_s`."""
    at_s = 0.0
    yield at_s
    turn, begins_s = -1, 0.0
    quiet, inside = rate_per_s, rate_per_s
    if bursts is not None:
        quiet = rate_per_s / (1 + (bursts.factor - 1) * bursts.lasting_s / bursts.every_s)
        inside = quiet * bursts.factor
    while True:
        # Thinning: as many as the highest rate gives, of which the lower rate takes its share.
        at_s += -math.log(1 - chance.random()) / inside
        rate = inside
        if bursts is not None:
            if at_s // bursts.every_s != turn:
                turn = int(at_s // bursts.every_s)
                begins_s = turn * bursts.every_s + chance.random() * (bursts.every_s - bursts.lasting_s)
            rate = inside if begins_s <= at_s < begins_s + bursts.lasting_s else quiet
        if chance.random() * inside < rate:
            yield at_s


def _single(kinds: Sequence[Kind], moments: Iterator[float], chance: Random) -> Iterator[Timed]:
    shares = [kind.share for kind in kinds]
    for number, at_s in enumerate(moments):
        kind = chance.choices(kinds, shares)[0]
        output_tokens = _drawn(chance, kind.output_tokens)
        body = _body([_said("user", _text(chance, _drawn(chance, kind.prompt_tokens)))], output_tokens)
        yield Timed(number, at_s, kind.name, f"{kind.name}-{number}", body, _computed(body, number).request)


@dataclass(slots=True)
class _Chat:
    name: str
    messages: list[dict[str, str]]
    idle_from_s: float = 0.0


def _chats(shape: Chats, moments: Iterator[float], chance: Random) -> Iterator[Timed]:
    """A chat goes on as soon as it may; where none may, another one begins."""
    # Every length from the least to the most, and the same ones popular with every seed: seeds are to weigh the same.
    step = (shape.system_tokens.most - shape.system_tokens.least) / max(1, shape.system_prompts - 1)
    lengths = [shape.system_tokens.least + round(step * number) for number in range(shape.system_prompts)]
    Random(shape.system_prompts).shuffle(lengths)
    systems = [_said("system", _text(chance, tokens)) for tokens in lengths]
    popular = list(accumulate(1 / (rank + 1) for rank in range(len(systems))))
    going: list[_Chat] = []
    begun = 0
    for number, at_s in enumerate(moments):
        idle = [chat for chat in going if chat.idle_from_s <= at_s]
        if idle:
            chat = chance.choice(idle)
        else:
            begun += 1
            chat = _Chat(f"chat-{begun}", [chance.choices(systems, cum_weights=popular)[0]])
            going.append(chat)
        chat.messages.append(_said("user", _text(chance, _drawn(chance, shape.new_tokens))))
        output_tokens = _drawn(chance, shape.output_tokens)
        body = _body(chat.messages, output_tokens)
        answer = _computed(body, number)
        if chance.random() * shape.turns_mean < 1:
            going.remove(chat)
        else:
            chat.messages.append(_said("assistant", answer.choice.text))
            chat.idle_from_s = at_s + FIRST_TOKEN_S + output_tokens * ANSWER_TOKEN_S + shape.pause_s
        yield Timed(number, at_s, "chat", chat.name, body, answer.request)


def _drawn(chance: Random, spread: LogNormal | Even) -> int:
    if isinstance(spread, Even):
        return chance.randint(spread.least, spread.most)
    return round(min(spread.most, max(1.0, chance.lognormvariate(math.log(spread.median), spread.sigma))))


def _text(chance: Random, tokens: int) -> str:
    return b"".join(pseudotokens.answer(chance.getrandbits(64), tokens)).decode()


def _said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _body(messages: Sequence[dict[str, str]], output_tokens: int) -> bytes:
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": output_tokens, "stream": True}).encode()
