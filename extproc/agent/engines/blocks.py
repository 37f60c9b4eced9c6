"""What engines tell of their KV cache that count its blocks: used, and all."""

from collections.abc import Iterable
from dataclasses import dataclass

from extproc.agent.engines.exposition import Sample
from extproc.core.snapshot import KV_BLOCK_SIZE_TOKENS_MAX


@dataclass(frozen=True, slots=True)
class KvCache:
    """Three signals of a reading; a text is why one is absent."""

    usage: float | str
    """Share 0..1."""
    total: int | str
    available: int | str


def kv_cache_of(used: int | str, total: int | str, share: float | str, name: str) -> KvCache:
    """The cache out of its counted blocks, or the share that the engine tells itself where these are not known.

    Engines have no blocks before they computed something; `name` is the metric of the total.
    """
    if total == 0:
        total = f"{name} is 0"
    if isinstance(used, int) and isinstance(total, int):
        if used > total:
            fault = f"more blocks are used than {name}"
            return KvCache(fault, fault, fault)
        return KvCache(used / total, total, total - used)
    return KvCache(share, total, used if isinstance(total, int) else total)


def block_size_of(samples: Iterable[Sample], name: str) -> int | str:
    """Tokens per block, which all series must agree on."""
    sizes = {sample.value for sample in samples}
    if not sizes:
        return f"{name} is missing"
    size = sizes.pop()
    if sizes or not (1 <= size <= KV_BLOCK_SIZE_TOKENS_MAX and size == int(size)):
        return f"{name} is no whole number in 1..{KV_BLOCK_SIZE_TOKENS_MAX}, or several"
    return int(size)
