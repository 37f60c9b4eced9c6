from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from extproc.core.cost import LoadScoreWeights, load_score
from extproc.core.request import Phase
from extproc.core.snapshot import NodeView, OwnLoad, Snapshot
from tests.core.fleet import prospects, view

SHARES = st.floats(0, 1)
COUNTS = st.integers(0, 1000)


def cost(node: NodeView, phase: Phase = Phase.DECODE) -> float:
    return load_score(prospects([node], phase=phase))[0]


@pytest.mark.parametrize(
    ("changes", "phase", "points"),
    [
        ({}, Phase.DECODE, 0.0),
        ({"kv_usage": 0.5}, Phase.DECODE, 20.0),
        ({"kv_usage": 1.0}, Phase.DECODE, 40.0),
        ({"requests_waiting": 3}, Phase.DECODE, 15.0),
        ({"pending_prefills": 2}, Phase.DECODE, 0.0),
        ({"pending_prefills": 2}, Phase.PREFILL_HEAVY, 30.0),
        ({"gpu_utilization": 0.85}, Phase.DECODE, 0.0),
        ({"gpu_utilization": 0.95}, Phase.DECODE, 10.0),
        ({"kv_usage": 0.5, "requests_waiting": 1, "pending_prefills": 1}, Phase.PREFILL_HEAVY, 55.0),
    ],
)
def test_load_score_adds_up_the_points_of_its_formula(changes: dict[str, object], phase: Phase, points: float) -> None:
    assert cost(view(**changes), phase) == pytest.approx(points)  # type: ignore[arg-type]


def test_load_score_prefers_the_emptier_kv_cache() -> None:
    """The formula this project began with had the sign the other way round."""
    full, empty = load_score(prospects([view("full", kv_usage=0.8), view("empty", kv_usage=0.1)]))
    assert empty < full


def test_what_we_sent_since_the_sample_counts_as_waiting_prefills_and_used_blocks() -> None:
    own = OwnLoad(sequences_open=5, sequences_unseen=2, kv_blocks_unseen=100)
    assert cost(view(own=own)) == pytest.approx(2 * 5 + 40 * 0.1)
    assert cost(view(own=own), Phase.PREFILL_HEAVY) == pytest.approx(2 * 5 + 40 * 0.1 + 30)


def test_what_a_sample_has_already_shown_is_not_counted_again() -> None:
    assert cost(view(own=OwnLoad(sequences_open=5))) == 0


def test_blocks_of_what_ended_since_the_sample_are_free() -> None:
    """And never fewer than none are in use, however stale the sample."""
    ended = OwnLoad(kv_blocks_unseen=-100)
    assert cost(view(own=ended, kv_usage=0.5)) == pytest.approx(40 * 0.4)
    assert cost(view(own=ended, kv_usage=0.05)) == 0.0


def test_a_policy_sets_the_weights() -> None:
    weights = LoadScoreWeights(
        kv_usage=1, requests_waiting=10, prefill_collision=100, gpu_over=1000, gpu_utilization_min=0
    )
    busy = view(kv_usage=0.5, requests_waiting=2, pending_prefills=3, gpu_utilization=0.4)
    of_decode, of_prefill = (
        load_score(prospects([busy], phase=phase, load_score=weights))[0]
        for phase in (Phase.DECODE, Phase.PREFILL_HEAVY)
    )
    assert (of_decode, of_prefill) == (0.5 + 20 + 400, 0.5 + 20 + 100 + 400)


@pytest.mark.parametrize(
    "signal",
    [
        "kv_usage",
        "requests_waiting",
        "pending_prefills",
        "gpu_utilization",
        "kv_blocks_total",
        "kv_block_size_tokens",
    ],
)
def test_a_node_gains_nothing_by_hiding_a_signal(signal: str) -> None:
    """Where one candidate lacks a signal, its term is left out for all of them."""
    busy = {"kv_usage": 0.8, "requests_waiting": 9, "pending_prefills": 9, "gpu_utilization": 1.0}
    own = OwnLoad(sequences_open=5, sequences_unseen=2, kv_blocks_unseen=100)
    # Without a block size the ledger cannot tell the blocks of what it sent.
    hidden = structs.replace(own, kv_blocks_unseen=0) if signal == "kv_block_size_tokens" else own
    nodes = [view("honest", own, **busy), view("hiding", hidden, **(busy | {signal: None}))]  # type: ignore[arg-type]
    honest, hiding = load_score(prospects(nodes, phase=Phase.PREFILL_HEAVY))
    assert honest == hiding


def fuller(one: Snapshot, more: dict[str, float]) -> Snapshot:
    return replace(
        one,
        kv_usage=min(1.0, (one.kv_usage or 0) + more["kv"]),
        gpu_utilization=min(1.0, (one.gpu_utilization or 0) + more["gpu"]),
        requests_waiting=(one.requests_waiting or 0) + int(more["waiting"]),
        pending_prefills=(one.pending_prefills or 0) + int(more["pending"]),
    )


@given(
    kv=SHARES,
    gpu=SHARES,
    waiting=COUNTS,
    pending=COUNTS,
    unseen=COUNTS,
    more=st.fixed_dictionaries({"kv": SHARES, "gpu": SHARES, "waiting": COUNTS, "pending": COUNTS, "unseen": COUNTS}),
    phase=st.sampled_from(Phase),
)
def test_a_fuller_node_never_scores_better(
    kv: float, gpu: float, waiting: int, pending: int, unseen: int, more: dict[str, float], phase: Phase
) -> None:
    before = view(
        own=OwnLoad(unseen, unseen, kv_blocks_unseen=unseen),
        kv_usage=kv,
        gpu_utilization=gpu,
        requests_waiting=waiting,
        pending_prefills=pending,
    )
    total = unseen + int(more["unseen"])
    after = structs.replace(
        before, snapshot=fuller(before.snapshot, more), own=OwnLoad(total, total, kv_blocks_unseen=total)
    )
    assert cost(after, phase) >= cost(before, phase)
