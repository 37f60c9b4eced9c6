"""Watching one engine: its pages become sightings, with what one sighting must remember for the next."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from extproc.agent.engines import llamacpp, vllm
from extproc.agent.engines.adapters import with_loadable
from extproc.agent.engines.reading import EngineReading, unread
from extproc.agent.scrape import Answer, EnginePages, Unanswered
from extproc.agent.settings import EngineKind
from extproc.core.snapshot import NodeState, ServedModel

LATE_LOOKS_MAX = 10
"""So many looks in a row must find /health late before an engine that was up counts as down."""

_KIND = re.compile(r"^(vllm|llamacpp):", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one look at an engine showed."""

    state: NodeState
    not_ready: str | None
    """Why it is not ready."""
    models: tuple[ServedModel, ...] | None
    """`None` until the engine listed them; kept while it is down. Adapters that it may load come last."""
    models_fault: str | None
    reading: EngineReading
    sampled_at_s: float
    """On the loop's clock. For an engine in the midst of a long step it is the step's beginning."""
    generation: int
    """Rises whenever the engine began anew."""


class EngineWatch:
    """Looks at one engine, again and again, never twice at a time.

    Ready is an engine whose /health is 200, that lists a model, and that is not asleep. A page that does not answer
    in time does not make it less ready, for engines under load answer late: the sighting keeps the sample from
    before, which gets older and so tells the router how far to trust it. A /health that stays late, fails or is
    refused does. An engine began anew when its counters fell, its process start
    changed, it turned into another kind of engine, or nobody listened at its port.
    """

    def __init__(
        self,
        pages: EnginePages,
        kind: EngineKind,
        timeout_s: float,
        models_interval_s: float,
        adapters_loadable: Sequence[str] = (),
    ) -> None:
        self._pages = pages
        self._configured_kind = self._kind = kind
        self._timeout_s = timeout_s
        self._models_interval_s = models_interval_s
        self._adapters_loadable = adapters_loadable
        self._generation = 0
        self._look: vllm.Look | llamacpp.Look | None = None
        self._sample: tuple[EngineReading, float] | None = None
        self._models: tuple[ServedModel, ...] | None = None
        self._models_fault: str | None = None
        self._models_due_s = 0.0
        self._late_looks = 0
        self._listed = False
        """Whether the models were listed since the engine last came up."""

    async def look(self) -> Sighting:
        """One look, within the timeout. Raises for no engine, whatever it answers."""
        now_s = asyncio.get_running_loop().time()
        deadline_s = now_s + self._timeout_s
        health, metrics, slots = await asyncio.gather(
            self._pages.get("/health", deadline_s), self._pages.get("/metrics", deadline_s), self._slots(deadline_s)
        )
        late = isinstance(health, Unanswered) and health.late
        self._late_looks = self._late_looks + 1 if late else 0
        busy = late and self._sample is not None and self._late_looks < LATE_LOOKS_MAX
        if not busy and (isinstance(health, Unanswered) or health.status != 200):
            return self._down(health, now_s)
        if isinstance(metrics, Answer) and metrics.status == 200 and self._recognise(metrics.text):
            slots = await self._slots(deadline_s)
        reading, sampled_at_s = self._read(metrics, slots, now_s)
        if reading.restarted:
            self._anew()
        if now_s >= self._models_due_s:
            await self._read_models(now_s, deadline_s)
        not_ready = None
        if not self._models or not self._listed:
            not_ready = self._models_fault or "the engine lists no models"
        elif reading.asleep:
            not_ready = "the engine is asleep"
        state = NodeState.LOADING if not_ready else NodeState.READY
        return self._sighting(state, not_ready, reading, sampled_at_s)

    def _sighting(
        self, state: NodeState, not_ready: str | None, reading: EngineReading, sampled_at_s: float
    ) -> Sighting:
        return Sighting(state, not_ready, self._models, self._models_fault, reading, sampled_at_s, self._generation)

    def _down(self, health: Answer | Unanswered, now_s: float) -> Sighting:
        if isinstance(health, Answer):
            reason = f"/health answers {health.status}"
        else:
            reason = health.reason
            if health.refused and self._sample is not None:
                self._anew()
                self._look = None
        self._models_due_s, self._listed = 0.0, False
        self._sample = None
        return self._sighting(NodeState.LOADING, reason, unread(reason), now_s)

    def _anew(self) -> None:
        self._generation += 1
        self._models_due_s, self._listed = 0.0, False

    def _recognise(self, metrics: str) -> bool:
        """Whether the page shows another kind of engine than before."""
        if self._configured_kind is not EngineKind.AUTO or (found := _KIND.search(metrics)) is None:
            return False
        before, self._kind = self._kind, EngineKind(found[1])
        if before is self._kind:
            return False
        self._look = None
        if before is not EngineKind.AUTO:
            self._anew()
        return True

    async def _slots(self, deadline_s: float) -> str | None:
        if self._kind is not EngineKind.LLAMACPP:
            return None
        slots = await self._pages.get("/slots", deadline_s)
        return slots.text if isinstance(slots, Answer) and slots.status == 200 else None

    def _read(self, metrics: Answer | Unanswered, slots: str | None, now_s: float) -> tuple[EngineReading, float]:
        if isinstance(metrics, Unanswered):
            return self._sample or (unread(metrics.reason), now_s)
        page = metrics.text if metrics.status == 200 else None
        reading: EngineReading
        match self._kind:
            case EngineKind.LLAMACPP:
                before = self._look if isinstance(self._look, llamacpp.Look) else None
                reading, self._look = llamacpp.read(page, slots, before)
            case _ if page is None:
                reading = unread(f"/metrics answers {metrics.status}")
            case EngineKind.VLLM:
                seen = self._look if isinstance(self._look, vllm.Look) else None
                reading, self._look = vllm.read(page, seen)
            case EngineKind.AUTO:
                reading = unread("/metrics is of no engine that is known here")
            case other:
                assert_never(other)
        sampled_at_s = self._sample[1] if reading.frozen and self._sample is not None else now_s
        self._sample = (reading, sampled_at_s)
        return self._sample

    async def _read_models(self, now_s: float, deadline_s: float) -> None:
        paths = ["/v1/models", "/props"] if self._kind is EngineKind.LLAMACPP else ["/v1/models"]
        listed, *rest = await asyncio.gather(*(self._pages.get(path, deadline_s) for path in paths))
        props = next((answer.text for answer in rest if isinstance(answer, Answer) and answer.status == 200), None)
        models: tuple[ServedModel, ...] | str
        if isinstance(listed, Unanswered):
            models = listed.reason
        elif listed.status != 200:
            models = f"/v1/models answers {listed.status}"
        else:
            models = llamacpp.models_of(listed.text, props) if rest else vllm.models_of(listed.text)
        if isinstance(models, str):
            self._models_fault = models
        else:
            self._models, self._models_fault = with_loadable(models, self._adapters_loadable)
            self._listed = True
            self._models_due_s = now_s + self._models_interval_s if models else 0.0
