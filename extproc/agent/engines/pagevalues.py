"""What adapters make of a page's samples: sums over series, shares, means between two looks, and signs of a restart.

Values only, for every engine. Where a function answers with a text, the text is why the signal is absent; it names the
metric. A series with a senseless number spoils its whole sum, for what the others add up to is not the engine's.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from extproc.agent.engines.decodes import Drift
from extproc.agent.engines.exposition import SAMPLES_MAX, Page, Sample, sums_by
from extproc.agent.engines.reading import Total, count_of, seconds_of
from extproc.core.snapshot import COUNTER_MAX, REQUESTS_MAX

REMEMBERED_MAX = 2 * SAMPLES_MAX
"""Counters that are remembered, those on the page and others; real ones are hundreds. A label that is new at each look
must not fill the memory."""
ROUNDED = 1e-5
"""Share by which a difference of two numbers with six digits may be off."""

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Look:
    """What one look hands on to the next; the values are only compared."""

    started_at_s: float | None = None
    """The engine's process start by its own wall clock."""
    counters: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """What never falls while the engine lives, by metric and by whatever tells its series apart."""
    drifts: Mapping[str, Drift] = field(default_factory=dict)
    """By engine, for `decodes`."""
    totals: Mapping[str, Total] = field(default_factory=dict)
    """For means, by metric."""
    marks: tuple[float | None, ...] = ()
    """What moves while the engine works."""
    prefill_tokens: int | None = None


def spelled(page: Page, names: Sequence[str]) -> str:
    """The spelling that this page has, of one metric whose name changed; the first one if it has none."""
    return next((name for name in names if name in page), names[0])


def sum_of(page: Page, name: str) -> float | None:
    """Over all series, whatever the numbers are; `None`: no series."""
    samples = page.get(name)
    return sum(sample.value for sample in samples) if samples else None


def requests_of(page: Page, name: str) -> int | str:
    """A gauge of requests over all series."""
    return count_over(page.get(name, ()), name, REQUESTS_MAX)


def count_over(samples: Iterable[Sample], name: str, maximum: int = COUNTER_MAX) -> int | str:
    """The sum of whole numbers, itself in 0..maximum."""
    total, seen = 0, False
    for sample in samples:
        count = count_of(sample.value, maximum, name)
        if isinstance(count, str):
            return count
        total, seen = total + count, True
    return count_of(total if seen else None, maximum, name)


def seconds_over(page: Page, name: str) -> float | str:
    """A counter of seconds over all series."""
    samples = page.get(name, ())
    for sample in samples:
        if isinstance(fault := seconds_of(sample.value, name), str):
            return fault
    return seconds_of(sum(sample.value for sample in samples) if samples else None, name)


def share_over(shares: Mapping[str, float], sizes: Mapping[str, float], name: str) -> float | str:
    """The mean of shares 0..1, weighed by the size of what each is a share of where every size is known and positive;
    `name` is their metric."""
    if not shares:
        return f"{name} is missing"
    if not all(0 <= share <= 1 for share in shares.values()):
        return f"{name} is not in 0..1"
    if shares.keys() == sizes.keys() and all(0 < size < math.inf for size in sizes.values()):
        whole = sum(sizes.values())
        return min(1.0, sum(share * (sizes[key] / whole) for key, share in shares.items()))
    return min(1.0, sum(shares.values()) / len(shares))


def available_of(usage: float | str, blocks_total: int | str) -> int | str:
    """Free KV blocks out of the share in use."""
    if isinstance(usage, str):
        return usage
    return blocks_total if isinstance(blocks_total, str) else round((1 - usage) * blocks_total)


def pending_of(decodes: int | str, running: int | str, waiting: int | str) -> int | str:
    """Requests without their first token: those that are there less those past it."""
    if isinstance(running, str):
        return running
    if isinstance(waiting, str):
        return waiting
    return decodes if isinstance(decodes, str) else max(0, running + waiting - decodes)


