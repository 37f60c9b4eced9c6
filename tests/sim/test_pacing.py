from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.pacing import TOKEN_S_MIN, rate_per_s, requests, scaled
from extproc.sim.traces import Arrival
from tests.sim.chains import hit_share, is_sound


def at(*times: float) -> list[Arrival]:
    return [Arrival(at_s, 1, 1) for at_s in times]


def times(arrivals: list[Arrival]) -> list[float]:
    return [arrival.at_s for arrival in arrivals]


def turns(*gaps_s: float, session: str = "s", output_tokens: int = 10) -> list[Arrival]:
    taken, at_s = [], 0.0
    for gap_s in gaps_s:
        at_s += gap_s
        taken.append(Arrival(at_s, 1, output_tokens, session=session))
    return taken


def test_the_rate_is_that_of_the_gaps() -> None:
    assert rate_per_s(at(5, 6, 7)) == 1.0
    assert rate_per_s(at(0, 0.5)) == 2.0
    assert rate_per_s(at(3, 3, 3)) == rate_per_s(at(3)) == float("inf")


def test_fewer_requests_are_a_cut() -> None:
    assert times(requests(at(0, 1, 5), 2)) == [0, 1]
    assert times(requests(at(0, 1, 5), 2, start=1)) == [0, 4]
    assert times(requests(at(0, 1, 5), 2, start=4)) == [0, 4]


def test_more_requests_are_passes_with_a_mean_gap_between_them() -> None:
    assert times(requests(at(0, 1, 4), 8)) == [0, 1, 4, 6, 7, 10, 12, 13]
    assert times(requests(at(2, 3, 6), 4, start=1)) == [0, 3, 5, 6]
    assert times(requests(at(2), 3)) == [0, 1, 2]
    assert times(requests(at(2, 2), 4)) == [0, 0, 1, 1]


def test_a_further_pass_keeps_shared_blocks_and_renews_sessions_and_their_own() -> None:
    once = [
        Arrival(0, 192, 64, (1, 2, 3), (4,), session="a"),
        Arrival(1, 320, 1, (1, 2, 3, 4, 5), session="a"),
        Arrival(2, 192, 1, (1, 2, 6), session="b"),
        Arrival(3, 64, 1, (7,)),
    ]
    twice = requests(once, 10)
    assert twice[:4] == once
    assert [arrival.session for arrival in twice[4:]] == ["a/2", "a/2", "b/2", "", "a/3", "a/3"]
    assert twice[4].prompt_blocks[:2] == twice[8].prompt_blocks[:2] == (1, 2)
    assert twice[4].prompt_blocks + twice[4].answer_blocks == twice[5].prompt_blocks[:4]
    own = [{*arrival.prompt_blocks[2:], *arrival.answer_blocks} for arrival in (twice[1], twice[5], twice[9])]
    assert not own[0] & own[1]
    assert not own[1] & own[2]
    assert twice[3].prompt_blocks != twice[7].prompt_blocks
    assert is_sound(twice)


def test_what_requests_without_a_session_share_is_kept() -> None:
    once = [Arrival(0, 128, 1, (1, 2)), Arrival(1, 192, 1, (1, 2, 3))]
    assert [arrival.prompt_blocks for arrival in requests(once, 4)[2:]] == [(1, 2), (1, 2, 7)]


families = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12
)


@given(families, st.integers(1, 40), st.integers(0, 30))
def test_exactly_as_many_as_wanted_with_sound_chains_and_time_that_does_not_run_back(
    some: list[tuple[str, int, int, int]], wanted: int, start: int
) -> None:
    # A prompt begins with up to 3 blocks of all, goes on with those of its session, and ends with its own.
    once = []
    for index, (session, common, sessions, own) in enumerate(some):
        blocks: list[int] = list(range(1, 4))[:common]
        if common == 3:
            blocks += list(range(10 * ord(session), 10 * ord(session) + 3))[:sessions]
        blocks += range(10_000 + 10 * index, 10_000 + 10 * index + own)
        once.append(Arrival(index / 4, max(1, 64 * len(blocks)), 1, tuple(blocks), session=session))
    taken = requests(once, wanted, start)
    assert len(taken) == wanted
    assert taken[0].at_s == 0
    assert all(before.at_s < after.at_s for before, after in pairwise(taken))
    assert is_sound(arrival for arrival in taken if arrival.prompt_blocks)


