"""Envoy's configuration as plain mappings: read from a file, bounded, and walked with the place of each value.

Unlike a typed reading this takes extensions that nobody here knows, tells where a value stands, and is quick to import.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from extproc import yamlfile
from extproc.core.settings import Fault
from extproc.regularfile import open_regular
from extproc.sizes import MIB
from extproc.yamlfile import Document

JSON_BYTES_MAX: Final = 16 * MIB
"""What Envoy's admin page tells of a mesh is long."""
YAML_BYTES_MAX: Final = MIB
"""PyYAML needs seconds for so much."""
VALUES_MAX: Final = 100_000
"""Of a bootstrap, each as often as an alias names it."""
NESTING_MAX: Final = 64

_TYPED_STRUCT = ".TypedStruct"
_DIGITS_MAX = 20
_MANIFEST_KEYS = [re.compile(rb"^%s:" % key, re.MULTILINE) for key in (b"apiVersion", b"kind")]
_WANTED = (
    "Envoy's bootstrap or config_dump (this is for Kubernetes: give the proxy's, as of "
    "`istioctl proxy-config all POD -o json` or `pilot-agent request GET config_dump`)"
)
_DURATION = re.compile(r"\d{1,10}(\.\d{1,9})?s", re.ASCII)


@dataclass(frozen=True, slots=True)
class Warned(Fault):
    """What may be meant so, or costs little: worth a line, and no reason to refuse."""


class At(msgspec.Struct, frozen=True):
    """A value of the configuration, and where it stands."""

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
        left: list[tuple[Any, _Below | None]] = [(self.value, None)]
        while left:
            value, below = left.pop()
            if isinstance(value, dict):
                name = type_of(value)
                if name.endswith(_TYPED_STRUCT) and type_of(value, "type_url") in types:
                    yield At(_path(self.path, below), value).of("value")
                elif name in types:
                    yield At(_path(self.path, below), value)
                members: Iterable[tuple[object, Any]] = value.items()
            else:
                members = enumerate(value) if isinstance(value, list) else ()
            inner = [(one, (below, key)) for key, one in members if isinstance(one, (dict, list))]
            left += reversed(inner)


_Below = tuple[Any, object]
"""A member's key, after the way to what it is a member of."""


def _path(path: str, below: _Below | None) -> str:
    keys: list[object] = []
    while below is not None:
        below, key = below
        keys.append(key)
    return ".".join(str(one) for one in (path, *reversed(keys))).lstrip(".")


def load(path: Path) -> Document | Fault:
    """What a YAML or JSON file holds. Unlike files of ours a bootstrap lives by aliases, and Envoy minds no tags."""
    try:
        with open_regular(path) as file:
            raw = file.read(JSON_BYTES_MAX + 1)
    except OSError as error:
        return Fault(str(path), "a readable file", error.strerror or str(error))
    if len(raw) > JSON_BYTES_MAX:
        return Fault(str(path), f"at most {JSON_BYTES_MAX} bytes", "more")
    try:
        content = msgspec.json.decode(raw)
        is_manifest = isinstance(content, dict) and "apiVersion" in content and "kind" in content
        return Fault(str(path), _WANTED, "a manifest") if is_manifest else Document(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if len(raw) > YAML_BYTES_MAX:
            return Fault(str(path), f"JSON, or YAML of at most {YAML_BYTES_MAX} bytes", str(error))
    if all(key.search(raw) for key in _MANIFEST_KEYS):  # of the first document or a later one
        return Fault(str(path), _WANTED, "a manifest")
    return yamlfile.load(path, _Loader, YAML_BYTES_MAX)


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


def is_bounded(value: object, values_max: int = VALUES_MAX) -> bool:
    """Whether a walk ends soon: aliases can make a tree of any size out of few bytes, or one without an end."""
    left = [(value, 0)]
    count = 0
    while left:
        one, depth = left.pop()
        members = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        count += len(members)
        if count > values_max or depth > NESTING_MAX:
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


def number_of(value: object) -> int | None:
    """A whole number as Envoy takes it, also as JSON's text; `None` for what is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def type_of(value: object, field: str = "@type") -> str:
    """The name of a message's type, empty where there is none."""
    type_url = value.get(field) if isinstance(value, dict) else None
    return type_url.rpartition("/")[2] if isinstance(type_url, str) else ""


def message_of(value: object) -> object:
    """The fields of a message that may stand in a TypedStruct."""
    return value.get("value") if isinstance(value, dict) and type_of(value).endswith(_TYPED_STRUCT) else value
