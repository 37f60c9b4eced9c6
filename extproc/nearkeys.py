"""Faults of unknown keys, with the known one that was probably meant."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel

from extproc.core.settings import UNKNOWN_KEY, Fault

SIMILAR = 0.7
"""How alike two keys have to be, by the share of what they have in common (0..1)."""
SHORT_CHARS_MIN = 3
"""The beginning of a single key means that key, from so many characters on."""


def with_near_keys(faults: Iterable[Fault], model: type[BaseModel]) -> list[Fault]:
    """The same; where a key is not known, `wanted` asks for the one of `model`, or of those within it, like it."""
    return [_with_near_key(fault, model) if fault.wanted == UNKNOWN_KEY else fault for fault in faults]


def _with_near_key(fault: Fault, model: type[BaseModel]) -> Fault:
    *above, key = fault.path.split(".")
    models = [model]
    for part in above:
        fields = [one.model_fields[part] for one in models if part in one.model_fields]
        # A part that is no field is a place in a list, or a key of a mapping: the models are the same.
        models = [found for field in fields for found in _models_in(field.annotation)] if fields else models
    names = sorted({name for one in models for name in one.model_fields})
    begun = [name for name in names if len(key) >= SHORT_CHARS_MIN and name.startswith(key)]
    near = get_close_matches(key, names, n=1, cutoff=SIMILAR) or (begun if len(begun) == 1 else [])
    return replace(fault, wanted=f"{UNKNOWN_KEY} ({near[0]}?)") if near else fault


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for one in get_args(annotation):
        yield from _models_in(one)