def label_count(label: str | None) -> int | None:
    """A positive whole number out of a label; `None` for anything else, as `None` in letters."""
    return int(label) if label and label.isascii() and label.isdigit() and len(label) <= 18 and int(label) > 0 else None


def totals_in(page: Page, names: Iterable[str]) -> dict[str, Total]:
    """The `_sum` and `_count` of each histogram that the page has, over all its series."""
    return {name: total for name in names if (total := total_where(page, name, {})) is not None}


def total_where(page: Page, name: str, labels: Mapping[str, str]) -> Total | None:
    """The same of one histogram, over its series with these labels; `None`: it has none."""
    seconds, counts = (samples_where(page, f"{name}{part}", labels) for part in ("_sum", "_count"))
    return Total(sum(one.value for one in seconds), sum(one.value for one in counts)) if seconds and counts else None


def samples_where(page: Page, name: str, labels: Mapping[str, str]) -> list[Sample]:
    """One metric's series with these labels."""
    return [sample for sample in page.get(name, ()) if labels.items() <= sample.labels.items()]


def mean_ms(names: Sequence[str], totals: Mapping[str, Total], before: Look | None) -> float | str:
    """The mean in ms since the look before, by the first of the histograms that the page has."""
    for name in names:
        if name in totals:
            return totals[name].mean_ms_since(None if before is None else before.totals.get(name), name)
    return f"{names[0]} is missing"


def counters_in(page: Page, names: Iterable[str], label: str) -> dict[tuple[str, str], float]:
    """Counters by metric and by the label's value, for `restarted`."""
    return {(name, value): sum_ for name in names for value, sum_ in sums_by(page, name, label).items()}


def remembered(counters: Mapping[tuple[str, str], float], before: Look | None) -> Mapping[tuple[str, str], float]:
    """What the next look compares its counters with.

    One that is not on the page stays as it was: where series appear with their first count, there is nothing after a
    start that could be less than before. Over `REMEMBERED_MAX` those of them that came first are forgotten: at worst a
    restart is not seen that would have brought one back.
    """
    if before is None:
        return counters
    if len(before.counters) + len(counters) <= REMEMBERED_MAX:
        return {**before.counters, **counters}
    others = [item for item in before.counters.items() if item[0] not in counters]
    room = max(0, REMEMBERED_MAX - len(counters))
    return {**dict(others[max(0, len(others) - room) :]), **counters}


def seconds_told(names: Sequence[str], totals: Mapping[str, Total]) -> float | None:
    """The seconds since the engine's start of the first of the histograms that the page has; `None`: no number."""
    seconds = next((totals[name].seconds for name in names if name in totals), math.nan)
    return seconds if 0 <= seconds <= COUNTER_MAX else None


def restarted(started_at_s: float | None, counters: Mapping[tuple[str, str], float], before: Look | None) -> bool:
    """Whether the engine began anew since the look before.

    Its process start tells, where the page has it at both looks. Else counters must have fallen together.
    """
    if before is None:
        return False
    if started_at_s is not None and before.started_at_s is not None:
        return started_at_s != before.started_at_s
    return fell_together(counters, before.counters)


def fell_together(counters: Mapping[K, float], before: Mapping[K, float]) -> bool:
    """Whether more than half of the counters fell, of those that had moved and are still there.

    One that falls alone is no counter; `Doubts` tells what becomes of it. What six digits round is no fall.
    """
    pairs = [(counters[name], known) for name, known in before.items() if known > 0 and name in counters]
    fallen = sum(now < known * (1 - ROUNDED) for now, known in pairs)
    return 2 * fallen > len(pairs)


def stands_still(
    marks: tuple[float | None, ...], steps: int, running: int | str, waiting: int | str, before: Look | None
) -> bool:
    """Whether the engine has work and nothing moved since the look before.

    `marks` are of everything that moves; the first `steps` of them are counters of an engine's steps, without one of
    which nobody knows.
    """
    has_work = any(isinstance(count, int) and count > 0 for count in (running, waiting))
    counts_steps = any(mark is not None for mark in marks[:steps])
    return before is not None and has_work and counts_steps and marks == before.marks
