import hashlib
from collections import Counter, defaultdict
from dataclasses import fields
from itertools import groupby, pairwise
from pathlib import Path

import msgspec
import pytest

from extproc.core.settings import Fault
from extproc.sim.pacing import rate_per_s
from extproc.sim.profiles import WORKLOADS, Even, LogNormal, Sessions, SingleRequests
from extproc.sim.traces import BLOCK_TOKENS, Arrival
from extproc.sim.workloads import arrivals, generated
from tests.sim.chains import hit_share, is_sound

SINGLE = [name for name, profile in WORKLOADS.items() if isinstance(profile, SingleRequests)]
SESSIONS = [name for name, profile in WORKLOADS.items() if isinstance(profile, Sessions)]


def taken(source: str, wanted: int, seed: int = 1) -> list[Arrival]:
    outcome = arrivals(source, wanted, seed)
    assert isinstance(outcome, list), str(outcome)
    return outcome


def median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("conv", "0cf17a814b936be9"),
        ("code", "7eb06ec0a499b949"),
        ("mix", "b58ddbdcefc965cf"),
        ("heavy", "d874ae69c6bdc6a5"),
        ("agents", "9392f6bd946568a2"),
        ("chats", "beff0535276f82ae"),
    ],
)
def test_a_seed_gives_the_same_list_on_every_machine_and_python(name: str, digest: str) -> None:
    """A change here makes older results incomparable: it has to be meant."""
    assert hashlib.sha256(msgspec.json.encode(generated(name, 1000, seed=7))).hexdigest()[:16] == digest


@pytest.mark.parametrize("name", WORKLOADS)
def test_another_seed_gives_another_list_and_more_requests_only_add(name: str) -> None:
    assert generated(name, 200, seed=1) != generated(name, 200, seed=2)
    assert generated(name, 300, seed=1)[:200] == generated(name, 200, seed=1)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("wanted", [1, 2, 500])
def test_there_are_exactly_as_many_as_wanted(name: str, wanted: int) -> None:
    assert len(taken(f"generated:{name}", wanted)) == wanted


@pytest.mark.parametrize("name", WORKLOADS)
def test_arrivals_are_in_order_and_their_chains_are_sound(name: str) -> None:
    some = generated(name, 3000, seed=3)
    assert all(before.at_s <= after.at_s for before, after in pairwise(some))
    assert some[0].at_s >= 0
    assert min(min(arrival.prompt_tokens, arrival.output_tokens) for arrival in some) >= 1
    assert max(arrival.prompt_tokens + arrival.output_tokens for arrival in some) <= 131_072
    assert is_sound(some)


@pytest.mark.parametrize("name", SINGLE)
def test_single_requests_share_nothing_and_come_at_their_rate(name: str) -> None:
    some = generated(name, 20_000, seed=1)
    profile = WORKLOADS[name]
    assert isinstance(profile, SingleRequests)
    assert hit_share(some) == 0.0
    assert not any(arrival.session for arrival in some)
    assert rate_per_s(some) == pytest.approx(profile.rate_per_s, rel=0.08)


@pytest.mark.parametrize(
    ("name", "kind", "share", "prompt_tokens", "output_tokens"),
    [
        ("conv", "chat", 1.0, 1000, 129),
        ("code", "code", 1.0, 2500, 30),
        ("mix", "chat", 0.5, 1000, 129),
        ("mix", "code", 0.5, 2500, 30),
        ("heavy", "chat", 0.95, 1000, 129),
        ("heavy", "document", 0.05, 65_000, 129),
    ],
)
def test_lengths_and_shares_are_as_their_profile_says(
    name: str, kind: str, share: float, prompt_tokens: int, output_tokens: int
) -> None:
    every = generated(name, 10_000, seed=2)
    some = [arrival for arrival in every if arrival.kind == kind]
    assert len(some) / len(every) == pytest.approx(share, abs=0.015)
    assert median([arrival.prompt_tokens for arrival in some]) == pytest.approx(prompt_tokens, rel=0.1)
    assert median([arrival.output_tokens for arrival in some]) == pytest.approx(output_tokens, rel=0.15)


def test_documents_are_as_long_as_they_should_be() -> None:
    documents = [arrival.prompt_tokens for arrival in generated("heavy", 20_000, seed=2) if arrival.kind == "document"]
    assert 30_000 <= min(documents) < 31_000
    assert 99_000 < max(documents) <= 100_000


def variance_to_mean(some: list[Arrival], window_s: float = 5.0) -> float:
    """Of the arrivals in a window: 1 where they come at random at one rate."""
    windows = Counter(int(arrival.at_s / window_s) for arrival in some)
    counts = [windows[index] for index in range(int(some[-1].at_s / window_s))]
    mean = sum(counts) / len(counts)
    return sum((number - mean) ** 2 for number in counts) / len(counts) / mean


