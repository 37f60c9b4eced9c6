"""A recorded run: what the agent read, what it reported, what vLLM logged, and what the clients had; as JSON lines.

Each line is `{"t_s": …}` with one thing more, on the harness's clock from the run's start:
`"page"`: series of vLLM's /metrics that changed since the page before (`null`: gone), as the agent read it;
`"snapshot"`: fields of the agent's report, made from that page, that changed since the report before; while vLLM is
not ready, reports without a change are left out;
`"log"`: a line of vLLM's own statistics; `"clients"`: what the clients had then;
`"phase"`: a part of the run begins; `"answers"`: what the answers since vLLM's start said of their tokens;
`"repeat"`: a prompt's tokens, those of them that vLLM should find in its cache by its KV events, and those it found.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

ROUNDED: Final = 6
"""Digits behind the point of reported numbers."""
_READ: Final = re.compile(
    r"process_start_time_seconds"
    r"|vllm:(num_requests_|engine_sleep_state|kv_cache_usage_perc|cache_config_info|num_preemptions_total"
    r"|(prefix_cache|prompt_tokens|generation_tokens|request_success|iteration_tokens)_\w*"
    r"|(time_to_first_token|inter_token_latency|request_prefill_time)_seconds_(sum|count))"
)
"""Series that an adapter may read, by the beginnings of their names."""
_LEFT_OUT: Final = re.compile(r"_(bucket|created)\{")

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
    """By when they came. Fields of `core.snapshot.Snapshot` that are not absent, the state as its word, models as
    [name, context length]."""
    logs: list[At[str]] = field(default_factory=list)
    clients: list[At[Values]] = field(default_factory=list)
    phases: list[At[str]] = field(default_factory=list)
    answers: list[At[Values]] = field(default_factory=list)
    repeats: list[At[Values]] = field(default_factory=list)


KINDS: Final = {
    "page": "pages",
    "snapshot": "snapshots",
    "log": "logs",
    "clients": "clients",
    "phase": "phases",
    "answers": "answers",
    "repeat": "repeats",
}
"""How a line names what stands in which list."""
_CHANGES: Final = ("page", "snapshot")


def series_of(page: str) -> dict[str, str]:
    """What an adapter may read of a page, by series."""
    lines = (line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#"))
    return {series: value for series, _, value in lines if _READ.match(series) and not _LEFT_OUT.search(series)}


def page_of(series: Values) -> str:
    """The page again."""
    return "".join(f"{name} {value}\n" for name, value in series.items())


def written(recording: Recording, path: Path) -> None:
    """Write the lines in the order of their times."""
    lines = [line for kind in KINDS for line in _lines(kind, getattr(recording, KINDS[kind]))]
    lines.sort(key=lambda line: line["t_s"])  # stable: a page stays before what was made from it
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def recorded(path: Path) -> Recording:
    """Read them again."""
    recording = Recording()
    known: dict[str, Values] = {kind: {} for kind in _CHANGES}
    for text in path.read_text().splitlines():
        line = json.loads(text)
        t_s = line.pop("t_s")
        ((kind, value),) = line.items()
        if kind in _CHANGES:
            value = known[kind] = _changed(known[kind], value)
        getattr(recording, KINDS[kind]).append((t_s, value))
    return recording


def _lines(kind: str, found: Iterable[At[Any]]) -> Iterable[dict[str, Any]]:
    before: Values = {}
    for t_s, value in found:
        told = value
        if kind in _CHANGES:
            if kind == "snapshot" and value["state"] != "ready" and _changes(before, value).keys() <= {"sample_age_s"}:
                continue
            told, before = _changes(before, value), value
        yield {"t_s": round(t_s, 3), kind: told}


def _changes(before: Values, after: Values) -> dict[str, Any]:
    gone = {name: None for name in before if name not in after}
    return {name: value for name, value in after.items() if before.get(name) != value} | gone


def _changed(before: Values, changes: Values) -> dict[str, Any]:
    return {name: value for name, value in {**before, **changes}.items() if value is not None}
