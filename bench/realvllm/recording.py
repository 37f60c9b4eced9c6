"""A recorded run: what the agent read, what it reported, what vLLM logged, and what the clients had; as JSON lines.

Each line is `{"t_s": …}` with one thing more, on the harness's clock from the run's start:
`"page"`: series of vLLM's /metrics that changed since the page before (`null`: gone), as the agent read it;
`"snapshot"`: fields of the agent's report that changed since the one before, `t_s` is when the sample was taken;
`"log"`: a line of vLLM's own statistics; `"clients"`: what the clients had then;
`"phase"`: a part of the run begins; `"answers"`: what the answers since vLLM's start said of their tokens.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

Values = Mapping[str, Any]
T = TypeVar("T")
At = tuple[float, T]
"""Something, and when it was."""


@dataclass(slots=True)
class Recording:
    """All of a run, whole values instead of changes."""

    pages: list[At[Values]] = field(default_factory=list)
    """By series, as `name{label="…"}`; the values are texts as vLLM wrote them."""
    snapshots: list[At[Values]] = field(default_factory=list)
    """Fields of `core.snapshot.Snapshot` that are not absent, with the state's word and models as [name, length]."""
    logs: list[At[str]] = field(default_factory=list)
    clients: list[At[Values]] = field(default_factory=list)
    phases: list[At[str]] = field(default_factory=list)
    answers: list[At[Values]] = field(default_factory=list)


KINDS = {
    "page": "pages",
    "snapshot": "snapshots",
    "log": "logs",
    "clients": "clients",
    "phase": "phases",
    "answers": "answers",
}
"""How a line names what stands in which list."""
_CHANGES = ("page", "snapshot")


def series_of(page: str) -> dict[str, str]:
    """A page without comments, buckets and times of creation, by series: what an adapter may read."""
    lines = (line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#"))
    return {series: value for series, _, value in lines if _may_be_read(series.partition("{")[0])}


def page_of(series: Values) -> str:
    """The page again."""
    return "".join(f"{name} {value}\n" for name, value in series.items())


def written(recording: Recording, path: Path) -> None:
    """Write the lines in the order of their times."""
    lines = [line for kind in KINDS for line in _lines(kind, getattr(recording, KINDS[kind]))]
    lines.sort(key=lambda line: line["t_s"])
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def recorded(path: Path) -> Recording:
    """Read them again."""
    recording = Recording()
    known: dict[str, Values] = dict.fromkeys(_CHANGES, {})
    for text in path.read_text().splitlines():
        line = json.loads(text)
        t_s = line.pop("t_s")
        ((kind, value),) = line.items()
        if kind in _CHANGES:
            value = known[kind] = _changed(known[kind], value)
        getattr(recording, KINDS[kind]).append((t_s, value))
    return recording


def _may_be_read(name: str) -> bool:
    told = name.startswith("vllm:") or name == "process_start_time_seconds"
    return told and not name.endswith(("_bucket", "_created"))


def _lines(kind: str, found: Iterable[At[Any]]) -> Iterable[dict[str, Any]]:
    before: Values = {}
    for t_s, value in found:
        told = value
        if kind in _CHANGES:
            told, before = _changes(before, value), value
        yield {"t_s": round(t_s, 3), kind: told}


def _changes(before: Values, after: Values) -> dict[str, Any]:
    gone = {name: None for name in before if name not in after}
    return {name: value for name, value in after.items() if before.get(name) != value} | gone


def _changed(before: Values, changes: Values) -> dict[str, Any]:
    return {name: value for name, value in {**before, **changes}.items() if value is not None}
