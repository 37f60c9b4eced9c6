"""Reading a YAML file that may be wrong or hostile: bounded, and faults say where.

PyYAML alone takes the last of two equal keys, and expands aliases without bound. Here equal keys, aliases,
tags, deep nesting and files over the limit are faults. JSON is YAML, so JSON files are read as well.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from extproc.core.settings import Fault
from extproc.regularfile import open_regular

FILE_BYTES_MAX = 256 * 1024
"""Thousands of policies; PyYAML needs up to 4 s for the worst file of this size."""
NESTING_MAX = 32


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds: mappings, lists and scalars; `None` for a file without content."""

    content: object


class _Loader(yaml.SafeLoader):
    """PyYAML's own Python loader, not libyaml's: that one recurses in C."""

    nesting = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refusal("an alias, which is not allowed", event)
        if tag := getattr(event, "tag", None):
            raise _refusal(f"a tag, {str(tag)[:60]!r}, which is not allowed", event)
        if self.nesting >= NESTING_MAX:
            raise _refusal(f"more than {NESTING_MAX} levels", event)
        self.nesting += 1
        node = super().compose_node(parent, index)
        self.nesting -= 1
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _refusal(f"key {key.value[:60]!r} a second time", key)
                seen.add(key.value)
        return node


def _refusal(problem: str, at: yaml.Event | yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.composer.ComposerError(problem=problem, problem_mark=at.start_mark)  # type: ignore[arg-type]


def load(path: Path, loader: type[yaml.SafeLoader] = _Loader, bytes_max: int = FILE_BYTES_MAX) -> Document | Fault:
    """The file's one document, or what keeps it from being read: its path, with line and column where known.

    Another `loader` is for files that are not ours; whoever takes one bounds what it lets through.
    """
    try:
        with open_regular(path) as file:
            raw = file.read(bytes_max + 1)
    except OSError as error:
        return Fault(str(path), "a readable file", error.strerror or str(error))
    if len(raw) > bytes_max:
        return Fault(str(path), f"at most {bytes_max} bytes", "more")
    try:
        return Document(yaml.load(raw, Loader=loader))  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark
        place = f"{path}:{at.line + 1}:{at.column + 1}" if at else str(path)
        return Fault(place, "YAML", error.problem or str(error))
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        # Bytes that are no text, dates and numbers that do not exist, nesting where the loader has no bound.
        return Fault(str(path), "YAML", " ".join(str(error).split())[:200])


def faults_in(path: Path, faults: Iterable[Fault]) -> list[Fault]:
    """Faults of what the file says, with the file before the place: for commands that read several."""
    return [replace(fault, path=f"{path}: {fault.path or '(top)'}") for fault in faults]
