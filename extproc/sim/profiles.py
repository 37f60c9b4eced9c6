"""The generated workloads, as figures: how long prompts and answers are, how often they come, what they share.

Sources, where a figure is not simply assumed:
[Azure] percentiles of the Azure LLM inference trace 2023, conversation: prompts 1020/2735/4142 tokens (p50/p90/p99),
answers 129/424/601, means 1155 and 211. [Splitwise] arXiv 2311.18677, Azure's code trace: prompts of 1,500 tokens and
answers of 13 in the median. [Mooncake] percentiles of the FAST'25 conversation trace: prompts 6909/27367/85401,
answers 350/597/1120. [Pauses] seconds between an answer's end and the next turn that were measured in production:
coding agents 1.6/44 (p50/p90), chats 7.2/15 (agentic-kvc, characterization of Qwen3-Coder and qwen3-max traces).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A quantity whose logarithm is normal; what is over the most becomes that. Tokens are 1 at least."""

    median: float
    sigma: float
    """Of the logarithm: p90 / median = exp(1.28 × sigma)."""
    most: float


@dataclass(frozen=True, slots=True)
class Even:
    """A whole quantity, every value from `least` to `most` as likely."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of single requests."""

    name: str
    share: float
    """Of all requests; the shares of a workload add up to 1."""
    prompt_tokens: LogNormal | Even
    output_tokens: LogNormal | Even


@dataclass(frozen=True, slots=True)
class Bursts:
    """Times of a higher rate; how long they last, and the time between them, is exponential."""

    factor: float
    """Rate in a burst / rate outside."""
    lasting_s: float
    """Mean."""
    every_s: float
    """Mean time from one burst's beginning to the next one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleRequests:
    """Requests that have nothing to do with each other, arriving at random."""

    kinds: tuple[Kind, ...]
    rate_per_s: float
    """Mean, bursts included."""
    bursts: Bursts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """A fixed number of users or agents, each in one session after another; each turn extends the turn before.

    A prompt is one of the shared system prompts, all turns and answers of the session so far, and something new. The
    first system prompt is the most popular, the n-th is asked for 1/n as often.
    """

    kind: str
    at_once: int
    """Sessions open at a time."""
    system_prompts: int
    system_tokens: Even
    new_tokens: LogNormal
    """What a turn adds: a question, a tool's result."""
    output_tokens: LogNormal | Even
    turns_mean: float
    """Of a session; how many is geometric, so sessions do not begin or end together."""
    pause_s: LogNormal
    """Between an answer's end and the next turn, or the next session of the same user."""
    context_tokens_max: int
    """No prompt with its answer is longer; a session that would be ends."""


_CHAT: Final = Kind(
    "chat",
    share=1.0,
    # [Azure]: median and p90 almost as there; the mean, 1,300, is 13 % higher.
    prompt_tokens=LogNormal(1000, sigma=0.75, most=8000),
    # [Azure]: median, p90 and mean as there.
    output_tokens=LogNormal(129, sigma=0.93, most=1000),
)
_CODE: Final = Kind(
    "code",
    share=1.0,
    # Assumed: a file and its neighbours. Longer than [Splitwise]; about the p90 of [Azure].
    prompt_tokens=LogNormal(2500, sigma=0.7, most=16_000),
    # Assumed: a line or a few, twice [Splitwise].
    output_tokens=LogNormal(30, sigma=0.7, most=300),
)
_BURSTS: Final = Bursts(
    factor=3.5,  # assumed: three to four times for some seconds; [Azure] doubles within 5 s, its mean within minutes
    lasting_s=8.0,
    every_s=60.0,
)


def _with_share(kind: Kind, share: float) -> Kind:
    return Kind(kind.name, share, kind.prompt_tokens, kind.output_tokens)


_DOCUMENT: Final = Kind(
    "document",
    share=1.0,
    # [Mooncake]: above its p90 and up to over its p99.
    prompt_tokens=Even(30_000, 100_000),
    output_tokens=_CHAT.output_tokens,
)

CONV: Final = SingleRequests(
    kinds=(_CHAT,),
    rate_per_s=30.0,  # half of what eight default engines compute when all is there at once, 60/s
    bursts=_BURSTS,
)
CODE: Final = SingleRequests(
    kinds=(_CODE,),
    rate_per_s=16.0,  # likewise, of 32/s
)
MIX: Final = SingleRequests(
    kinds=(_with_share(_CHAT, 0.5), _with_share(_CODE, 0.5)),
    rate_per_s=20.0,  # likewise, of 41/s
)
HEAVY: Final = SingleRequests(
    kinds=(_with_share(_CHAT, 0.95), _with_share(_DOCUMENT, 0.05)),
    rate_per_s=5.0,  # likewise, of 10/s
    bursts=_BURSTS,
)
AGENTS: Final = Sessions(
    kind="agent",
    at_once=300,  # assumed: a few hundred agents
    system_prompts=30,  # assumed: some tens of roles
    system_tokens=Even(3000, 8000),  # assumed: instructions and the schemas of some tens of tools
    new_tokens=LogNormal(250, sigma=1.0, most=4000),  # assumed: a tool's result
    output_tokens=LogNormal(40, sigma=0.7, most=300),  # assumed: a call of a tool
    turns_mean=12.0,  # assumed
    pause_s=LogNormal(1.6, sigma=2.5, most=60.0),  # [Pauses]; longer ones are cut, such agents have left
    context_tokens_max=32_000,
)
CHATS: Final = Sessions(
    kind="chat",
    at_once=300,  # assumed
    system_prompts=6,  # assumed: a few assistants
    system_tokens=Even(1000, 3000),  # assumed: as published system prompts of assistants
    new_tokens=LogNormal(60, sigma=1.0, most=2000),  # assumed: a question
    output_tokens=_CHAT.output_tokens,
    turns_mean=5.0,  # assumed
    pause_s=LogNormal(7.2, sigma=0.57, most=120.0),  # [Pauses]
    context_tokens_max=16_000,
)

WORKLOADS: Final[Mapping[str, SingleRequests | Sessions]] = MappingProxyType(
    {"conv": CONV, "code": CODE, "mix": MIX, "heavy": HEAVY, "agents": AGENTS, "chats": CHATS}
)
"""Every generated workload by its name."""
