"""Real vocabularies for tests, where they have been fetched."""

import functools
from pathlib import Path

import pytest

from tests.tokens.fetch import FAMILIES, cache_folder, is_whole

NAMES = tuple(FAMILIES)


def family_folder(name: str) -> Path:
    """The folder of a family's `tokenizer.json` and `tokenizer_config.json`; without it the test is skipped."""
    if not _is_whole(name):
        pytest.skip(f"no tokenizer of {name}: run `make tokenizers`")
    return cache_folder() / name


_is_whole = functools.cache(is_whole)
