"""How alike the rates of like engines are, whatever is sent to them: see `LearnedRates`.

Engines are those of the simulator, whose steps decode and prefill together; prompts arrive at random.
"""

import random
from dataclasses import dataclass

import pytest

from extproc.core.learned import LearnedRates
from extproc.core.settings import ExpectedRates
from extproc.core.snapshot import Snapshot
from extproc.sim.engine import Engine
from extproc.sim.enginesettings import EngineSettings
from extproc.sim.events import Request
from tests.core.fleet import snapshot

LASTS_S = 240


@dataclass(frozen=True)
class Mix:
    """What one engine is sent."""

    tokens: float
    """Of a prompt, in the mean."""
    rate: float
    """Prompt tokens a second."""
    answer: int = 150


class Fed:
    """One engine and what it is sent."""

    def __init__(self, name: str, mix: Mix, speed: float, seed: int) -> None:
        self.name = name
        self.engine = Engine(EngineSettings(speed=speed))
        self._mix, self._chance = mix, random.Random(f"{seed} {name}")
        self._next_s, self._sent = 0.0, 0
        self._gaps = (0.0, 0)

    def run_until(self, now_s: float) -> None:
        while self._next_s < now_s:
            tokens = max(1, min(30_000, round(self._chance.expovariate(1 / self._mix.tokens))))
            answer = 1 + round(self._chance.expovariate(1 / self._mix.answer))
            self.engine.submit(Request(f"r{self._sent}", tokens, answer), self._next_s)
            self._sent += 1
            self._next_s += self._chance.expovariate(self._mix.rate / self._mix.tokens)
        self.engine.advance(now_s)

    def report(self) -> Snapshot:
        counters = self.engine.counters
        first, gaps = counters.time_to_first_token, counters.inter_token_latency
        passed_s, count = gaps.sum - self._gaps[0], gaps.count - self._gaps[1]
        self._gaps = gaps.sum, gaps.count
        return snapshot(
            self.name,
            prefill_tokens_total=counters.prompt_tokens_computed,
            prefill_seconds_total=first.sum,
            first_tokens_total=first.count,
            decode_ms_per_token=1000 * passed_s / count if count else None,
        )


def learned_rates(*fed: Fed) -> list[tuple[float, ...]]:
    """What a router makes of their totals, reported once a second; of each second after the first minute."""
    learned, rates = LearnedRates(ExpectedRates()), []
    for second in range(1, LASTS_S + 1):
        for one in fed:
            one.run_until(float(second))
            learned.observe(one.report(), float(second))
        if second > 60:
            rates.append(tuple(learned.of(one.name).prefill_tokens_per_s for one in fed))
    return rates


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Mix(200, 1600), Mix(4000, 3000)),
        (Mix(200, 1600), Mix(4000, 4500)),
        (Mix(500, 3000), Mix(2000, 3000)),
        (Mix(1000, 3000), Mix(1000, 500)),
        (Mix(1000, 3000, answer=300), Mix(1000, 3000, answer=3)),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_like_engines_have_like_rates_whatever_is_sent_to_them(one: Mix, other: Mix, seed: int) -> None:
    """Prompts short and long, many and few, before answers short and long."""
    rates = learned_rates(Fed("a", one, 1.0, seed), Fed("b", other, 1.0, seed))
    assert rates[-1][0] == pytest.approx(rates[-1][1], rel=0.15)
    assert all(0.7 < a / b < 1.4 for a, b in rates), "at every report"


@pytest.mark.parametrize(
    ("tokens", "slow_tokens", "least", "most"),
    [
        *((200, 200, 2.5, 3.5), (1000, 1000, 2.5, 3.5), (4000, 4000, 2.5, 3.5)),
        *((500, 2000, 2.5, 3.5), (2000, 500, 2.5, 3.5)),
        *((4000, 200, 2.5, 4.0), (200, 4000, 2.0, 3.5)),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_an_engine_that_is_three_times_slower_is_seen_to_be(
    tokens: float, slow_tokens: float, least: float, most: float, seed: int
) -> None:
    """Whatever is sent to it, a third as much. Only where prompts differ by twenty times it blurs a little."""
    fast = Fed("fast", Mix(tokens, min(3000, 8 * tokens)), 1.0, seed)
    slow = Fed("slow", Mix(slow_tokens, min(3000, 8 * slow_tokens) / 3), 1 / 3, seed)
    rates = learned_rates(fast, slow)
    assert least < rates[-1][0] / rates[-1][1] < most
