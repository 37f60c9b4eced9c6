"""A journal's requests, each with what was known of its node when it went there, and how long its first token took.

The journal is driven through a balancer as `replay` does it: so the router's own numbers are those of then.
"""

import math
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct, field

from extproc.core.settings import Fault
from extproc.correlate.signals import SIGNALS, Moment, is_fresh
from extproc.journal import lines
from extproc.replay.drive import PROGRESS_LINES, Replay
from extproc.replay.read import OtherFormat, Read, Unread, open_journal
from extproc.replay.result import Replayed

REQUESTS_MAX: Final = 500_000
"""So many requests are looked at, the first ones: their numbers take 150 bytes each."""
OPEN_MAX: Final = 100_000
"""Requests without a first token are forgotten, the oldest first, beyond so many."""


T = TypeVar("T")


class Wanted(Struct, frozen=True):
    """Which requests count; empty: all."""

    node_id: str = ""
    model: str = ""
    arm: str = ""
    """`strategy` or `control`: see the policy's `canary`."""


class Gathered(Struct):
    """What was found. Lists have one number for each request, NaN where a signal was not known."""

    replayed: Replayed
    ttft_s: "array[float]" = field(default_factory=lambda: array("d"))
    """From going to the node until the first token came by."""
    signals: "dict[str, array[float]]" = field(default_factory=lambda: {one.name: array("d") for one in SIGNALS})
    chosen: int = 0
    """Requests that went to a node, of those that are wanted."""
    stale: int = 0
    """Of these, to a node without a fresh snapshot."""
    moved: int = 0
    """Of these, that were served by another node than the chosen one."""
    left_out: int = 0
    """First tokens beyond `REQUESTS_MAX`."""


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


class _Watch:
    """Looks at the replay's balancer before each line that sends a request somewhere."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._replay = Replay()
        self._models: dict[str, str] = {}
        """Of requests that wait."""
        self._sent: dict[str, _Sent] = {}
        self._found = Gathered(self._replay.result())

    def take(self, read: Read) -> None:
        line = read.line
        if isinstance(line, lines.Head) and line.begins:
            self._models.clear()
            self._sent.clear()
        if isinstance(line, lines.Routed | lines.Admitted):
            self._goes(line)
        self._replay.take(read)
        match line:
            case lines.FirstToken(now_s=now_s, request_id=request_id):
                self._first_token(request_id, now_s)
            case lines.Served(request_id=request_id):
                self._found.moved += self._sent.pop(request_id, None) is not None
            case lines.Finished(request_id=request_id):
                self._forget(request_id)
            case lines.Told(answered=answered) if answered.over:
                self._forget(answered.request_id)
            case OtherFormat() | Fault() | Unread():
                self._sent.clear()  # what comes next may be of another run
            case _:
                pass

    def result(self, files: tuple[str, ...]) -> Gathered:
        self._found.replayed = self._replay.result(files)
        return self._found

    def _goes(self, line: lines.Routed | lines.Admitted) -> None:
        decided, request_id = (
            line.decided,
            line.request.request_id if isinstance(line, lines.Routed) else line.request_id,
        )
        if decided is None:
            return
        model = line.request.model if isinstance(line, lines.Routed) else self._models.pop(request_id, "")
        if decided.queued is not None:
            _remember(self._models, request_id, decided.model or model)
        if decided.chosen is None or not self._counts(decided, decided.model or model):
            return
        balancer = self._replay.balancer
        view = None if balancer is None else balancer.view_of(decided.chosen.node_id)
        if balancer is None or view is None:
            return
        self._found.chosen += 1
        moment = Moment(view, line.now_s, max(1, decided.uncached_tokens or 1))
        if not is_fresh(moment, balancer.settings.nodes):
            self._found.stale += 1
            return
        values = (one.of(moment) for one in SIGNALS)
        kept = tuple(math.nan if value is None else float(value) for value in values)
        _remember(self._sent, request_id, _Sent(line.now_s, kept))

    def _counts(self, decided: lines.Decided, model: str) -> bool:
        wanted = self._wanted
        return (
            wanted.node_id in ("", decided.node_id) and wanted.model in ("", model) and wanted.arm in ("", decided.arm)
        )

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

    def _forget(self, request_id: str) -> None:
        self._sent.pop(request_id, None)
        self._models.pop(request_id, None)


def _remember(kept: dict[str, T], request_id: str, one: T) -> None:
    kept[request_id] = one
    if len(kept) > OPEN_MAX:
        del kept[next(iter(kept))]
