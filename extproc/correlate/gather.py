"""A journal's requests, each with what was known of its node when it went there, and how long its first token took.

The journal is driven through a balancer as `replay` does it: so the router's own numbers are those of then.
"""

import math
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from extproc.core.nodeledger import Reservation
from extproc.core.request import InferenceRequest
from extproc.core.settings import Fault, shown
from extproc.core.snapshot import NodeView
from extproc.correlate.signals import SIGNALS, Moment, is_fresh
from extproc.journal import lines
from extproc.replay.drive import PROGRESS_LINES, Replay
from extproc.replay.read import OtherFormat, Read, Unread, open_journal
from extproc.replay.result import Replayed

REQUESTS_MAX: Final = 500_000
"""So many requests are looked at, the first ones: their numbers take 130 bytes each, and twice that to compare them."""
OPEN_MAX: Final = 100_000
"""Requests without a first token are forgotten, the oldest first, beyond so many."""
NAMES_MAX: Final = 100
"""Names of nodes, of models and of arms that are remembered, to say which there are."""


class Wanted(Struct, frozen=True):
    """Which requests count; empty: all."""

    node: str = ""
    model: str = ""
    arm: str = ""
    """`strategy` or `control`: see the policy's `canary`."""


class Gathered(Struct):
    """What was found. Lists have one number for each request, NaN where a signal was not known."""

    replayed: Replayed
    ttft_s: "array[float]" = field(default_factory=lambda: array("d"))
    """From going to the node until the first token came by, in the order in which they came."""
    signals: "dict[str, array[float]]" = field(default_factory=lambda: {one.name: array("d") for one in SIGNALS})
    chosen: int = 0
    """Requests that went to a node, of those that are wanted."""
    stale: int = 0
    """Of these, to a node without a fresh snapshot."""
    moved: int = 0
    """Of these, that were served by another node than the chosen one."""
    without: int = 0
    """Of these, that ended and no first token had come by: cut off, failed, or not shown."""
    left_out: int = 0
    """First tokens beyond `REQUESTS_MAX`."""
    names: dict[str, dict[str, None]] = field(default_factory=lambda: {name: {} for name in Wanted.__struct_fields__})
    """Of all requests that went to a node, wanted or not, by the fields of `Wanted`; `NAMES_MAX` of each at most."""


class _Sent(Struct, frozen=True):
    now_s: float
    values: tuple[float, ...]


def gather(path: Path, wanted: Wanted, progress: Callable[[int, int], None]) -> Gathered | Fault:
    """Read a whole journal. `progress` is told the bytes read and those there are. Raises for no content of files."""
    journal = open_journal(path)
    if isinstance(journal, Fault):
        return journal
    watch = _Watch(wanted)
    for number, read in enumerate(journal):
        watch.take(read)
        if number % PROGRESS_LINES == 0:
            progress(read.bytes_read, journal.bytes_total)
    progress(journal.bytes_total, journal.bytes_total)
    return watch.result(journal.files)


def unmet(found: Gathered, wanted: Wanted) -> list[Fault]:
    """What was wanted and is nowhere in the journal, with what is there instead."""
    faults = []
    for name, there in found.names.items():
        value: str = getattr(wanted, name)
        if value and value not in there and len(there) < NAMES_MAX:
            known = ", ".join(map(shown, sorted(filter(None, there)))) or "no request went to any node"
            faults.append(Fault(f"--{name}", f"one of this journal's ({known})", shown(value)))
    return faults


class _Watch:
    """Takes a journal's lines and is told by the replay who goes where."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._replay = Replay(goes=self._goes)
        self._run = ""
        self._sent: dict[str, _Sent] = {}
        self._found = Gathered(self._replay.result())

    def take(self, read: Read) -> None:
        line = read.line
        self._replay.take(read)
        match line:
            case lines.Head(run=run):
                if line.begins or run != self._run:
                    self._sent.clear()
                self._run = run
            case lines.FirstToken(now_s=now_s, request_id=request_id):
                self._first_token(request_id, now_s)
            case lines.Served(request_id=request_id):
                self._found.moved += self._sent.pop(request_id, None) is not None
            case lines.Finished(request_id=request_id):
                self._ended(request_id)
            case lines.Told(answered=answered) if answered.over:
                self._ended(answered.request_id)
            case OtherFormat() | Fault() | Unread():
                self._sent.clear()  # what comes next may be of another run
            case _:
                pass

    def result(self, files: tuple[str, ...]) -> Gathered:
        self._found.replayed = self._replay.result(files)
        return self._found

    def _goes(
        self, request: InferenceRequest, reservation: Reservation, decided: lines.Decided, view: NodeView
    ) -> None:
        balancer = self._replay.balancer
        assert balancer is not None, "somebody said who goes"
        if not self._counts(Wanted(reservation.node_id, request.model, decided.arm)):
            return
        self._found.chosen += 1
        moment = Moment(view, reservation.opened_s, max(1, reservation.uncached_tokens))
        if not is_fresh(moment, balancer.settings.nodes):
            self._found.stale += 1
            return
        values = (one.of(moment) for one in SIGNALS)
        kept = tuple(math.nan if value is None else float(value) for value in values)
        self._sent[request.request_id] = _Sent(moment.now_s, kept)
        if len(self._sent) > OPEN_MAX:
            del self._sent[next(iter(self._sent))]

    def _counts(self, one: Wanted) -> bool:
        counts = True
        for name, known in self._found.names.items():
            value, wanted = getattr(one, name), getattr(self._wanted, name)
            if len(known) < NAMES_MAX:
                known[value] = None
            counts = counts and wanted in ("", value)
        return counts

    def _first_token(self, request_id: str, now_s: float) -> None:
        sent = self._sent.pop(request_id, None)
        if sent is None or now_s < sent.now_s:
            return
        if len(self._found.ttft_s) >= REQUESTS_MAX:
            self._found.left_out += 1
            return
        self._found.ttft_s.append(now_s - sent.now_s)
        for signal, value in zip(SIGNALS, sent.values, strict=True):
            self._found.signals[signal.name].append(value)

    def _ended(self, request_id: str) -> None:
        self._found.without += self._sent.pop(request_id, None) is not None
