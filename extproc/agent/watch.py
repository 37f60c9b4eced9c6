"""Watching one engine: its pages become sightings, with what one sighting must remember for the next."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from extproc.agent.doubts import Doubts
from extproc.agent.engines import kinds
from extproc.agent.engines.adapter import Adapter, Missing
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.lora import with_loadable
from extproc.agent.engines.reading import EngineReading, unread
from extproc.agent.enginesettings import EngineConfig
from extproc.agent.scrape import Answer, EnginePages, Unanswered
from extproc.core.snapshot import NodeState, ServedModel

LATE_LOOKS_MAX = 10
"""So many looks in a row must find /health late before an engine that was up counts as down."""


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

    def __init__(self, pages: EnginePages, engine: EngineConfig, timeout_s: float, models_interval_s: float) -> None:
        self._pages = pages
        self._engine = engine
        self._kind = engine.engine_kind
        self._timeout_s = timeout_s
        self._models_interval_s = models_interval_s
        self._generation = 0
        self._looks = 0
        self._look: Any = None
        """What the adapter handed on."""
        self._doubts = Doubts()
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
        adapter = self._adapter
        health, metrics, others = await asyncio.gather(
            self._pages.get(self._engine.health or ("/health" if adapter is None else adapter.health), deadline_s),
            self._pages.get(self._metrics_path(), deadline_s),
            self._texts(() if adapter is None else adapter.others, deadline_s),
        )
        self._looks += 1
        late = isinstance(health, Unanswered) and health.late
        self._late_looks = self._late_looks + 1 if late else 0
        busy = late and self._sample is not None and self._late_looks < LATE_LOOKS_MAX
        if not busy and (isinstance(health, Unanswered) or health.status != 200):
            return self._down(health, now_s)
        if isinstance(metrics, Answer) and metrics.status == 200 and self._recognise(metrics.text):
            adapter = self._adapter
            others = await self._texts(() if adapter is None else adapter.others, deadline_s)
        reading, sampled_at_s = self._read(metrics, others, now_s)
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

    @property
    def _adapter(self) -> Adapter | None:
        """`None` while the kind of engine is not known."""
        return kinds.ADAPTERS.get(self._kind)

    def _metrics_path(self) -> str:
        if self._engine.metrics is not None:
            return self._engine.metrics
        if self._adapter is not None:
            return self._adapter.metrics
        return kinds.METRICS_PATHS[self._looks % len(kinds.METRICS_PATHS)]

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
                self._forget_looks()
        self._models_due_s, self._listed = 0.0, False
        self._sample = None
        return self._sighting(NodeState.LOADING, reason, unread(reason), now_s)

    def _anew(self) -> None:
        self._generation += 1
        self._models_due_s, self._listed = 0.0, False

    def _forget_looks(self) -> None:
        self._look, self._doubts = None, Doubts()

    def _recognise(self, metrics: str) -> bool:
        """Whether the page shows another kind of engine than before."""
        if self._engine.engine_kind is not EngineKind.AUTO or (found := kinds.kind_of(metrics)) is None:
            return False
        before, self._kind = self._kind, found
        if before is found:
            return False
        self._forget_looks()
        if before is not EngineKind.AUTO:
            self._anew()
        return True

    async def _texts(self, paths: Sequence[str], deadline_s: float) -> dict[str, str | Missing]:
        answers = await asyncio.gather(*(self._pages.get(path, deadline_s) for path in paths))
        return {path: _text(path, answer) for path, answer in zip(paths, answers, strict=True)}

    def _read(
        self, metrics: Answer | Unanswered, others: dict[str, str | Missing], now_s: float
    ) -> tuple[EngineReading, float]:
        adapter = self._adapter
        if isinstance(metrics, Unanswered):
            return self._sample or (unread(metrics.reason), now_s)
        page = _text(self._engine.metrics or "/metrics", metrics)
        if adapter is not None:
            reading, self._look = adapter.read({adapter.metrics: page, **others}, self._look)
            reading = self._doubts.checked(reading, now_s)
        elif isinstance(page, Missing):
            reading = unread(page.reason)
        else:
            reading = unread("/metrics is of no engine that is known here")
        sampled_at_s = self._sample[1] if reading.frozen and self._sample is not None else now_s
        self._sample = (reading, sampled_at_s)
        return self._sample

    async def _read_models(self, now_s: float, deadline_s: float) -> None:
        models: tuple[ServedModel, ...] | str
        if self._engine.models is not None:
            models = tuple(
                ServedModel(one.name, context_length_tokens=one.context_length_tokens) for one in self._engine.models
            )
        else:
            # An engine whose kind is not known lists its models as most do.
            adapter = self._adapter or kinds.ADAPTERS[EngineKind.VLLM]
            models = adapter.models_of(await self._texts(adapter.lists, deadline_s))
        if isinstance(models, str):
            self._models_fault = models
        else:
            self._models, self._models_fault = with_loadable(models, self._engine.adapters_loadable)
            self._listed = True
            self._models_due_s = now_s + self._models_interval_s if models else 0.0


def _text(path: str, answer: Answer | Unanswered) -> str | Missing:
    if isinstance(answer, Unanswered):
        return Missing(answer.reason)
    return answer.text if answer.status == 200 else Missing(f"{path} answers {answer.status}")
