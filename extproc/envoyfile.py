"""Envoy's bootstrap as plain mappings: read from a file, bounded, and walked with the place of each value.

Unlike a typed reading this takes extensions that nobody here knows, tells where a value stands, and is quick to import.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from extproc import yamlfile
from extproc.core.settings import Fault
from extproc.yamlfile import Document

FILE_BYTES_MAX: Final = 1024 * 1024
VALUES_MAX: Final = 100_000
"""Of a bootstrap, each as often as an alias names it."""
NESTING_MAX: Final = 64

_TYPED_STRUCT = ".TypedStruct"
_DURATION = re.compile(r"\d{1,10}(\.\d{1,9})?s", re.ASCII)


class At(msgspec.Struct, frozen=True):
    """A value of the bootstrap, and where it stands."""

    path: str
    value: Any

    def of(self, *names: str) -> "At":
        """What stands below, by Envoy's names or JSON's (`routeConfig`); the value of what is absent is `None`."""
        at = self
        for name in names:
            fields = at.value if isinstance(at.value, dict) else {}
            camel = re.sub("_(.)", lambda match: match[1].upper(), name)
            key = camel if camel in fields and name not in fields else name
            at = At(f"{at.path}.{key}".lstrip("."), fields.get(key))
        return at

    def each(self) -> "Iterator[At]":
        """The members of a list or a mapping; none of anything else."""
        if isinstance(self.value, list):
            yield from (At(f"{self.path}.{index}", value) for index, value in enumerate(self.value))
        elif isinstance(self.value, dict):
            yield from (At(f"{self.path}.{key}".lstrip("."), value) for key, value in self.value.items())

    def typed(self, *types: str) -> "Iterator[At]":
        """Every message of these types in it, those in a TypedStruct included."""
        name = type_of(self.value)
        if name.endswith(_TYPED_STRUCT) and type_of(self.value, "type_url") in types:
            yield self.of("value")
        elif name in types:
            yield self
        for member in self.each():
            yield from member.typed(*types)


def load(path: Path) -> Document | Fault:
    """What a YAML or JSON file holds. Unlike files of ours a bootstrap lives by aliases, and Envoy minds no tags."""
    return yamlfile.load(path, _Loader, FILE_BYTES_MAX)


class _Loader(yaml.SafeLoader):
    """As Envoy reads: tags of its own say nothing, and `<<` is a key as any other, for PyYAML's has no bound."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        pass

    def untagged(self, _: str, node: yaml.Node) -> object:
        if isinstance(node, yaml.MappingNode):
            return self.construct_mapping(node, deep=True)
        if isinstance(node, yaml.SequenceNode):
            return self.construct_sequence(node, deep=True)
        return self.construct_scalar(node)  # type: ignore[arg-type]


_Loader.add_multi_constructor("!", _Loader.untagged)
_Loader.add_multi_constructor("tag:yaml.org,2002:merge", _Loader.untagged)


def is_bounded(value: object) -> bool:
    """Whether a walk ends soon: aliases can make a tree of any size out of few bytes, or one without an end."""
    left = [(value, 0)]
    count = 0
    while left:
        one, depth = left.pop()
        members = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        count += len(members)
        if count > VALUES_MAX or depth > NESTING_MAX:
            return False
        left += [(member, depth + 1) for member in members]
    return True


def seconds_of(value: object) -> float | None:
    """A duration as Envoy takes it: JSON's text, or the fields of the message; `None` for what it refuses."""
    if isinstance(value, str) and _DURATION.fullmatch(value):
        return float(value[:-1])
    if isinstance(value, dict) and value.keys() <= {"seconds", "nanos"}:
        numbers = [value.get("seconds", 0), value.get("nanos", 0)]
        if all(isinstance(one, int) and 0 <= one < 2**33 for one in numbers):
            return float(numbers[0] + numbers[1] / 1e9)
    return None


def type_of(value: object, field: str = "@type") -> str:
    """The name of a message's type, empty where there is none."""
    type_url = value.get(field) if isinstance(value, dict) else None
    return type_url.rpartition("/")[2] if isinstance(type_url, str) else ""


def message_of(value: object) -> object:
    """The fields of a message that may stand in a TypedStruct."""
    return value.get("value") if isinstance(value, dict) and type_of(value).endswith(_TYPED_STRUCT) else value
