"""One engine's KV events: heard as long as its node is looked at, and reported with it."""

import asyncio
from types import TracebackType
from typing import Final, Self

import structlog
import zmq.asyncio

from extproc.agent.kv.settings import KvEventsConfig
from extproc.agent.kv.subscriber import KvSubscriber
from extproc.agent.kv.watch import KvReport, KvWatch

TELL_INTERVAL_S: Final = 60.0
"""It is logged so often at most that what the engine has is known, or is not known any more."""
SILENCE_S: Final = 60.0
"""An engine that has computed prompts for so long without a message does not publish, or elsewhere."""

NOT_KNOWN: Final = "messages were missed, or came before the agent did"

log: structlog.typing.FilteringBoundLogger = structlog.get_logger("agent")


class KvFeed:
    """An async context manager: inside it events are heard."""

    def __init__(self, config: KvEventsConfig, node_id: str) -> None:
        self.watch = KvWatch(config.ranks, config.blocks_max)
        self._config = config
        self._node_id = node_id
        self._log = log.bind(node_id=node_id)
        self._boot_id: str | None = None
        self._known_told: bool | None = None
        self._told_s = float("-inf")
        self._once_told: set[str] = set()
        self._first_tokens: int | None = None
        self._works_since_s: float | None = None

    async def __aenter__(self) -> Self:
        clock = asyncio.get_running_loop().time
        self._context = zmq.asyncio.Context()
        self._hearing = asyncio.create_task(KvSubscriber(self._config, self.watch, clock, self._log).run(self._context))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hearing.cancel()
        await asyncio.gather(self._hearing, return_exceptions=True)
        self._context.destroy(linger=0)

    def blocks_known(self) -> int | str:
        """How many blocks the engine is known to have in its cache, or why that is not known."""
        if not self.watch.counts.batches:
            return f"no message came from {self._config.endpoint}"
        return len(self.watch.blocks) if self.watch.known else NOT_KNOWN

    def report(self, boot_id: str, first_tokens_total: int | None = None) -> KvReport:
        """What changed since the report before, at a node of this boot, which has answered so many prompts."""
        now_s = asyncio.get_running_loop().time()
        if self._hearing.done():
            self._hearing.result()  # it does not end by itself, except by an error of ours
        if self._boot_id not in (None, boot_id):
            self.watch.began_anew(now_s)
        self._boot_id = boot_id
        report = self.watch.report(self._node_id, boot_id)
        self._tell(report.known, now_s)
        self._tell_silence(first_tokens_total, now_s)
        return report

    def _tell(self, known: bool, now_s: float) -> None:
        counts, blocks = self.watch.counts, self.watch.blocks
        if known != self._known_told and counts.batches and now_s - self._told_s >= TELL_INTERVAL_S:
            self._known_told, self._told_s = known, now_s
            heard = {"batches": counts.batches, "events": counts.events, "gaps": counts.gaps, "blocks": len(blocks)}
            if known:
                self._log.info("KV events: it is known what the engine has in its cache", **heard)
            else:
                what = "KV events: it is not known what the engine has in its cache"
                self._log.warning(what, reason=NOT_KNOWN, **heard)
        self._once(counts.malformed + blocks.malformed, "KV events: some are malformed")
        self._once(
            blocks.orphans,
            "KV events: blocks are left out that depend on more than tokens, and those behind unknown ones",
        )
        self._once(blocks.dropped, "KV events: more blocks than blocks_max, the oldest are left out")

    def _tell_silence(self, first_tokens_total: int | None, now_s: float) -> None:
        if self.watch.counts.batches or first_tokens_total is None:
            return
        if self._works_since_s is None and self._first_tokens not in (None, first_tokens_total):
            self._works_since_s = now_s
        self._first_tokens = first_tokens_total
        if self._works_since_s is not None and now_s - self._works_since_s >= SILENCE_S:
            what = "KV events: no message, though the engine computes prompts: does it publish there?"
            if what not in self._once_told:
                self._once_told.add(what)
                self._log.warning(what, endpoint=self._config.endpoint)

    def _once(self, count: int, what: str) -> None:
        if count and what not in self._once_told:
            self._once_told.add(what)
            self._log.warning(what, count=count)