def test_passes_do_not_find_each_others_prompts() -> None:
    once = [Arrival(index, 640, 1, tuple(range(index * 10, index * 10 + 10))) for index in range(5)]
    assert hit_share(requests(once, 6)) == hit_share(requests(once, 20)) == 0.0


def test_an_answers_blocks_are_not_taken_for_those_of_a_further_pass() -> None:
    twice = requests([Arrival(0, 64, 64, (1,), (3,), session="a")], 2)
    assert not set(twice[0].prompt_blocks + twice[0].answer_blocks) & {
        *twice[1].prompt_blocks,
        *twice[1].answer_blocks,
    }


@pytest.mark.parametrize("rate", [0.01, 1.0, 123.4])
def test_time_is_stretched_to_the_rate_from_zero_on(rate: float) -> None:
    paced = scaled(at(10, 11, 15, 16), rate)
    assert paced[0].at_s == 0
    assert rate_per_s(paced) == pytest.approx(rate)
    assert times(paced) == pytest.approx([one * 0.5 / rate for one in (0, 1, 5, 6)])


def test_arrivals_at_one_moment_are_spread_evenly() -> None:
    assert times(scaled(at(7, 7, 7), 2.0)) == [0, 0.5, 1.0]
    assert times(scaled(at(7), 2.0)) == [0]


def test_a_turn_never_comes_before_the_answer_before_it_could_exist() -> None:
    answer_s = 10 * TOKEN_S_MIN
    paced = scaled([*turns(0, 1, 1), *at(100)], 4.0 / answer_s)
    first, second, third = (arrival.at_s for arrival in paced if arrival.session)
    assert second - first >= answer_s * (1 - 1e-9)
    assert third - second >= answer_s * (1 - 1e-9)


def test_where_turns_wait_the_rate_is_still_met_and_all_is_in_order_of_time() -> None:
    others = at(*(index / 3 for index in range(150)))
    arrivals = sorted([*turns(25.0, *[0.4] * 49), *others], key=lambda one: one.at_s)
    least_s = 49 * 10 * TOKEN_S_MIN
    rate = (len(arrivals) - 1) / (least_s * 1.05)
    paced = scaled(arrivals, rate)
    assert rate_per_s(paced) == pytest.approx(rate, rel=1e-6)
    assert times(paced) == sorted(times(paced))
    assert sum(not arrival.session for arrival in paced) == 150


def test_a_rate_beyond_what_a_session_can_take_gives_what_it_can() -> None:
    paced = scaled(turns(0, 1, 1), 1e6)
    assert rate_per_s(paced) == pytest.approx(1 / (10 * TOKEN_S_MIN))


sessions = st.lists(
    st.tuples(st.floats(0, 100), st.sampled_from(["", "a", "b"]), st.integers(1, 50)), min_size=1, max_size=25
)


@given(sessions, st.floats(1e-3, 1e3))
def test_scaling_keeps_every_arrival_and_the_order_of_each_sessions_turns(
    some: list[tuple[float, str, int]], rate: float
) -> None:
    arrivals = [
        Arrival(at_s, index + 1, output_tokens, session=session)
        for index, (at_s, session, output_tokens) in enumerate(sorted(some))
    ]
    paced = scaled(arrivals, rate)
    assert sorted(arrival.prompt_tokens for arrival in paced) == [arrival.prompt_tokens for arrival in arrivals]
    assert all(before.at_s <= after.at_s for before, after in pairwise(paced))
    assert paced[0].at_s >= 0
    if len(arrivals) > 1:
        assert rate_per_s(paced) <= rate * (1 + 1e-9)
    by_session = defaultdict(list)
    for arrival in paced:
        by_session[arrival.session].append(arrival)
    for session, taken in by_session.items():
        if session:
            for before, after in pairwise(taken):
                assert before.prompt_tokens < after.prompt_tokens
                assert after.at_s - before.at_s >= before.output_tokens * TOKEN_S_MIN - 1e-9
