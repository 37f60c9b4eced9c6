"""YAML that people read: short mappings on one line, long texts folded, and before a setting why it is there."""

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import (
    DoubleQuotedScalarString,
    FoldedScalarString,
    LiteralScalarString,
    SingleQuotedScalarString,
)

WIDTH = 120
_COMMENT_WIDTH_MIN = 60
_FLOW_LEVELS_MAX = 4
_PLAIN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9/_.-]*")
"""What may do without quotes, if no reader of YAML takes it for a number or a truth."""


def yaml_text(mapping: Mapping[str, Any], notes: Mapping[str, str], head: str) -> str:
    """A mapping of mappings, lists and scalars as YAML.

    `notes` are by the end of a path, as `clusters/extproc/health_checks`: items of lists go by their `name`, else by
    their place. Each note is written once, at the first path that it fits; an empty line in it is one in the file.
    `head` is the comment at the top.
    """
    writer = _Writer(notes)
    root = writer.block_mapping(mapping, (), 0)
    text = io.StringIO()
    _yaml().dump(root, text)
    top = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    return f"{top}\n{text.getvalue()}" if top else text.getvalue()


def _yaml() -> YAML:
    writer = YAML()
    writer.width = 100_000  # lines end where we say: a text broken anywhere could not be found
    writer.brace_single_entry_mapping_in_flow_sequence = True  # else [{a: b}] is written [a: b]
    writer.indent(mapping=2, sequence=2, offset=0)
    writer.representer.add_representer(
        type(None), lambda representer, _: representer.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    return writer


class _Writer:
    """One document; what is left of `notes` is still to be written."""

    def __init__(self, notes: Mapping[str, str]) -> None:
        self._notes = {tuple(path.split("/")): note for path, note in notes.items()}

    def block_mapping(self, mapping: Mapping[str, Any], path: tuple[str, ...], indent: int) -> CommentedMap:
        made = CommentedMap()
        for key, value in mapping.items():
            place = (*path, key)
            note = self._taken(place)
            made[_text(key)] = self._value(value, place, indent, used=indent + len(key) + 2)
            if note is not None:
                made.yaml_set_comment_before_after_key(key, before=_wrapped(note, indent), indent=indent)
        return made

    def _block_list(self, items: Sequence[Any], path: tuple[str, ...], indent: int) -> CommentedSeq:
        made = CommentedSeq()
        for index, item in enumerate(items):
            place = (*path, _name(item, index))
            note = self._taken(place)
            made.append(self._value(item, place, indent, used=indent + 2))
            if note is not None:
                made.yaml_set_comment_before_after_key(index, before=_wrapped(note, indent), indent=indent)
        return made

    def _value(self, value: Any, path: tuple[str, ...], indent: int, *, used: int) -> Any:
        match value:
            case Mapping() | list():
                if used + _flow_length(value) <= WIDTH and not self._noted_below(value, path):
                    return _flow(value)
                if isinstance(value, list):
                    return self._block_list(value, path, indent)
                return self.block_mapping(value, path, indent + 2)
            case str() if "\n" in value:
                return LiteralScalarString(value)
            case str() if used + len(value) + 2 > WIDTH and " " in value and not value.startswith(" "):
                return _folded(value, WIDTH - indent - 2)
            case str():
                return _text(value)
            case _:
                return value

    def _taken(self, path: tuple[str, ...]) -> str | None:
        """The note for this path, for the last time. The longest of those that fit."""
        for length in range(len(path), 0, -1):
            if (note := self._notes.pop(path[-length:], None)) is not None:
                return note
        return None

    def _noted_below(self, value: Any, path: tuple[str, ...]) -> bool:
        match value:
            case Mapping():
                places = [((*path, key), inner) for key, inner in value.items()]
            case list():
                places = [((*path, _name(item, index)), item) for index, item in enumerate(value)]
            case _:
                return False
        return any(self._has(place) or self._noted_below(inner, place) for place, inner in places)

    def _has(self, path: tuple[str, ...]) -> bool:
        return any(path[-length:] in self._notes for length in range(1, len(path) + 1))


def _name(item: Any, index: int) -> str:
    name = item.get("name") if isinstance(item, Mapping) else None
    return name if isinstance(name, str) else str(index)


def _flow(value: Any) -> Any:
    match value:
        case Mapping():
            mapping = CommentedMap((_text(key), _flow(inner)) for key, inner in value.items())
            mapping.fa.set_flow_style()
            return mapping
        case list():
            items = CommentedSeq(_flow(item) for item in value)
            items.fa.set_flow_style()
            return items
        case str():
            return _text(value)
        case _:
            return value


@lru_cache(maxsize=1024)
def _reads_as_text(value: str) -> bool:
    return isinstance(yaml.safe_load(value), str)


def _text(value: str) -> Any:
    # ruamel.yaml writes YAML 1.2: what is plain there may be a truth, or a fault, for readers of 1.1.
    if _PLAIN.fullmatch(value) and _reads_as_text(value):
        return value
    return SingleQuotedScalarString(value) if '"' in value else DoubleQuotedScalarString(value)


def _flow_length(value: Any, level: int = 0) -> int:
    """About how long a value is on one line; more than any line for what should not stand on one."""
    match value:
        case Mapping() | list() if value and level >= _FLOW_LEVELS_MAX:
            return WIDTH
        case Mapping():
            return 2 + sum(len(key) + 4 + _flow_length(inner, level + 1) for key, inner in value.items())
        case list():
            return 2 + sum(2 + _flow_length(item, level + 1) for item in value)
        case str() if "\n" in value:
            return WIDTH
        case _:
            return len(str(value)) + 2


def _wrapped(note: str, indent: int) -> str:
    width = max(WIDTH - indent - 2, _COMMENT_WIDTH_MIN)
    return "\n".join(line for paragraph in note.splitlines() for line in _lines(paragraph, width))


def _lines(paragraph: str, width: int) -> list[str]:
    # Names of headers have hyphens and are looked for: they stay whole.
    return textwrap.wrap(paragraph, width, break_on_hyphens=False, break_long_words=False) or [""]


def _folded(text: str, width: int) -> Any:
    """A long text over several lines, broken at single spaces: after commas, if there are any."""
    folded = FoldedScalarString(text)
    places = [found.start() for found in re.finditer(r"(?<=,) (?=\S)" if ", " in text else r"(?<=\S) (?=\S)", text)]
    breaks, start = [], 0
    for place, following in zip(places, [*places[1:], len(text)], strict=True):
        if following - start > width:
            breaks.append(place)
            start = place + 1
    folded.fold_pos = breaks
    return folded
