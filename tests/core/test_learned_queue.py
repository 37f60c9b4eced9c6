"""How near the learned rate comes to the true one, by a small simulation of a queue: see `LearnedRates`."""

import random
from collections.abc import Callable

import pytest

from extproc.core.learned import LearnedRates
from extproc.core.settings import ExpectedRates
from tests.core.fleet import snapshot

RATE = 8000.0
"""Tokens a second that the engine truly computes; the router begins with half of it."""
MEAN_TOKENS = 1000.0
STEP_S = 0.025
"""Of a decode step. First tokens come with the end of one, after the rest of the one that runs."""
LASTS_S = 600.0
SHORTEST_S = 1e-6
"""A step so short that only the queue counts."""
Served = list[tuple[float, float, float]]
"""Arrival, first token and tokens of each request."""


def arrivals(chance: random.Random, load: float, sizes: Callable[[random.Random], float]) -> list[tuple[float, float]]:
    """Random arrivals that keep the engine busy for so large a share of the time, and their tokens."""
    at_s, arrived = 0.0, []
    while at_s < LASTS_S:
        at_s += chance.expovariate(load * RATE / MEAN_TOKENS)
        arrived.append((at_s, sizes(chance)))
    return arrived


def in_turn(arrived: list[tuple[float, float]]) -> Served:
    """One after another, first come first served."""
    free_s, served = 0.0, []
    for at_s, tokens in arrived:
        free_s = max(at_s, free_s) + tokens / RATE
        served.append((at_s, free_s, tokens))
    return served


def side_by_side(arrived: list[tuple[float, float]]) -> Served:
    """All at once, each at an even share of the rate (processor sharing)."""
    served: Served = []
    left: list[list[float]] = []  # tokens left, arrival, tokens
    now_s = 0.0
    for at_s, tokens in [*arrived, (float("inf"), 0.0)]:
        while left:
            shortest = min(left)
            done_s = now_s + shortest[0] * len(left) / RATE
            if done_s > at_s:
                break
            for one in left:
                one[0] -= shortest[0] if one is not shortest else 0.0
            left.remove(shortest)
            now_s = done_s
            served.append((shortest[1], now_s, shortest[2]))
        for one in left:
            one[0] -= (at_s - now_s) * RATE / len(left)
        now_s = at_s
        left.append([tokens, at_s, tokens])
    return served


def learned_rate(served: Served, step_s: float, told_s: float | None = None) -> float:
    """What a router makes of the engine's totals, reported once a second; it takes a step to last `told_s`."""
    learned = LearnedRates(ExpectedRates(prefill_tokens_per_s=RATE / 2, decode_s_per_token=told_s or step_s))
    chance = random.Random(1)
    served = [(at_s, first_s + (1 + chance.random()) * step_s, tokens) for at_s, first_s, tokens in served]
    waiting = sorted(served, key=lambda one: one[1], reverse=True)
    tokens, seconds, count, rate = 0.0, 0.0, 0, 0.0
    for second in range(int(LASTS_S)):
        while waiting and waiting[-1][1] <= second:
            at_s, first_s, more = waiting.pop()
            tokens, seconds, count = tokens + more, seconds + first_s - at_s, count + 1
        told = snapshot(prefill_tokens_total=int(tokens), prefill_seconds_total=seconds, first_tokens_total=count)
        rate = learned.observe(told, float(second)).prefill_tokens_per_s
    return rate


def even(_: random.Random) -> float:
    return MEAN_TOKENS


def mixed(chance: random.Random) -> float:
    return chance.expovariate(1 / MEAN_TOKENS)


def heavy(chance: random.Random) -> float:
    """One in twenty is 18 times as long as the mean, and nine in ten of all tokens are in these."""
    return 18 * MEAN_TOKENS if chance.random() < 0.05 else (1 - 0.9) / 0.95 * MEAN_TOKENS


Serve = Callable[[list[tuple[float, float]]], Served]


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(
    ("serve", "sizes", "step_s"),
    [
        (in_turn, even, SHORTEST_S),
        *((in_turn, mixed, step_s) for step_s in (SHORTEST_S, STEP_S)),
        *((side_by_side, sizes, step_s) for sizes in (even, mixed, heavy) for step_s in (SHORTEST_S, STEP_S)),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_rate_is_learned_within_a_quarter_at_any_load(
    load: float, serve: Serve, sizes: Callable[[random.Random], float], step_s: float, seed: int
) -> None:
    assert learned_rate(serve(arrivals(random.Random(seed), load, sizes)), step_s) == pytest.approx(RATE, rel=0.25)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", [1, 2])
def test_of_equal_prompts_in_turn_beside_decodes_the_rate_is_learned_within_a_third(load: float, seed: int) -> None:
    """They wait half as long as the prompts that the estimate is made for."""
    assert learned_rate(in_turn(arrivals(random.Random(seed), load, even)), STEP_S) == pytest.approx(RATE, rel=0.35)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("serve", [in_turn, side_by_side])
def test_an_engine_whose_prompts_wait_for_no_steps_looks_up_to_half_as_fast_again(load: float, serve: Serve) -> None:
    """It decodes nothing. All nodes of a fleet are taken alike, so that this changes no choice between them."""
    assert RATE < learned_rate(serve(arrivals(random.Random(1), load, mixed)), 0.0, STEP_S) < 1.5 * RATE


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("step_s", [SHORTEST_S, STEP_S])
def test_where_few_long_prompts_hold_up_all_others_the_rate_is_at_most_halved(load: float, step_s: float) -> None:
    """The worst case, and alike at every load: the wait behind a long prompt looks like work of its own."""
    assert 0.5 * RATE < learned_rate(in_turn(arrivals(random.Random(1), load, heavy)), step_s) < 1.1 * RATE


@pytest.mark.parametrize(("clients", "times_too_high"), [(1, 2.0), (2, 1.5), (8, 1.125)])
def test_a_few_clients_that_always_wait_look_like_half_the_load(clients: int, times_too_high: float) -> None:
    """What totals cannot tell: one that always prefills has the same ones as random arrivals at half the load."""
    free_s, ready, served = 0.0, [0.0] * clients, []
    while free_s < LASTS_S:
        at_s = ready.pop(0)
        free_s = max(at_s, free_s) + MEAN_TOKENS / RATE
        served.append((at_s, free_s, MEAN_TOKENS))
        ready.append(free_s)
    assert learned_rate(served, SHORTEST_S) == pytest.approx(times_too_high * RATE, rel=0.05)