def test_conversations_come_in_bursts_and_code_does_not() -> None:
    assert variance_to_mean(generated("code", 20_000, seed=1)) < 1.5
    assert variance_to_mean(generated("conv", 20_000, seed=1)) > 10


@pytest.mark.parametrize("name", SESSIONS)
def test_a_turn_extends_the_turn_before_and_its_answer_after_a_pause(name: str) -> None:
    sessions = defaultdict(list)
    for arrival in generated(name, 5000, seed=4):
        sessions[arrival.session].append(arrival)
    followed = 0
    for turns in sessions.values():
        for before, after in pairwise(turns):
            said = before.prompt_blocks + before.answer_blocks
            assert after.prompt_blocks[: len(said)] == said
            assert len(said) == (before.prompt_tokens + before.output_tokens) // BLOCK_TOKENS
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
            assert after.at_s - before.at_s > before.output_tokens * 0.02
            followed += 1
    assert followed > 3000


@pytest.mark.parametrize("name", SESSIONS)
def test_sessions_share_their_system_prompt_and_nothing_else(name: str) -> None:
    profile = WORKLOADS[name]
    assert isinstance(profile, Sessions)
    some = generated(name, 20_000, seed=5)
    owners = defaultdict(set)
    for arrival in some:
        for block in arrival.prompt_blocks:
            owners[block].add(arrival.session)
    shared = {block for block, sessions in owners.items() if len(sessions) > 1}
    roots = {arrival.prompt_blocks[0] for arrival in some}
    assert len(roots) == profile.system_prompts
    assert roots <= shared
    for arrival in some:
        beginning = sum(block in shared for block in arrival.prompt_blocks)
        assert profile.system_tokens.least // BLOCK_TOKENS <= beginning <= profile.system_tokens.most // BLOCK_TOKENS
    by_root = {root: sum(arrival.prompt_blocks[0] == root for arrival in some) for root in roots}
    assert max(by_root.values()) > 2 * median(list(by_root.values()))


@pytest.mark.parametrize("name", SESSIONS)
def test_sessions_end_and_a_steady_number_is_open(name: str) -> None:
    profile = WORKLOADS[name]
    assert isinstance(profile, Sessions)
    some = generated(name, 20_000, seed=6)
    turns = [len(list(group)) for _, group in groupby(sorted(arrival.session for arrival in some))]
    # Those cut off at the end, and those whose context is full, make it fewer.
    assert 0.7 * profile.turns_mean < sum(turns) / len(turns) < 1.05 * profile.turns_mean
    assert max(arrival.prompt_tokens + arrival.output_tokens for arrival in some) <= profile.context_tokens_max
    half = some[-1].at_s / 2
    assert sum(arrival.at_s < half for arrival in some) / len(some) == pytest.approx(0.5, abs=0.02)
    second = sum(arrival.at_s < 10 for arrival in some) / 10
    assert second == pytest.approx(rate_per_s(some), rel=0.25)


def test_profiles_are_whole() -> None:
    for profile in WORKLOADS.values():
        assert isinstance(profile, SingleRequests | Sessions)
        if isinstance(profile, SingleRequests):
            assert sum(kind.share for kind in profile.kinds) == pytest.approx(1)
        for one in fields(profile):
            value = getattr(profile, one.name)
            if isinstance(value, LogNormal):
                assert 0 < value.median < value.most
            if isinstance(value, Even):
                assert 1 <= value.least <= value.most


@pytest.mark.parametrize("name", ["", "none", "Conv", "conv ", "\x1b[2J" * 50])
def test_an_unknown_workload_is_a_fault_that_lists_the_known_ones(name: str) -> None:
    outcome = arrivals(f"generated:{name}", 10, 1)
    assert isinstance(outcome, Fault)
    assert "generated:conv, generated:code, generated:mix, generated:heavy, generated:agents" in str(outcome)
    assert str(outcome).isprintable()
    assert len(str(outcome)) < 300


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rows = (f"2023-11-16 12:00:{second:02},{second + 1},1\n" for second in range(20))
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    return str(path)


@pytest.mark.parametrize("wanted", [1, 19, 20, 21, 70])
def test_a_trace_gives_exactly_as_many_as_wanted_from_where_the_seed_says(trace: str, wanted: int) -> None:
    some = taken(trace, wanted, seed=3)
    assert len(some) == wanted
    assert some == taken(trace, wanted, seed=3)
    begin = some[0].prompt_tokens
    assert [arrival.prompt_tokens for arrival in some] == [(begin - 1 + index) % 20 + 1 for index in range(wanted)]
    assert len({taken(trace, 1, seed)[0].prompt_tokens for seed in range(40)}) > 10


def test_a_traces_fault_is_told(tmp_path: Path) -> None:
    assert isinstance(arrivals(str(tmp_path / "gone"), 1, 1), Fault)
