"""The tokenizer families at hand, each with both libraries."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from extproc.ops.metrics import Metrics
from extproc.tokens import declared, folder
from extproc.tokens.counter import TokenCounter
from extproc.tokens.encoders import Reference
from extproc.tokens.loading import CountedModel, Tokenizers, load
from extproc.tokensettings import ModelTokenizer, TokenSettings

MODEL: Final = "m"


@dataclass(frozen=True, slots=True)
class Family:
    """A vocabulary and its template."""

    name: str
    models: tuple[CountedModel, ...]
    """As `serve` loads it first; where that is by `fastokens`, by `tokenizers` too."""

    @property
    def loaded(self) -> CountedModel:
        """As `serve` has it."""
        return self.models[0]


def cache() -> Path:
    """Where `make tokenizers` puts the families."""
    return Path(os.environ.get("EXTPROC_TOKENIZERS") or Path.home() / ".cache" / "extproc" / "tokenizers")


def find(names: tuple[str, ...]) -> list[Family]:
    """Those of these families that are there. Takes 2 s for each."""
    return [_family(name, cache() / name) for name in names if (cache() / name / "tokenizer.json").is_file()]


def counter(model: CountedModel, **settings: float) -> TokenCounter:
    """A new counter, which knows no text yet: the default settings but for these."""
    return TokenCounter(TokenSettings.model_validate(settings), Tokenizers({MODEL: model}), Metrics())


def _family(name: str, path: Path) -> Family:
    found = load(TokenSettings(models={MODEL: ModelTokenizer(tokenizer=str(path))}))
    assert isinstance(found, Tokenizers), found
    (model,) = found
    if model.encoder.engine == "tokenizers":
        return Family(name, (model,))
    files = folder.read(path)
    tokenizer = Tokenizer.from_file(str(files.tokenizer))
    declared.apply(files.declared, tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Family(name, (model, replace(model, encoder=Reference(tokenizer, "to compare"))))
