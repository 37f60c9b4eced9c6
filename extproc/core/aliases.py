"""Names that stand for models: what a client asks for, and what the nodes are asked for."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, GetPydanticSchema, PlainSerializer
from xxhash import xxh3_64_intdigest

from extproc.core.request import MODEL_CHARS_MAX

ALIASES_MAX: Final = 256
TARGETS_MAX: Final = 16
"""Models that one alias can stand for."""
NAMES_CHARS_MAX: Final = 65_536
"""Characters of all names in a policy's aliases, and of those in its fallbacks: a journal repeats them."""
_HASHES: Final = 2**64
_V = TypeVar("_V")


class Frozen(Mapping[str, _V], Generic[_V]):
    """A mapping that never changes and can be hashed; the order of its keys means nothing."""

    __slots__ = ("_hash", "_of")

    def __init__(self, of: Mapping[str, _V]) -> None:
        self._of = dict(of)
        self._hash = hash(frozenset(self._of.items()))

    def __getitem__(self, key: str) -> _V:
        return self._of[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return repr(self._of)


def target_of(targets: Mapping[str, float], request_id: str) -> str:
    """The model that a request gets of several: each its share of the weights, thrown by a hash of the request's id."""
    if len(targets) == 1:
        return next(iter(targets))
    names = sorted(targets)  # equal mappings must choose alike, however they are ordered
    place = xxh3_64_intdigest(request_id.encode()) / _HASHES * sum(targets[name] for name in names)
    for name in names:
        place -= targets[name]
        if place < 0:
            break
    return name  # the last one, where rounding left nothing over


def _printable(name: str) -> str:
    if not name.isprintable():
        msg = "printable characters"
        raise ValueError(msg)
    return name


ModelName = Annotated[str, Field(min_length=1, max_length=MODEL_CHARS_MAX), AfterValidator(_printable)]


def _weighted(targets: object) -> object:
    if isinstance(targets, str):
        return {targets: 1.0}
    if not isinstance(targets, Mapping):
        msg = "a model, or models with their weights"
        raise ValueError(msg)
    return targets


def _sound_aliases(aliases: dict[str, dict[str, float]]) -> Frozen[Frozen[float]]:
    for alias, targets in aliases.items():
        if list(targets) == [alias]:
            msg = f"another model than itself for {alias!r:.80}"
            raise ValueError(msg)
        for target in targets:
            if target != alias and target in aliases:
                msg = f"models for {alias!r:.80}, and {target!r:.80} is an alias"
                raise ValueError(msg)
    _bounded(sum(len(alias) + sum(map(len, targets)) for alias, targets in aliases.items()))
    return Frozen({alias: Frozen(targets) for alias, targets in aliases.items()})


def _sound_fallbacks(fallbacks: dict[str, str]) -> Frozen[str]:
    for model, instead in fallbacks.items():
        if model == instead:
            msg = f"another model than itself for {model!r:.80}"
            raise ValueError(msg)
    _bounded(sum(map(len, (*fallbacks, *fallbacks.values()))))
    return Frozen(fallbacks)


def _bounded(chars: int) -> None:
    if chars > NAMES_CHARS_MAX:
        msg = f"names of at most {NAMES_CHARS_MAX} characters together, not {chars}"
        raise ValueError(msg)


def _read_as(annotation: Any) -> GetPydanticSchema:
    return GetPydanticSchema(lambda _, handler: handler.generate_schema(annotation))


_Weight = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
_Targets = Annotated[dict[ModelName, _Weight], Field(min_length=1, max_length=TARGETS_MAX), BeforeValidator(_weighted)]
Aliases = Annotated[
    Frozen[Frozen[float]],
    _read_as(
        Annotated[
            dict[ModelName, _Targets],
            Field(max_length=ALIASES_MAX),
            AfterValidator(_sound_aliases),
            PlainSerializer(lambda aliases: {alias: dict(targets) for alias, targets in aliases.items()}),
        ]
    ),
]
"""Aliases with the models that each stands for and their weights: `{"fast": "m"}` or `{"fast": {"m": 9, "n": 1}}`. An
alias may be one of its own models, but no other alias may."""
FallbackModels = Annotated[
    Frozen[str],
    _read_as(
        Annotated[
            dict[ModelName, ModelName],
            Field(max_length=ALIASES_MAX),
            AfterValidator(_sound_fallbacks),
            PlainSerializer(dict),
        ]
    ),
]
"""Models with the one that serves instead, as `{"large": "small"}`. Of that one no further one is looked up."""
