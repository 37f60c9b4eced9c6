"""The sequences that decode, kept so that a step costs nothing for those that it only moves on.

Each of them computes one token in every step. So how far they are follows from one number, the steps that the engine
has ended, and two things can be looked up instead of searched: who gets its last token at the end of a step (a heap),
and for whom a step begins or fills a KV block (a ring with one place for each position in a block).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from extproc.sim.events import Request
from extproc.sim.holding import Holding


@dataclass(slots=True, eq=False)
class OpenSequence:
    """A sequence that an engine has not finished."""

    request: Request
    arrived_s: float
    known: int
    """Prompt and output tokens that exist; the cache may lag behind. Not kept while it is in a batch."""
    held: Holding
    computed: int = 0
    """Tokens whose KV is in the cache. Not kept while it is in a batch: all but the last one."""
    planned: int = 0
    """Prompt tokens that the step in flight computes."""
    turn: int = -1
    """Its number in the batch."""
    lead: int = 0
    """In a batch: known tokens less the steps that the engine has ended."""
    cached_tokens: int = 0
    preemptions: int = 0
    aborted: bool = False
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0
    """Not kept while it is in a batch: the end of the last step."""

    @property
    def total(self) -> int:
        """Tokens that exist when it is complete."""
        return self.request.prompt_tokens + self.request.output_tokens


class Batch:
    """Sequences in the order in which they joined. `step` is the number of steps that ended before the one meant."""

    def __init__(self, block_size_tokens: int) -> None:
        self._sequences: dict[int, OpenSequence] = {}
        self._due: list[tuple[int, int]] = []
        """Heap of (step, turn); a turn that has left is passed over."""
        self._ring: tuple[dict[int, OpenSequence], ...] = tuple({} for _ in range(block_size_tokens))
        self._turns = 0
        self._leads = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[OpenSequence]:
        return iter(self._sequences.values())

    def __contains__(self, sequence: OpenSequence) -> bool:
        return sequence.turn in self._sequences

    def known_tokens(self, step: int) -> int:
        """Σ known tokens when this step begins: what it reads of the KV cache."""
        return self._leads + len(self._sequences) * step

    def join(self, sequence: OpenSequence, step: int) -> None:
        """Every token but its last known one is computed; this step computes that one."""
        assert sequence.known < sequence.total
        self._turns = turn = self._turns + 1
        sequence.turn = turn
        sequence.lead = lead = sequence.known - step
        self._sequences[turn] = sequence
        self._leads += lead
        heappush(self._due, (sequence.total - lead - 1, turn))
        # The step that computes a block's first token, and the one that computes its last.
        self._ring[(1 - lead) % len(self._ring)][turn] = sequence
        if sequence.held.publishing:
            self._ring[-lead % len(self._ring)][turn] = sequence

    def remove(self, sequence: OpenSequence) -> None:
        """It leaves before its last token, or with it."""
        turn, lead = sequence.turn, sequence.lead
        del self._sequences[turn]
        self._leads -= lead
        del self._ring[(1 - lead) % len(self._ring)][turn]
        self._ring[-lead % len(self._ring)].pop(turn, None)

    def last(self) -> OpenSequence:
        """Who joined last. There must be one."""
        return next(reversed(self._sequences.values()))

    def filling(self, steps: range) -> Iterator[tuple[int, OpenSequence]]:
        """Every step with all for whom it begins a block, or may fill one that others can share."""
        ring, size = self._ring, len(self._ring)
        for step in steps:
            found = ring[step % size]
            if found:
                for sequence in tuple(found.values()):
                    yield step, sequence

    def due_step(self) -> int:
        """The first step at whose end somebody is due. There must be somebody."""
        while self._due[0][1] not in self._sequences:
            heappop(self._due)
        return self._due[0][0]

    def expel(self, sequence: OpenSequence, step: int) -> None:
        """It is due at the end of this step."""
        heappush(self._due, (step, sequence.turn))

    def due(self, step: int) -> list[OpenSequence]:
        """All that are to be removed at the end of this step, in order; told once."""
        # Whoever is expelled with its last token is there twice.
        found: dict[int, OpenSequence] = {}
        while self._due and self._due[0][0] <= step:
            _, turn = heappop(self._due)
            if turn in self._sequences:
                found[turn] = self._sequences[turn]
        return list(found.values())
