"""How many nodes each model needs, now and by the time that a new one is ready, and when those that are there are full.

    arrivals ──► level, trend, bursts ─┐
    seasons ───► the time of day ──────┼──► seconds of a node's work ──► nodes needed, saturation, time to saturation
    answers ───► their length ─────────┤
    reports ───► what a node can do ───┘

    expected(t) = level + max(0, trend·D·(1 - e^(-t/D)), season(t) - season(now))

The trend is damped (Gardner and McKenzie, Management Science 31(10), 1985): it is seen over minutes, and no hour goes
on as they did. What is expected turns into nodes in `capacity.py`; nodes that serve several models: `pools.py`.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from math import ceil, exp, fsum, sqrt
from statistics import NormalDist
from typing import Final

from msgspec import Struct

from extproc.core.answerlengths import AnswerLengths
from extproc.core.arrivals import Arrivals, Course, course_of
from extproc.core.capacity import Bursts, NodePower, RequestSize, answer_seconds, grown, nodes_for, wait_allowed_s
from extproc.core.coldstarts import ColdStarts
from extproc.core.forecastsettings import ForecastSettings
from extproc.core.nodepace import PRIOR_SHARE, NodePaces
from extproc.core.pools import Load, Pool, mean_power, pools_of, together
from extproc.core.request import Endpoint, InferenceRequest
from extproc.core.seasons import Seasons
from extproc.core.settings import ExpectedRates, NodeLimits
from extproc.core.snapshot import NodeView

TIMES_S: Final = (*range(0, 121, 15), *range(180, 3601, 60))
"""Looked at: up to the longest usual cold start, and an hour."""
TREND_S: Final = 900.0
"""A trend goes on for so long, in all; D."""
RECENT_S: Final = 64
"""Rates that are shown are means of so long."""
WARM_UP_S: Final = 60.0
"""So soon after our start no node is given back: how much comes is not known yet."""
PACE_SHARE: Final = 0.25
"""A long prompt counts over the time that a node takes at this share of the assumed rate: others are served between."""
_DAMPED_S: Final = tuple(TREND_S * (1 - exp(-one / TREND_S)) for one in TIMES_S)
_NOTHING: Final = (0.0,) * len(TIMES_S)
_ROUNDING: Final = 1e-9


class ModelForecast(Struct, frozen=True):
    """One model, as of one moment."""

    model: str
    nodes_needed: int
    """That serve it, those that are there included, to keep the objective until new ones could be ready."""
    nodes_ready: int
    nodes_coming: int
    """Loading: capacity that is coming, and none yet."""
    saturation: float
    """Nodes that the load needs now / nodes ready, 0 and more; over 1 the objective is missed. Infinite: none ready."""
    saturated_in_s: float | None
    """When the ready nodes will be too few; 0: they are; `None`: not within an hour."""
    cold_start_s: float
    """How long a new node will take."""
    requests_per_s: float
    """Offered, each of a request's answers counted."""
    prompt_tokens_per_s: float
    """Of them, those that no cache has."""
    output_tokens_per_s: float
    node_tokens_per_s: float
    """Prompt tokens that one of its nodes computes in a second: the mean, or what is assumed."""
    nodes_filled: float = 0.0
    """Nodes that the load alone needs by then, not rounded: those of routers that each see a part of it add up."""


