"""Which tokenizer counts which model's prompts, loaded whole before the first request. Nothing is ever downloaded."""

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from tokenizers import Tokenizer

from extproc.core.request import MODEL_CHARS_MAX
from extproc.core.settings import Fault

# Texts of one prompt are encoded one after another: the counter's own threads are the bound, not every core.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Tokenizers:
    """Tokenizers by model name: the exact name first, then patterns, the longest first."""

    def __init__(self, by_pattern: Mapping[str, Tokenizer]) -> None:
        self._by_name = dict(by_pattern)
        self._patterns = sorted(by_pattern, key=lambda pattern: (-len(pattern), pattern))

    def of(self, model: str) -> Tokenizer | None:
        """The model's tokenizer; `None`: none is configured."""
        if (exact := self._by_name.get(model)) is not None:
            return exact
        if len(model) > MODEL_CHARS_MAX:  # no pattern is tried on it
            return None
        return next((self._by_name[one] for one in self._patterns if fnmatchcase(model, one)), None)


def load(files: Mapping[str, Path]) -> Tokenizers | list[Fault]:
    """Load each pattern's `tokenizer.json`, a shared file once; or every fault, with its pattern and path."""
    loaded: dict[Path, Tokenizer] = {}
    faults = []
    for pattern, path in files.items():
        try:
            if path not in loaded:
                loaded[path] = _load(path)
        except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
            got = f"{path}: {str(error)[:200]}"
            faults.append(Fault(f"tokens.models.{pattern}.tokenizer", "a tokenizer.json", got))
    return faults or Tokenizers({pattern: loaded[path] for pattern, path in files.items()})


def _load(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(path))
    # Files often carry the cut-off and padding of a training run; a count wants neither.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
