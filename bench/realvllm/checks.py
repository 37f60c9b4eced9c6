"""What must hold exactly of a run: totals, states, boots and models. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.realvllm.model import CONTEXT_TOKENS, MODEL
from bench.realvllm.recording import At, Recording, Values

SEEN_S_MAX: Final = 2.5
"""The agent tells within so long what became of vLLM: a look may take a second, and its interval comes on top."""
TTFT_S_MAX: Final = 1.0
"""What Envoy, extproc and a client that shares two cores with vLLM may add to a first token."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold."""

    what: str
    wanted: str
    got: str
    holds: bool


def checks_of(recording: Recording) -> list[Check]:
    """All of them."""
    return [
        *_totals(recording),
        *_states(recording),
        *_boots(recording),
        *_models(recording),
        *_absent(recording),
        *_repeats(recording),
    ]


def _totals(recording: Recording) -> Iterator[Check]:
    """Of each boot: what the agent last told before the sums, beside the sums."""
    for number, (t_s, sums) in enumerate(recording.answers, 1):
        told = _ready_before(recording, t_s)
        looked_up = range(sums["prompt_tokens"], sums["prompt_tokens"] + sums["prompt_tokens_left"] + 1)
        late_s = sums["first_tokens_s"] - told["prefill_seconds_total"]
        named = f"boot {number}: "
        yield _same(f"{named}first_tokens_total", sums["first_tokens"], told["first_tokens_total"])
        yield _same(
            f"{named}prefill_tokens_total", sums["prompt_tokens"] - sums["cached_tokens"], told["prefill_tokens_total"]
        )
        yield _same(f"{named}prefix_hits_total", sums["cached_tokens"], told["prefix_hits_total"])
        yield Check(
            f"{named}prefix_queries_total",
            f"{looked_up.start}..{looked_up.stop - 1}",
            str(told["prefix_queries_total"]),
            told["prefix_queries_total"] in looked_up,
        )
        yield Check(
            f"{named}prefill_seconds_total, less than the clients' by",
            f"0..{TTFT_S_MAX:g} s a request",
            f"{late_s / sums['first_tokens']:.3f} s a request",
            0 <= late_s <= TTFT_S_MAX * sums["first_tokens"],
        )
        yield _same(f"{named}answers that failed", 0, sums["failed"])
        yield _same(f"{named}answers that extproc chose the node for", sums["answered"], sums["chosen"])


def _states(recording: Recording) -> Iterator[Check]:
    """When vLLM became healthy, was stopped, slept and woke up, the agent said so soon after."""
    wanted = {"healthy": "ready", "stopped": "loading", "sleep": "loading", "wake up": "ready"}
    for t_s, phase in recording.phases:
        if phase in wanted:
            came_s = next(
                (at_s for at_s, one in recording.snapshots if at_s >= t_s and one["state"] == wanted[phase]), 1e9
            )
            # It may have seen it before we did.
            known = _at(recording.snapshots, t_s)["state"] == wanted[phase]
            after_s = 0.0 if known else came_s - t_s
            yield Check(
                f"{wanted[phase]} after: {phase}", f"within {SEEN_S_MAX:g} s", f"{after_s:.2f} s", after_s <= SEEN_S_MAX
            )
    began, healthy = _phase(recording, "start"), _phase(recording, "healthy")
    early = [
        at_s for at_s, one in recording.snapshots if one["state"] == "ready" and began <= at_s < healthy - SEEN_S_MAX
    ]
    yield _same("ready while the first start was under way", 0, len(early))
    slept = _between(recording, "sleep", "wake up")
    yield _same("why it was not ready", "the engine is asleep", slept[-1].get("not_ready_reason"))


def _boots(recording: Recording) -> Iterator[Check]:
    ready = [one["boot_id"] for _, one in recording.snapshots if one["state"] == "ready"]
    stopped = _phase(recording, "stopped")
    before = {one["boot_id"] for at_s, one in recording.snapshots if one["state"] == "ready" and at_s < stopped}
    yield _same("boots that were ready: before the restart", 1, len(before))
    yield _same("boots that were ready: in all, through sleep too", 2, len(set(ready)))


def _models(recording: Recording) -> Iterator[Check]:
    listed = {str(one["models"]) for _, one in recording.snapshots if one["state"] == "ready"}
    yield _same("models with context lengths", str([[MODEL, CONTEXT_TOKENS]]), ", ".join(sorted(listed)))


def _absent(recording: Recording) -> Iterator[Check]:
    wrong = {
        f"{name}: {why}" for _, one in recording.snapshots if one["state"] == "ready" for name, why in one["absent"]
    }
    yield _same("signals that were doubted or missing", "none", "; ".join(sorted(wrong)) or "none")


def _repeats(recording: Recording) -> Iterator[Check]:
    """What vLLM found of each prompt that was asked again, beside what the agent told of its cache."""
    expected = [one["expected"] for _, one in recording.repeats]
    found = [one["cached"] for _, one in recording.repeats]
    yield _same("cached tokens of prompts asked again, by KV blocks told", expected, found)


def _same(what: str, wanted: object, got: object) -> Check:
    return Check(what, str(wanted), str(got), wanted == got)


def _ready_before(recording: Recording, t_s: float) -> Values:
    return _latest(recording.snapshots, lambda at_s, one: at_s <= t_s and one["state"] == "ready")


def _at(found: Sequence[At[Values]], t_s: float) -> Values:
    return _latest(found, lambda at_s, _: at_s <= t_s)


def _latest(found: Sequence[At[Values]], wanted: Callable[[float, Values], bool]) -> Values:
    return next(value for at_s, value in reversed(found) if wanted(at_s, value))


def _phase(recording: Recording, name: str) -> float:
    return next(at_s for at_s, phase in recording.phases if phase == name)


def _between(recording: Recording, first: str, last: str) -> list[Values]:
    from_s, to_s = _phase(recording, first), _phase(recording, last)
    return [one for at_s, one in recording.snapshots if from_s < at_s <= to_s]
