"""Watching one engine: its pages become sightings, with what one sighting must remember for the next."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from extproc.agent.doubts import Doubts
from extproc.agent.engines import generic, kinds
from extproc.agent.engines.adapter import Adapter, Missing
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.exposition import TooManySamples
from extproc.agent.engines.lora import with_loadable
from extproc.agent.engines.reading import EngineReading, unread
from extproc.agent.enginesettings import EngineConfig
from extproc.agent.probe import Probe
from extproc.agent.scrape import Answer, EnginePages, Unanswered
from extproc.core.snapshot import NodeState, ServedModel

LATE_LOOKS_MAX = 10
"""So many looks in a row must find /health late before an engine that was up counts as down."""
HEALTH_S = 5.0
"""So often /health is asked of an engine whose page shows that it computes."""
KEPT_S = 5.0
"""So long a sample is kept while its page is answered with what is none: routers call it old then."""

_OF_NOBODY = "/metrics is of no engine that is known here"


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
    gone: bool = False
    """Nobody listens at its port."""
    reached: bool = True
    """It answered, whatever."""
    engine_kind: EngineKind = EngineKind.AUTO
    """Whose metrics it has; AUTO: nobody's that is known."""


class EngineWatch:
    """Looks at one engine, again and again, never twice at a time.

    Ready is an engine whose /health is 200, that lists a model, that answers a prompt if it has to (`probe`), and that
    is neither asleep nor hung. A page that does not answer in time does not make it less ready, for engines under load
    answer late: the sighting keeps the sample from before, which gets older and so tells the router how far to trust
    it. A /health that stays late, fails or is refused does, and so do work and a page that stand still for `hung_s`.
    An engine began anew when its counters fell, its process start changed, it turned into another kind of engine, or
    nobody listened at its port.

    Pages are asked for one after the other, /health first: it is the one that answers while the engine is in a long
    step. Only of an engine whose page moved at the look before it is asked no more often than every `HEALTH_S`.
    """

    def __init__(
        self,
        pages: EnginePages,
        engine: EngineConfig,
        timeout_s: float,
        models_interval_s: float,
        *,
        hung_s: float | None = None,
        probe_timeout_s: float = 30.0,
    ) -> None:
        self._pages = pages
        self._engine = engine
        self._kind = engine.engine_kind
        self._generic = None if engine.generic is None else generic.adapter_of(engine.generic)
        self._timeout_s = timeout_s
        self._models_interval_s = models_interval_s
        self._hung_s = hung_s
        self._probe = Probe(pages, probe_timeout_s) if engine.probe else None
        self._generation = 0
        self._metrics_paths: tuple[str, ...] = kinds.METRICS_PATHS
        """Where to look for metrics that may be anywhere, in this order."""
        self._look: Any = None
        """What the adapter handed on."""
        self._doubts = Doubts()
        self._sample: tuple[EngineReading, float] | None = None
        self._computes = False
        """Whether the latest page showed that it does."""
        self._health_due_s = 0.0
        self._models: tuple[ServedModel, ...] | None = None
        self._models_fault: str | None = None
        self._models_due_s = 0.0
        self._late_looks = 0
        self._listed = False
        """Whether the models were listed since the engine last came up."""

    async def close(self) -> None:
        """Ask for nothing any more."""
        if self._probe is not None:
            self._probe.begin_anew()

    async def look(self) -> Sighting:
        """One look, within the timeout. Raises for no engine, whatever it answers."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        deadline_s = now_s + self._timeout_s
        metrics: Answer | Unanswered | None = None
        if self._computes and now_s < self._health_due_s:
            metrics = await self._metrics(deadline_s)
        if metrics is None or not (metrics.late if isinstance(metrics, Unanswered) else metrics.status == 200):
            adapter = self._adapter
            health = await self._pages.get(
                self._engine.health or ("/health" if adapter is None else adapter.health), deadline_s
            )
            health_late = isinstance(health, Unanswered) and health.late
            self._late_looks = self._late_looks + 1 if health_late else 0
            if health_late and self._sample is not None and self._late_looks < LATE_LOOKS_MAX:
                metrics = health  # what is asked for after it would be late, too
            elif isinstance(health, Unanswered) or health.status != 200:
                return self._down(health, now_s)
            else:
                self._health_due_s = now_s + HEALTH_S
        if metrics is None:
            now_s = loop.time()  # a sample is of the time when it was asked for
            metrics = await self._metrics(deadline_s)
        if isinstance(metrics, Answer) and metrics.status == 200:
            self._recognise(metrics.text)
        reading, sampled_at_s = await self._read(metrics, now_s, deadline_s)
        if reading.restarted:
            self._anew()
        if now_s >= self._models_due_s:
            await self._read_models(now_s, deadline_s)
        late = isinstance(metrics, Unanswered) and metrics.late
        if (late or reading.frozen) and self._hung_s is not None and now_s - sampled_at_s >= self._hung_s:
            how = "its metrics do not come" if late else "it has work, and nothing moves"
            reason = f"the engine hangs: for {self._hung_s:g} s {how}"
            return self._sighting(NodeState.LOADING, reason, unread(reason), now_s)
        not_ready = await self._unready(reading, deadline_s)
        state = NodeState.LOADING if not_ready else NodeState.READY
        return self._sighting(state, not_ready, reading, sampled_at_s)

    async def _unready(self, reading: EngineReading, deadline_s: float) -> str | None:
        """Why an engine that answers cannot serve."""
        if not self._models or not self._listed:
            return self._models_fault or "the engine lists no models"
        if reading.asleep:
            return "the engine is asleep"
        if self._probe is None:
            return None
        model = next((one.name for one in self._models if one.loaded), self._models[0].name)
        return await self._probe.reason(model, deadline_s)

    @property
    def _adapter(self) -> Adapter | None:
        """`None` while the kind of engine is not known."""
        return self._generic or kinds.ADAPTERS.get(self._kind)

    def _metrics_path(self) -> str:
        adapter = self._adapter
        return self._engine.metrics or (kinds.METRICS_PATHS[0] if adapter is None else adapter.metrics)

    async def _metrics(self, deadline_s: float) -> Answer | Unanswered:
        """Its metrics. While nobody knows what it is, they are looked for wherever some kind has them; a path that does
        not answer is the last one at the next look, for TensorRT-LLM has something else at one, which takes its time.
        """
        if self._engine.metrics is not None or self._adapter is not None:
            return await self._pages.get(self._metrics_path(), deadline_s)
        answers: list[Answer] = []
        for path in self._metrics_paths:
            answer = await self._pages.get(path, deadline_s)
            if isinstance(answer, Unanswered):
                self._metrics_paths = (*(one for one in self._metrics_paths if one != path), path)
                return answer
            if answer.status == 200 and kinds.kind_of(answer.text) is not None:
                return answer
            answers.append(answer)
        return next((answer for answer in answers if answer.status == 200), answers[0])

    def _sighting(
        self,
        state: NodeState,
        not_ready: str | None,
        reading: EngineReading,
        sampled_at_s: float,
        *,
        gone: bool = False,
        reached: bool = True,
    ) -> Sighting:
        models, fault = self._models, self._models_fault
        return Sighting(
            *(state, not_ready, models, fault, reading, sampled_at_s, self._generation, gone, reached, self._kind)
        )

    def _down(self, health: Answer | Unanswered, now_s: float) -> Sighting:
        if isinstance(health, Answer):
            reason = f"/health answers {health.status}"
        else:
            reason = health.reason
            if health.refused and self._sample is not None:
                self._anew()
                self._forget_looks()
        self._comes_up()
        self._sample, self._computes = None, False
        gone = isinstance(health, Unanswered) and health.refused
        reached = isinstance(health, Answer)
        return self._sighting(NodeState.LOADING, reason, unread(reason), now_s, gone=gone, reached=reached)

    def _anew(self) -> None:
        self._generation += 1
        self._comes_up()

    def _comes_up(self) -> None:
        """What it was asked before counts no more."""
        self._models_due_s, self._listed = 0.0, False
        if self._probe is not None:
            self._probe.begin_anew()

    def _forget_looks(self) -> None:
        self._look, self._doubts = None, Doubts()

    def _recognise(self, metrics: str) -> None:
        """Find out whose page it is."""
        if self._engine.engine_kind is not EngineKind.AUTO or (found := kinds.kind_of(metrics)) is None:
            return
        before, self._kind = self._kind, found
        if before is found:
            return
        self._forget_looks()
        if before is not EngineKind.AUTO:
            self._anew()

    async def _texts(self, paths: Sequence[str], deadline_s: float) -> dict[str, str | Missing]:
        return {path: _text(path, await self._pages.get(path, deadline_s)) for path in paths}

    async def _read(self, metrics: Answer | Unanswered, now_s: float, deadline_s: float) -> tuple[EngineReading, float]:
        adapter, self._computes = self._adapter, False
        if isinstance(metrics, Unanswered):
            if self._sample is not None and (metrics.late or now_s - self._sample[1] < KEPT_S):
                return self._sample
            return unread(metrics.reason), now_s
        page = _text(self._metrics_path(), metrics)
        if adapter is not None:
            others = await self._texts(adapter.others, deadline_s)
            try:
                reading, self._look = adapter.read({adapter.metrics: page, **others}, self._look)
            except TooManySamples as error:
                reading = unread(str(error))
            if not isinstance(page, Missing) and (whose := kinds.misread(page, self._kind, reading)) is not None:
                reading = unread(whose)
            self._computes = not reading.frozen and reading.decode_ms_per_token is not None
            reading = self._doubts.checked(reading, now_s)
        else:
            reading = unread(page.reason if isinstance(page, Missing) else _OF_NOBODY)
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
            pages = await self._texts(adapter.lists, deadline_s)
            try:
                models = adapter.models_of(pages)
            except TooManySamples as error:
                models = str(error)
        if isinstance(models, str):
            self._models_fault = models
        else:
            self._models, self._models_fault = with_loadable(models, self._engine.adapters_loadable)
            self._listed = True
            self._models_due_s = now_s + self._models_interval_s if models else 0.0


def _text(path: str, answer: Answer | Unanswered) -> str | Missing:
    if isinstance(answer, Unanswered):
        return Missing(answer.reason)
    if answer.status == 501 and path == "/metrics":
        return Missing("/metrics answers 501, as llama.cpp's without --metrics: start it with that")
    return answer.text if answer.status == 200 else Missing(f"{path} answers {answer.status}")
