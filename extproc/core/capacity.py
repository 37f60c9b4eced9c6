"""Tokens to KV blocks."""


def blocks_needed(tokens: int, block_size_tokens: int | None) -> int | None:
    """KV blocks that `tokens` occupy: the last block may be part full. `None` where the block size is unknown."""
    if block_size_tokens is None:
        return None
    return -(-tokens // block_size_tokens)
