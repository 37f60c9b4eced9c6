"""What a replay found, and how it is counted."""

import enum
from collections import Counter
from typing import Final

from msgspec import Struct

from extproc.core.settings import Fault
from extproc.journal.lines import Decided, as_written

SHOWN_MAX: Final = 20
"""Differences and faults that are kept; all are counted."""


class Doubt(enum.Enum):
    """Why the state may not be that of then."""

    BEGINNING_GONE = "the beginning of its run is gone"
    FILE_MISSING = "a file before it is missing"
    LINES_LOST = "lines before it could not be written"
    DAMAGED = "lines before it are damaged"


class Difference(Struct, frozen=True):
    """A decision that came out otherwise."""

    where: str
    request_id: str
    wanted: Decided | None
    """As recorded; `None`: the balancer raised."""
    got: Decided | None


class Choices(Struct, frozen=True):
    """What one policy chose."""

    per_node: dict[str, int]
    refused: int
    unknown: int
    """Requests that Envoy's own cluster serves."""
    queued: int
    """Requests that were to wait for room; each of them counts again when it goes or is turned away."""
    uncached_tokens_mean: float | None
    """Over the decisions that costs made; `None`: there is none."""


CAVEAT: Final = (
    "Each choice by the state that the recorded choices had made, not its own: a node that they avoided looks empty to "
    "the other policy again and again, and one that they filled looks full."
)


class Comparison(Struct, frozen=True):
    """The recorded choices beside those of another policy, each in the state that the recorded ones had made."""

    policy: str
    decisions: int
    same_node: int
    """Or both refused, left to Envoy, or told to wait."""
    other_node: int
    recorded: Choices
    would_be: Choices
    caveat: str = CAVEAT
    """What the figures do not say; `extproc simulate` does."""


class Replayed(Struct, frozen=True):
    """All of it."""

    files: tuple[str, ...]
    lines: int
    runs: int
    """Lives of a `serve`."""
    versions: tuple[str, ...]
    """Of extproc, that wrote it."""
    decisions: int
    identical: int
    different: int
    not_compared: dict[str, int]
    """Decisions by the value of their `Doubt`."""
    not_compared_same_node: int
    """How many of these went to the same node nevertheless, or to none."""
    lines_lost: int
    damaged: int
    """Lines that could not be used. The last one of a run is none: a crash cuts it, and nothing follows from it."""
    cut: int
    """Such last lines."""
    unread: int
    """Lines behind a first line that cannot be used: of another format, say. Their one fault is among the damage."""
    differences: tuple[Difference, ...]
    """The first `SHOWN_MAX`."""
    damage: tuple[Fault, ...]
    """The first `SHOWN_MAX`."""
    comparison: Comparison | None

    @property
    def unproven(self) -> str | None:
        """Why nothing at all was compared; `None`: something was."""
        if not self.decisions:
            return "no decision could be read" if self.damaged else "no decision was recorded"
        compared = self.identical + self.different + (0 if self.comparison is None else self.comparison.decisions)
        return None if compared else "no decision could be compared"

    @property
    def good(self) -> bool:
        """Something was compared, and nothing is damaged or differs."""
        return self.unproven is None and not (self.different or self.damaged)


class Tally:
    """What was found so far."""

    def __init__(self) -> None:
        self.lines = 0
        self.runs = 0
        self.lines_lost = 0
        self.cut = 0
        self.unread = 0
        self._identical = 0
        self._different = 0
        self._doubted: Counter[Doubt] = Counter()
        self._doubted_same_node = 0
        self._damaged = 0
        self._versions: dict[str, None] = {}
        self._differences: list[Difference] = []
        self._damage: list[Fault] = []
        self._recorded, self._would_be = _Side(), _Side()
        self._same_node = self._other_node = 0

    def version(self, version: str) -> None:
        """A version of extproc wrote what follows."""
        if len(self._versions) < SHOWN_MAX:
            self._versions[version] = None

    def damaged(self, fault: Fault) -> None:
        """A line cannot be used."""
        self._damaged += 1
        if len(self._damage) < SHOWN_MAX:
            self._damage.append(fault)

    def decided(
        self, where: str, request_id: str, wanted: Decided | None, got: Decided | None, doubt: Doubt | None
    ) -> None:
        """A decision was made again; `None`: the balancer raised."""
        identical = wanted == got or (got is not None and wanted == as_written(got))
        if doubt is not None:
            self._doubted[doubt] += 1
            self._doubted_same_node += identical or _same_node(wanted, got)
        elif identical:
            self._identical += 1
        else:
            self._different += 1
            if len(self._differences) < SHOWN_MAX:
                self._differences.append(Difference(where, request_id, wanted, got))

    def beside(self, recorded: Decided, would_be: Decided) -> None:
        """Another policy would have decided so."""
        self._recorded.count(recorded)
        self._would_be.count(would_be)
        if _same_node(recorded, would_be):
            self._same_node += 1
        else:
            self._other_node += 1

    def result(self, files: tuple[str, ...], other: str | None) -> Replayed:
        """All of it; `other` is the policy that stood beside the recorded ones."""
        comparison = None
        if other is not None:
            decisions = self._same_node + self._other_node
            sides = (self._recorded.choices(), self._would_be.choices())
            comparison = Comparison(other, decisions, self._same_node, self._other_node, *sides)
        return Replayed(
            files=files,
            lines=self.lines,
            runs=self.runs,
            versions=tuple(self._versions),
            decisions=self._identical + self._different + self._doubted.total(),
            identical=self._identical,
            different=self._different,
            not_compared={doubt.value: count for doubt, count in self._doubted.items()},
            not_compared_same_node=self._doubted_same_node,
            lines_lost=self.lines_lost,
            damaged=self._damaged,
            cut=self.cut,
            unread=self.unread,
            differences=tuple(self._differences),
            damage=tuple(self._damage),
            comparison=comparison,
        )


def _same_node(one: Decided | None, other: Decided | None) -> bool:
    if one is None or other is None:
        return False
    if (one.refused is None) is not (other.refused is None) or (one.queued is None) is not (other.queued is None):
        return False
    return one.node_id == other.node_id


class _Side:
    def __init__(self) -> None:
        self._nodes: Counter[str] = Counter()
        self._refused = self._unknown = self._queued = 0
        self._tokens = self._priced = 0

    def count(self, decided: Decided) -> None:
        if decided.chosen is not None:
            self._nodes[decided.chosen.node_id] += 1
        elif decided.refused is not None:
            self._refused += 1
        elif decided.queued is not None:
            self._queued += 1
        else:
            self._unknown += 1
        if decided.uncached_tokens is not None:
            self._tokens += decided.uncached_tokens
            self._priced += 1

    def choices(self) -> Choices:
        mean = self._tokens / self._priced if self._priced else None
        return Choices(dict(sorted(self._nodes.items())), self._refused, self._unknown, self._queued, mean)
