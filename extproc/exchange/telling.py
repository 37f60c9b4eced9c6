"""Which prompts that we sent somewhere the others are told of, and when: what is new, and to newcomers the rest."""

from collections import deque
from collections.abc import Iterator, Sequence

from extproc.core.exchangesettings import ExchangeSettings
from extproc.core.peershares import PromptPlaced
from extproc.exchange import chains
from extproc.exchange.chains import Placed
from extproc.ops.exchangemetrics import ExchangeMetrics

RECENT_BYTES_MAX = 4 * 1024 * 1024
"""Of prompts that were told, and are kept for newcomers; the oldest go first."""
BURST_S = 1.0
"""What was left of the budget of so long a time may be told at once."""
AGAIN_BYTES_MIN = 40 * 1024
"""Newcomers are told as soon as so much may be told, or half of a burst: the longest prompt has 32 KiB."""


class PlacementsTold:
    """State: what of the budget is left, what was told lately, and how much of that newcomers have yet to hear."""

    def __init__(self, router: str, settings: ExchangeSettings, metrics: ExchangeMetrics, now_s: float) -> None:
        self._router = router
        self._metrics = metrics
        self._bytes_per_s = settings.placement_bytes_per_s
        self._burst_bytes = self._bytes_per_s * BURST_S
        self._left_bytes = self._burst_bytes
        self._at_s = now_s
        self._recent: deque[Placed] = deque()
        self._recent_bytes = 0
        self._again: deque[Placed] = deque()
        """The newest first."""

    @property
    def recent_bytes(self) -> int:
        """What is kept for newcomers, as it stands in a message."""
        return self._recent_bytes

    def newcomer(self) -> None:
        """Somebody knows nothing of what was told: it is told again, the newest first."""
        self._again = deque(reversed(self._recent))

    def messages(self, placed: Sequence[PromptPlaced], now_s: float) -> Iterator[bytes]:
        """What to say now of prompts that were placed since this was asked last, the oldest first."""
        self._left_bytes = min(self._burst_bytes, self._left_bytes + self._bytes_per_s * (now_s - self._at_s))
        self._at_s = now_s
        fresh = [one for told in placed if (one := chains.placed_of(told)) is not None]
        chosen, size, seen = chains.within(reversed(fresh), int(self._left_bytes))
        self._metrics.dropped("placements_budget", len(fresh) - seen)
        self._left_bytes -= size
        if self._again and self._left_bytes >= min(AGAIN_BYTES_MIN, self._burst_bytes / 2):
            again, size, seen = chains.within(self._again, int(self._left_bytes))
            self._left_bytes -= size
            for _ in range(seen):
                self._again.popleft()
            self._keep(reversed(chosen))
            chosen += again
        else:
            self._keep(reversed(chosen))
        yield from chains.messages(self._router, chosen)

    def _keep(self, oldest_first: Iterator[Placed]) -> None:
        for one in oldest_first:
            self._recent.append(one)
            self._recent_bytes += _size(one)
        while self._recent_bytes > RECENT_BYTES_MAX:
            self._recent_bytes -= _size(self._recent.popleft())


def _size(one: Placed) -> int:
    return len(one.chain) + len(one.node_id) + chains.PLACED_BYTES
