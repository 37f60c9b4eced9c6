"""Signals that an engine tells and that cannot be true: they are taken out of its reading, with the reason.

A doubt never makes a value of its own: a signal that is doubted is absent, and routers leave out what is absent for
all nodes that they compare.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from extproc.agent import littleslaw
from extproc.agent.contradictions import contradictions, out_of_range
from extproc.agent.engines.pagevalues import ROUNDED
from extproc.agent.engines.reading import MEASURED, EngineReading
from extproc.agent.looks import Looks

SOUND_S = 30.0
"""A signal that was doubted is told again when it has been sound for so long,"""
SOUND_LOOKS = 5
"""and in so many looks."""
TORN_LOOKS = 3
"""So many looks in a row must show a contradiction that may come from a page written in the midst of a step."""

_TOTALS = (
    "prefill_tokens_total",
    "prefill_seconds_total",
    "first_tokens_total",
    "prefix_queries_total",
    "prefix_hits_total",
)
_RUNNING = ("requests_running", "active_decodes")
_QUEUED = ("requests_waiting", "pending_prefills")
_MADE_OF = {
    "pending_prefills": ("requests_running", "requests_waiting"),
    "active_decodes": ("requests_running",),
    "kv_blocks_available": ("kv_usage",),
}
"""Many adapters make the one of the others; where an engine tells it itself, nothing is left to hold it against."""


@dataclass(slots=True)
class _Doubt:
    reason: str
    at_s: float
    """When it was last seen."""
    sound_looks: int = 0


@dataclass(frozen=True, slots=True)
class _Lie:
    """A gauge that does not move as it must: it is one until it moves otherwise, however little the engine has to do
    meanwhile."""

    reason: str
    constant_since: int | None
    """It stands still since this mark; `None`: it does not fall."""
    rising_since: int


class Doubts:
    """Compares one engine's readings with each other and with those before.

    - out of range, and contradictions: see `contradictions`
    - numbers of requests that are too large for their times and never fall, as those of a router that reads a counter
      as a gauge; or that stand still at too little, as where a metric that was removed is read as 0; and a KV cache
      that stands still: see `littleslaw`
    - a total that falls though the engine did not begin anew: until it passes what it was

    State: the highest that each total was, the latest looks, and what is doubted. A restart begins it anew.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._latest_s = float("-inf")
        self._highest: dict[str, float] = {}
        self._looks = Looks()
        self._lies: dict[str, _Lie] = {}
        self._contradicted: dict[str, int] = {}
        """By reason, in how many looks in a row."""
        self._doubts: dict[str, _Doubt] = {}

    def checked(self, reading: EngineReading, now_s: float) -> EngineReading:
        """The reading without what cannot be true. Times never fall."""
        if reading.restarted or now_s < self._latest_s:
            self._begin()
        self._latest_s = now_s
        told = {name: value for name in MEASURED if (value := getattr(reading, name)) is not None}
        faults = out_of_range(told)
        told = _without(told, faults)
        faults |= self._fallen(told)
        told = _without(told, faults)
        self._look(reading, told, now_s)
        faults |= {name: lie.reason for name, lie in self._lies.items()}
        faults |= self._contradictions(_without(told, faults), again=not reading.frozen)
        for name, reason in faults.items():
            self._doubts[name] = _Doubt(reason, now_s)
        for name in self._doubts.keys() - faults.keys():
            self._sound(name, now_s, is_told=name in told)
        return self._without_doubted(reading)

    def _fallen(self, told: Mapping[str, float]) -> dict[str, str]:
        faults = {}
        for name in _TOTALS:
            if name in told:
                highest = self._highest.setdefault(name, told[name])
                if told[name] < highest * (1 - ROUNDED):
                    faults[name] = f"{name} fell, and the engine did not begin anew"
                else:
                    self._highest[name] = max(highest, told[name])
        return faults

    def _look(self, reading: EngineReading, told: Mapping[str, float], now_s: float) -> None:
        kept = self._looks.take(now_s, told, reading.decode_seconds_total, reading.gauges_every_s)
        for name, lie in list(self._lies.items()):
            run = self._looks.run(name)
            if run is None or (run.rising_since if lie.constant_since is None else run.constant_since) > (
                lie.rising_since if lie.constant_since is None else lie.constant_since
            ):
                del self._lies[name]
        if kept:
            self._judge_requests()
            self._judge_cache()
            window = self._looks.latest()
            if window is not None and littleslaw.computes_too_fast(window):
                self._lie("prefill_seconds_total", "prompts are computed in less time than any engine needs")

    def _judge_requests(self) -> None:
        for name in (*_RUNNING, *_QUEUED):
            run = self._looks.run(name)
            if run is None:
                continue
            if (rising := self._looks.rising(name)) is not None:
                rose = run.value > rising.marks[0].told[name]
                judge = littleslaw.is_over if name in _RUNNING else littleslaw.is_counter
                if judge(rising, name):
                    why = "counts up, and is no number of requests" if rose else "stands still while requests finish"
                    self._lie(name, f"{name} {why}", stands=not rose)
                if name in _RUNNING and run.value - run.rising_from > littleslaw.BATCH_MAX:
                    self._lie(name, f"{name} counts up, and is no number of requests", stands=False)
            if (constant := self._looks.constant(name)) is not None and (
                littleslaw.is_under(constant, run.value)
                if name in _RUNNING
                else name == "pending_prefills" and run.value == 0 and littleslaw.hides_pending(constant)
            ):
                self._lie(name, f"{name} stands still while requests are served")

    def _judge_cache(self) -> None:
        running_is_sound = "requests_running" not in self._doubts and "requests_running" not in self._lies
        for name in ("kv_usage", "kv_blocks_available"):
            run, constant = self._looks.run(name), self._looks.constant(name)
            if run is None or constant is None:
                continue
            usage = run.value
            if name == "kv_blocks_available":
                blocks = constant.marks[-1].told.get("kv_blocks_total")
                if blocks is None:
                    continue
                usage = 1 - run.value / blocks
            if littleslaw.cache_stands_still(constant, usage, running_is_sound=running_is_sound):
                self._lie(name, f"{name} stands still while requests are served")

    def _lie(self, name: str, reason: str, *, stands: bool = True) -> None:
        run = self._looks.run(name)
        assert run is not None, "it is told"
        self._lies.setdefault(name, _Lie(reason, run.constant_since if stands else None, run.rising_since))

    def _contradictions(self, told: Mapping[str, float], *, again: bool) -> dict[str, str]:
        """`again`: the page is not that of the look before."""
        found = contradictions(told)
        before = self._contradicted
        self._contradicted = {one.reason: before.get(one.reason, 0) + again for one in found}
        return {
            name: one.reason
            for one in found
            if one.at_once or self._contradicted[one.reason] >= TORN_LOOKS
            for name in one.signals
        }

    def _sound(self, name: str, now_s: float, *, is_told: bool) -> None:
        doubt = self._doubts[name]
        doubt.sound_looks += is_told
        if doubt.sound_looks >= SOUND_LOOKS and now_s - doubt.at_s >= SOUND_S:
            del self._doubts[name]

    def _without_doubted(self, reading: EngineReading) -> EngineReading:
        reasons = {name: doubt.reason for name, doubt in self._doubts.items()}
        for name, made_of in _MADE_OF.items():
            for one in made_of:
                if one in self._doubts:
                    reasons.setdefault(name, f"{one} is doubted")
        reasons = {name: reason for name, reason in reasons.items() if getattr(reading, name) is not None}
        if not reasons:
            return reading
        nothing: dict[str, Any] = dict.fromkeys(reasons)
        return replace(reading, absent=MappingProxyType({**reading.absent, **reasons}), **nothing)


def _without(told: Mapping[str, float], faults: Mapping[str, str]) -> dict[str, float]:
    return {name: value for name, value in told.items() if name not in faults} if faults else dict(told)
