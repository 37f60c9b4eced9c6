"""Prometheus' text format, as far as an adapter needs it: the wanted samples out of a page, fast.

A page of vLLM has 600 lines, of which some twenty matter. So each line is looked at once: its name is cut off and
looked up whole (`vllm:num_requests_waiting` is also the beginning of another metric), and only the lines that are
wanted are parsed. What is malformed is left out: a missing sample is an absent signal, never an exception.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a page."""

    labels: Mapping[str, str]
    value: float
    """May be NaN or infinite."""


Page = Mapping[str, list[Sample]]
"""Samples by metric name, in the page's order."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
# Possessive (`++`, `*+`): a value without its closing quote costs no memory for ways back.
_LABEL = re.compile(r'[\s,]*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_LABELS_END = re.compile(r"[\s,]*\}")
_ESCAPE = re.compile(r'\\[\\n"]')
_ESCAPED = {r"\\": "\\", r"\n": "\n", r"\"": '"'}


def samples_of(text: str, names: Collection[str]) -> Page:
    """The samples of the wanted names; a name without any is not in the result. Raises for no input."""
    page: dict[str, list[Sample]] = {}
    for raw in text.split("\n"):
        name = _NAME.match(raw) or _NAME.match(raw := raw.strip())
        if name is None or name[0] not in names:
            continue
        sample = _sample_of(raw, name.end())
        if sample is not None:
            page.setdefault(name[0], []).append(sample)
    return page


def sums_by(page: Page, name: str, label: str) -> dict[str, float]:
    """One metric's sums by a label's value; samples without the label count as one more, ""."""
    sums: dict[str, float] = {}
    for sample in page.get(name, ()):
        value = sample.labels.get(label, "")
        sums[value] = sums.get(value, 0.0) + sample.value
    return sums


def _sample_of(line: str, name_end: int) -> Sample | None:
    rest = line[name_end:].lstrip()
    labels: dict[str, str] = {}
    if rest.startswith("{"):
        position = 1
        while label := _LABEL.match(rest, position):
            if label[1] in labels:
                return None
            labels[label[1]] = _ESCAPE.sub(lambda escape: _ESCAPED[escape[0]], label[2])
            position = label.end()
        end = _LABELS_END.match(rest, position)
        if end is None:
            return None
        rest = rest[end.end() :]
    elif rest == line[name_end:]:
        return None  # the name goes on with a character that no name has
    words = rest.split()
    if not 1 <= len(words) <= 2 or "_" in words[0]:  # a value and perhaps a timestamp
        return None
    try:
        return Sample(labels, float(words[0]))
    except ValueError:
        return None
