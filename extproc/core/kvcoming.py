"""Prompts on their way to nodes that tell their blocks: sent there, and not yet told by the node."""

from collections import deque

REPORTS_UNTIL_TOLD = 3
"""So many reports of its node after a prompt was computed its blocks are told: the next report may have been on its way
by then, the one behind it is sent before the blocks, and those have come when the third is there."""


class ComingBlocks:
    """For each block the nodes that are about to have it, as bits of a number, as `KvIndex` names them.

    A prompt counts from the moment of its sending, so that others which begin alike can follow it. It counts no more
    when it ended without being computed, or was computed and the node has had the time to tell: from then on only what
    the node tells does, for it may have pushed out something of it already.
    """

    def __init__(self, blocks_max: int) -> None:
        """Of so many blocks at most, each as often as prompts have it; further prompts do not count."""
        self._blocks_max = blocks_max
        self._blocks = 0
        self.masks: dict[int, int] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._bits: dict[str, int] = {}
        self._prompts: dict[str, tuple[str, tuple[int, ...]]] = {}
        """By the id of the request; not yet computed."""
        self._computed: dict[str, deque[tuple[int, tuple[int, ...]]]] = {}
        """By node: after which report a prompt is forgotten."""
        self._reports: dict[str, int] = {}

    def __len__(self) -> int:
        """Prompts."""
        return len(self._prompts) + sum(map(len, self._computed.values()))

    def sent(self, request_id: str, node_id: str, bit: int, blocks: tuple[int, ...]) -> None:
        """A prompt goes to this node. Takes about 0.2 µs for each block."""
        too_many = self._blocks + len(blocks) > self._blocks_max
        if not bit or not blocks or too_many or request_id in self._prompts:
            return
        self._blocks += len(blocks)
        self._prompts[request_id] = node_id, blocks
        self._bits[node_id] = bit
        counts, masks = self._counts.setdefault(node_id, {}), self.masks
        for block in blocks:
            counts[block] = counts.get(block, 0) + 1
            masks[block] = masks.get(block, 0) | bit

    def moved(self, request_id: str, node_id: str, bit: int) -> None:
        """It is at another node than it was sent to."""
        if (prompt := self._prompts.get(request_id)) is not None:
            self.over(request_id)
            self.sent(request_id, node_id, bit, prompt[1])

    def computed(self, request_id: str) -> None:
        """Its node has it; it will tell."""
        if (prompt := self._prompts.pop(request_id, None)) is not None:
            node_id, blocks = prompt
            due = self._reports.get(node_id, 0) + REPORTS_UNTIL_TOLD
            self._computed.setdefault(node_id, deque()).append((due, blocks))

    def over(self, request_id: str) -> None:
        """Its request is. Where it was computed that changes nothing."""
        if (prompt := self._prompts.pop(request_id, None)) is not None:
            self._take_out(*prompt)

    def reported(self, node_id: str) -> None:
        """A report of this node has come."""
        computed = self._computed.get(node_id)
        if computed is None:
            self._reports.pop(node_id, None)
            return
        reports = self._reports[node_id] = self._reports.get(node_id, 0) + 1
        while computed and computed[0][0] <= reports:
            self._take_out(node_id, computed.popleft()[1])
        if not computed:
            del self._computed[node_id]

    def forget(self, node_id: str) -> None:
        """The node began anew, is gone, or does not tell any more."""
        bit, masks = self._bits.pop(node_id, 0), self.masks
        for block in self._counts.pop(node_id, ()):
            _clear(masks, block, bit)
        self._reports.pop(node_id, None)
        for _, blocks in self._computed.pop(node_id, ()):
            self._blocks -= len(blocks)
        for request_id in [one for one, (at, _) in self._prompts.items() if at == node_id]:
            self._blocks -= len(self._prompts.pop(request_id)[1])

    def _take_out(self, node_id: str, blocks: tuple[int, ...]) -> None:
        counts, masks, bit = self._counts[node_id], self.masks, self._bits[node_id]
        self._blocks -= len(blocks)
        for block in blocks:
            left = counts[block] - 1
            if left:
                counts[block] = left
            else:
                del counts[block]
                _clear(masks, block, bit)


def _clear(masks: dict[int, int], block: int, bit: int) -> None:
    left = masks[block] & ~bit
    if left:
        masks[block] = left
    else:
        del masks[block]
