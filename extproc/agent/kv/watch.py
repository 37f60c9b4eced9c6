"""What one engine has in its prefix cache, as far as its publishers' messages tell, and whether they tell all of it.

Messages are numbered from 0 by each publisher. What is known rests on every one of them: a missed removal leaves blocks
that are no more, and a missed block all that stand behind it. So a number that is left out ends what was known of that
publisher's cache. It is known again when the engine has emptied its cache, began anew, or sends again what was missed.
Until then nothing is told, and routers go by their own estimate, which is better than half of the truth.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from extproc.agent.kv.blocks import EngineBlocks
from extproc.agent.kv.events import Batch, Cleared, batch_in_slices

ANEW_APART_S: Final = 60.0
"""An engine that began anew is noticed by its messages and by its metrics, within this time of each other."""


class KvReport:
    """What changed in a node's prefix cache since the report before."""

    def __init__(
        self, node_id: str, boot_id: str, blocks: EngineBlocks | None, stored: Sequence[int], removed: Sequence[int]
    ) -> None:
        self.node_id = node_id
        self.boot_id = boot_id
        self.stored = stored
        self.removed = removed
        self._blocks = blocks

    @property
    def known(self) -> bool:
        """Whether it is known what the node has."""
        return self._blocks is not None

    @cached_property
    def everything(self) -> Sequence[int]:
        """All that there is; to be asked for before anything else is heard."""
        return () if self._blocks is None else tuple(self._blocks.held)


@dataclass(slots=True)
class _Order:
    """How far one publisher was heard."""

    expected: int | None = None
    """The number of its next message; `None`: nothing was heard of it yet."""
    known: bool = False
    """Whether all that it has was told."""
    again: tuple[int, int] = (0, -1)
    """Numbers, the first and the last, that were sent again and may yet come by the usual way."""
    begun: int = 0
    """How often its engine began anew."""
    anew_s: float | None = None
    """When its numbers began anew, as long as nothing else has told that the engine did."""

    def is_old(self, sequence: int) -> bool:
        first, last = self.again
        return self.expected is not None and first <= sequence <= last and sequence < self.expected


@dataclass(slots=True)
class KvCounts:
    """What was heard, since the agent's start."""

    batches: int = 0
    events: int = 0
    gaps: int = 0
    """Times that messages were missed and not sent again."""
    left_out: int = 0
    """Events that are of no use here."""
    malformed: int = 0
    """Messages and events that are none."""


class KvWatch:
    """Takes an engine's messages in the order of their coming. Raises for none."""

    def __init__(self, publishers: int, blocks_max: int) -> None:
        self.counts = KvCounts()
        self.blocks = EngineBlocks(blocks_max)
        self._orders = [_Order() for _ in range(publishers)]

    @property
    def known(self) -> bool:
        """Whether it is known what the engine has."""
        return self.blocks.settled and all(order.known for order in self._orders)

    def missing_before(self, publisher: int, sequence: int) -> int | None:
        """The first of the messages that are missing before this one, which may be sent again; `None`: none is."""
        order = self._orders[publisher]
        if order.is_old(sequence):
            return None
        first = 0 if order.expected is None or sequence < order.expected else order.expected
        return first if first < sequence else None

    def heard(self, publisher: int, sequence: int, payload: bytes, now_s: float, before: int | None = None) -> None:
        """Take a message. `before`: it was sent again, since this one came too early."""
        for _ in self.hear_in_slices(publisher, sequence, payload, now_s, before):
            pass

    def hear_in_slices(
        self, publisher: int, sequence: int, payload: bytes, now_s: float, before: int | None = None
    ) -> Generator[None, None, None]:
        """The same, which lets others go on after each few milliseconds: all but messages of the same publisher.

        Who closes it before its end has lost a part of the message, and what was known with it.
        """
        order = self._orders[publisher]
        if order.is_old(sequence):
            return
        if order.expected is None or sequence < order.expected:
            if order.expected is not None:
                order.anew_s = now_s
            self._begin(publisher)
        if sequence != order.expected:
            self.counts.gaps += 1
            self.blocks.clear(publisher)
            order.known = False
        order.expected = sequence + 1
        if before is not None:
            order.again = (before, sequence)
        self.counts.batches += 1
        begun = order.begun
        try:
            batch = yield from batch_in_slices(payload)
            if order.begun != begun:
                return  # the engine began anew meanwhile, and this is of before
            if batch is None:
                self.counts.malformed += 1
                self._doubt(publisher)
                return
            self.counts.events += len(batch.events)
            self.counts.left_out += batch.left_out
            self.counts.malformed += batch.malformed
            if batch.doubtful:
                self._doubt(publisher)
                return
            for _ in self._take(publisher, batch):
                yield
                if order.begun != begun:
                    return
        except GeneratorExit:
            if order.begun == begun:
                self._doubt(publisher)
            raise

    def all_heard_again(self, publisher: int) -> None:
        """It has sent again all that there is: if that was nothing, it has said nothing yet."""
        if self._orders[publisher].expected is None:
            self._begin(publisher)

    def began_anew(self, now_s: float) -> None:
        """The engine did, by what else is seen of it: it has nothing, and its numbers begin again, or just did."""
        for publisher, order in enumerate(self._orders):
            noticed_s, order.anew_s = order.anew_s, None
            if noticed_s is None or now_s - noticed_s > ANEW_APART_S:
                self._begin(publisher)

    def report(self, node_id: str, boot_id: str) -> KvReport:
        """What changed since the latest report."""
        stored, removed = self.blocks.cut()
        return KvReport(node_id, boot_id, self.blocks if self.known else None, stored, removed)

    def _begin(self, publisher: int) -> None:
        order = self._orders[publisher]
        self.blocks.clear(publisher)
        order.begun += 1
        order.expected, order.known, order.again = 0, True, (0, -1)

    def _doubt(self, publisher: int) -> None:
        """What it said cannot be read: it may have been a removal."""
        self.blocks.clear(publisher)
        self._orders[publisher].known = False

    def _take(self, publisher: int, batch: Batch) -> Iterator[None]:
        order = self._orders[publisher]
        if not order.known:
            clearings = [place for place, event in enumerate(batch.events) if isinstance(event, Cleared)]
            if not clearings:
                return
            order.known = True
            batch = Batch(batch.rank, batch.events[clearings[-1] :], 0, 0)
        yield from self.blocks.take_in_slices(publisher, batch)
