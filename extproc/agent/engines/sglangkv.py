"""SGLang's KV cache: how much of it is in use, and its blocks, which it calls pages.

What only the prefix cache holds is not in use: it goes when something needs the room.
"""

import math
from itertools import chain

from extproc.agent.engines.blocks import block_size_of
from extproc.agent.engines.exposition import Page, Sample, sums_by
from extproc.agent.engines.pagevalues import label_count, share_over
from extproc.agent.engines.reading import count_of
from extproc.core.snapshot import KV_BLOCKS_MAX

RANK = "dp_rank"
"""The label that tells the data-parallel ranks apart, each of which has a cache of its own."""

_USAGE = "sglang:token_usage"
_USAGES = ("sglang:full_token_usage", "sglang:swa_token_usage", "sglang:mamba_usage")  # it is the largest of these
_PAGE_SIZE = "sglang:page_size"
_PAGES = "sglang:num_pages"
_CONFIG = "sglang:cache_config_info"  # before 0.5.11, with the two as labels
_TOKENS = "sglang:max_total_num_tokens"

WANTED = frozenset({_USAGE, *_USAGES, _PAGE_SIZE, _PAGES, _CONFIG, _TOKENS})


def kv_cache_of(page: Page) -> tuple[float | str, int | str, int | str]:
    """Usage weighed by the ranks' blocks, blocks of all ranks, tokens per block."""
    blocks, sizes, name = _blocks(page)
    usages = sums_by(page, _USAGE, RANK) or _largest_usages(page)
    total: int | str
    if not blocks:
        total = f"{name} is missing"
    elif usages and usages.keys() != blocks.keys():
        total = f"{name} is not told for every {RANK}"
    elif min(blocks.values()) > 0:
        total = count_of(sum(blocks.values()), KV_BLOCKS_MAX, name)
    else:
        total = f"{name} is not over 0"
    return share_over(usages, blocks, _USAGE), total, block_size_of(sizes, _PAGE_SIZE)


def _largest_usages(page: Page) -> dict[str, float]:
    """Of the pools of each rank the fullest, since the first that is full stops it."""
    pools = [sums_by(page, name, RANK) for name in _USAGES]
    usages: dict[str, float] = {}
    for rank in chain.from_iterable(pools):
        shares = [pool[rank] for pool in pools if rank in pool]
        usages[rank] = math.nan if any(map(math.isnan, shares)) else max(shares)
    return usages


def _blocks(page: Page) -> tuple[dict[str, float], list[Sample], str]:
    """The blocks of each rank, their sizes in tokens, and the metric that tells.

    Where the pages are not told, the cache's tokens are: then a block is one token.
    """
    if _PAGES in page or _PAGE_SIZE in page:
        return sums_by(page, _PAGES, RANK), page.get(_PAGE_SIZE, []), _PAGES
    if _CONFIG in page:
        blocks, sizes = {}, []
        for one in page[_CONFIG]:
            pages, size = label_count(one.labels.get("num_pages")), label_count(one.labels.get("page_size"))
            if pages is not None:
                blocks[one.labels.get(RANK, "")] = float(pages)
            if size is not None:
                sizes.append(Sample({}, float(size)))
        return blocks, sizes, _CONFIG
    return sums_by(page, _TOKENS, RANK), [Sample({}, 1.0)] if _TOKENS in page else [], _PAGES
