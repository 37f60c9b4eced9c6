"""What memory holds and what nodes can do: tokens to KV blocks and bytes, work to nodes.

How many nodes a load needs is Choe and Shroff's approximation of a queue that is fed by many: over no span of time may
more work come than the nodes do in that span and in the time that a request may wait (IEEE/ACM Transactions on
Networking 6(5), 1998, "maximum variance"). How much comes in a span is told by the index of dispersion of the counts
at that span, variance / mean (Gusella, IEEE JSAC 9(2), 1991): 1 for Poisson arrivals, more for bursts.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Final

from msgspec import Struct

from extproc.core.modelshapes import ModelShape

SPANS_S: Final = (1, 2, 4, 8, 16, 32, 64)
"""Spans of time over which bursts are looked at."""
DECODE_TOKENS: Final = 1.7
"""Tokens of prefill that cost a step as much as one more decoding sequence does."""
SEQUENCES_MAX: Final = 256
"""No more sequences are taken to decode in one step, whatever the memory holds: engines' own bound by default."""
KV_USABLE: Final = 0.9
"""Share of a node's KV cache that running sequences may fill; beyond it engines preempt."""
STEPS_WAITED: Final = 1.5
"""A prompt waits for half of the step that runs, and takes one itself."""
WAIT_SHARE_MIN: Final = 0.25
"""Share of the objective that is left for waiting, at least: what takes longer alone cannot be in time anyway."""


def blocks_needed(tokens: int, block_size_tokens: int | None) -> int | None:
    """KV blocks that `tokens` occupy: the last block may be part full. `None` where the block size is unknown."""
    if block_size_tokens is None:
        return None
    return -(-tokens // block_size_tokens)


def bytes_per_token(shape: ModelShape) -> float:
    """KV bytes by which a long sequence grows with each token: windowed layers grow no more.

    2 · layers · heads · head size · bytes of a number, or layers · latent size · bytes of a number.
    """
    return _layer_bytes(shape) * (shape.layers - shape.window_layers)


def sequence_bytes(shape: ModelShape, tokens: int) -> float:
    """KV bytes of one sequence of so many tokens."""
    windowed = shape.window_layers * min(tokens, shape.window_tokens)
    return _layer_bytes(shape) * ((shape.layers - shape.window_layers) * tokens + windowed)


def tokens_held(memory_bytes: float, shape: ModelShape, sequence_tokens: int) -> int:
    """Tokens that so much KV memory holds of sequences of this length, at least 1 token."""
    assert sequence_tokens >= 1
    return int(memory_bytes * sequence_tokens / sequence_bytes(shape, sequence_tokens))


def _layer_bytes(shape: ModelShape) -> float:
    numbers = shape.latent_size or 2 * shape.kv_heads * shape.head_size
    return numbers * shape.number_bytes


class NodePower(Struct, frozen=True):
    """What one node can do."""

    tokens_per_s: float
    """Prompt tokens in a second, beside what each step costs."""
    step_s: float
    """What a step costs, however little is in it."""
    kv_tokens: float | None = None
    """Tokens that its KV cache holds; `None`: not known."""


class RequestSize(Struct, frozen=True):
    """The mean request of a model."""

    uncached_tokens: float
    """Prompt tokens that have to be computed."""
    prompt_tokens: float
    """All of the prompt, which the KV cache has to hold."""
    output_tokens: float


def answer_seconds(size: RequestSize, power: NodePower) -> float:
    """Seconds of a node that the answer of one request takes, by the constraint that binds: compute or memory.

    o · (1.7/r + c0/n): each of its o tokens costs a step as much as 1.7 tokens of prefill, and bears its share of what
    the step costs anyway, c0. The more sequences decode together the smaller that share; n is how many can, which is
    bounded by the KV tokens that they hold: KV / (prompt + o/2), at most `SEQUENCES_MAX`.

    By Little's law this is exact for a steady load λ of one node: a step lasts s = c0/(1 - ρ), as ρ is the share of
    work in it; λ·o·s sequences decode at once; so they fit if λ·o·c0/n <= 1 - ρ.
    """
    held = max(1.0, size.prompt_tokens + size.output_tokens / 2)
    together = float(SEQUENCES_MAX)
    if power.kv_tokens is not None:
        together = min(max(1.0, KV_USABLE * power.kv_tokens / held), together)
    return size.output_tokens * (DECODE_TOKENS / power.tokens_per_s + power.step_s / together)


def wait_allowed_s(ttft_s: float, size: RequestSize, power: NodePower) -> float:
    """What an objective for the first token leaves for waiting behind others, in seconds."""
    own_s = size.uncached_tokens / power.tokens_per_s + STEPS_WAITED * power.step_s
    return max(ttft_s - own_s, WAIT_SHARE_MIN * ttft_s)


class Bursts(Struct, frozen=True):
    """How work comes in spans of `SPANS_S`, or in the first of them: in each of two lists one item for each."""

    deviations: Sequence[float] = ()
    """σ of the seconds of work that come in such a span."""
    peaks: Sequence[float] = ()
    """The most that came in one."""


def nodes_for(mean: float, bursts: Bursts, wait_s: float, fitting: float, headroom: float) -> float:
    """Nodes that a load needs, unrounded: the most of mean / (1 - h) and, for each span w, burst / (w + b).

    burst = mean·w + z·σ, but no more than ever came in such a span, and no less than mean·w: where a load begins or
    ends within what was seen, σ is of two loads and says nothing of either.

    `mean` is seconds of one node's work that come in a second; `wait_s` is how long a request may wait, b; `fitting` is
    how many deviations shall fit, z; `headroom` is the share of the nodes that is left free, h.
    """
    needed = mean / (1 - headroom)
    for span_s, deviation, peak in zip(SPANS_S, bursts.deviations, bursts.peaks, strict=False):
        usual = mean * span_s
        needed = max(needed, max(usual, min(usual + fitting * deviation, peak)) / (span_s + wait_s))
    return needed


def grown(bursts: Bursts, factor: float) -> Bursts:
    """Those of a load that has grown by a factor and comes as evenly as before: its index of dispersion is the same."""
    root = sqrt(factor)
    return Bursts([one * root for one in bursts.deviations], [one * factor for one in bursts.peaks])