class Forecast:
    """Counts what is offered and learns what nodes do; what it says of the future is a reading that changes nothing.

    State: for each model, a bounded number, what came lately and at each time of day; of nodes what they can do and
    since when they load; cold starts and answers' lengths by model.
    """

    def __init__(self, settings: ForecastSettings, limits: NodeLimits, rates: ExpectedRates, started_s: float) -> None:
        self._settings = settings
        self._limits = limits
        self._rates = rates
        self._started_s = started_s
        self._models: OrderedDict[str, _Model] = OrderedDict()
        """The one that was asked for last is the last."""
        self._answers = AnswerLengths(rates.output_tokens)
        self._paces = NodePaces(rates)
        self._cold_starts = ColdStarts(settings, started_s)
        self._fitting = NormalDist().inv_cdf(settings.burst_share)
        self._assumed = NodePower(PRIOR_SHARE * rates.prefill_tokens_per_s, rates.decode_s_per_token)

    def asked(self, request: InferenceRequest, uncached_tokens: int | None, now_s: float) -> None:
        """`arrived`, of a request; `None`: nobody knows what of its prompt is cached. Embeddings have no answer."""
        tokens, embeds = request.prompt.tokens, request.endpoint is Endpoint.EMBEDDING
        uncached = tokens if uncached_tokens is None else uncached_tokens
        sequences = 1 if embeds else request.sequences
        self.arrived(request.model, uncached, now_s, prompt_tokens=tokens, sequences=sequences)
        if embeds:
            self._answers.add(request.model, 0)

    def arrived(
        self,
        model: str,
        uncached_prompt_tokens: int,
        now_s: float,
        *,
        prompt_tokens: int | None = None,
        sequences: int = 1,
    ) -> None:
        """A request was offered, for a model that some node serves; it may have been refused for overload.

        `prompt_tokens`: all of them, of all its prompts, what is cached too; as many as uncached if left out.
        `sequences`: answers asked for.
        """
        known = self._models.get(model)
        if known is None:
            pace = PACE_SHARE * self._rates.prefill_tokens_per_s
            known = self._models[model] = _Model(
                Arrivals(self._settings.window_s, pace, self._started_s), Seasons(now_s)
            )
            if len(self._models) > self._settings.models_max:
                self._models.popitem(last=False)
        else:
            self._models.move_to_end(model)
        prompt_tokens = uncached_prompt_tokens if prompt_tokens is None else prompt_tokens
        known.arrivals.add(sequences, uncached_prompt_tokens, prompt_tokens, now_s)
        known.seasons.add(sequences, uncached_prompt_tokens, now_s)

    def answered(self, model: str, output_tokens: int, now_s: float) -> None:  # noqa: ARG002 - one form for all events
        """An answer was so long. Of models that nobody asked for it is no news."""
        if model in self._models:
            self._answers.add(model, output_tokens)

    def observed(self, view: NodeView, now_s: float) -> None:
        """A node's report was taken; `view` shows it."""
        self._paces.observe(view)
        self._cold_starts.observe(view.snapshot, now_s)

    def forget(self, node_id: str) -> None:
        """The node is a member no more."""
        self._paces.forget(node_id)
        self._cold_starts.forget(node_id)

    def of(self, nodes: Collection[NodeView], now_s: float) -> tuple[ModelForecast, ...]:
        """Every model that is served or was asked for lately, by name, `models_max` at most.

        `nodes` are the members that requests may go to. Takes about 1 ms for each model that was asked for.
        """
        asked = [
            name
            for name, one in reversed(self._models.items())
            if not one.arrivals.idle(now_s) or one.seasons.at(now_s, now_s) is not None
        ]
        pools = pools_of(nodes, asked, self._paces, self._limits, now_s)
        loads = {name: self._load(name, self._serving(name, pools), now_s) for name in asked}
        for pool in pools:
            pool.carry(loads)
        served = sorted({name for pool in pools for name in pool.models} - loads.keys())
        shown = sorted((asked + served)[: self._settings.models_max])
        return tuple(self._forecast(name, loads.get(name), self._serving(name, pools), now_s) for name in shown)

    @staticmethod
    def _serving(name: str, pools: Iterable[Pool]) -> list[Pool]:
        return [pool for pool in pools if name in pool.models]

    def _load(self, name: str, serving: list[Pool], now_s: float) -> Load:
        model, power = self._models[name], mean_power(serving, self._assumed)
        lately = model.arrivals.lately(now_s)
        sequences = max(1.0, fsum(lately.sequences))
        size = RequestSize(
            fsum(lately.uncached_tokens) / sequences, lately.prompt_tokens / sequences, self._answers.expected(name)
        )
        token_s, answer_s = 1 / power.tokens_per_s, answer_seconds(size, power)
        course = course_of(
            [
                tokens * token_s + count * answer_s
                for tokens, count in zip(lately.uncached_tokens, lately.sequences, strict=True)
            ]
        )
        usual = [model.seasons.at(now_s + one, now_s) or (0.0, 0.0) for one in TIMES_S]
        recent_s = min(RECENT_S, len(lately.sequences))
        requests_per_s = fsum(lately.sequences[-recent_s:]) / recent_s
        return Load(
            _ahead(course, [tokens * token_s + count * answer_s for count, tokens in usual]),
            course.variances,
            course.peaks,
            sum(len(pool.ready) for pool in serving),
            power,
            wait_allowed_s(self._settings.ttft_s, size, power),
            requests_per_s,
            fsum(lately.uncached_tokens[-recent_s:]) / recent_s,
            requests_per_s * size.output_tokens,
        )

    def _forecast(self, name: str, known: Load | None, serving: list[Pool], now_s: float) -> ModelForecast:
        settings = self._settings
        nodes_ready, nodes_coming = (sum(len(pool.ready) for pool in serving), sum(pool.coming for pool in serving))
        load = known or Load(_NOTHING, (), (), nodes_ready, mean_power(serving, self._assumed), settings.ttft_s)
        if nodes_ready:
            ahead, bursts = together(serving)
        else:
            ahead, bursts = load.ahead, Bursts([sqrt(one) for one in load.variances], load.peaks)
        ahead = ahead or _NOTHING
        cold_start_s = self._cold_starts.expected_s(name)

        def needed(work: float) -> float:
            more = grown(bursts, work / ahead[0]) if ahead[0] else bursts
            return nodes_for(work, more, load.wait_s, self._fitting, settings.headroom)

        horizon = sum(one < cold_start_s for one in TIMES_S) + 1
        nodes_filled = needed(max(ahead[:horizon]))
        nodes_needed = max(ceil(nodes_filled - _ROUNDING), settings.nodes_min)
        if now_s - self._started_s < WARM_UP_S:
            nodes_needed = max(nodes_needed, nodes_ready + nodes_coming)
        now_needed = needed(ahead[0])
        return ModelForecast(
            name,
            nodes_needed,
            nodes_ready,
            nodes_coming,
            now_needed / nodes_ready if nodes_ready else float("inf" if now_needed else 0),
            _first_over(ahead, lambda work: needed(work) > nodes_ready),
            cold_start_s,
            load.requests_per_s,
            load.prompt_tokens_per_s,
            load.output_tokens_per_s,
            load.power.tokens_per_s,
            nodes_filled,
        )


class _Model(Struct):
    arrivals: Arrivals
    seasons: Seasons


def _first_over(ahead: tuple[float, ...], over: Callable[[float], bool]) -> float | None:
    """The first of `TIMES_S` at which the work is too much. What is no more than before need not be asked about."""
    most = -1.0
    for at_s, work in zip(TIMES_S, ahead, strict=True):
        if work > most:
            most = work
            if over(work):
                return float(at_s)
    return None


def _ahead(course: Course, seasonal: list[float]) -> tuple[float, ...]:
    """What is expected at each of `TIMES_S`, never less than now: nodes are not given back before the work is less."""
    return tuple(
        course.level + max(0.0, course.slope * damped_s, usual - seasonal[0])
        for damped_s, usual in zip(_DAMPED_S, seasonal, strict=True)
    )
