"""Where a prompt's beginning draws its requests, through the balancer."""

from collections import Counter
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy
from extproc.core.prefix import ENTRY_BYTES
from extproc.core.promptcaches import ON_THE_WAY_SHARE
from extproc.core.request import InferenceRequest, Phase, TokenCount
from extproc.core.settings import BalancerSettings, PrefixSettings
from extproc.core.snapshot import NodeLeft, NodeReported, ServedModel, Snapshot
from extproc.prompt import Prompt
from extproc.tokens.blocks import blocks_of
from tests.core.fleet import MODEL, NOW_S, POLICY, balancer, node_of, request, snapshot

TOKENS_A_BLOCK = 100


def asked(request_id: str, blocks: range, *, model: str = MODEL) -> InferenceRequest:
    """A prompt of so many blocks, each of 100 tokens, and half a one behind them."""
    tokens = len(blocks) * TOKENS_A_BLOCK + TOKENS_A_BLOCK // 2
    return request(request_id, tokens, model=model, prompt_blocks=tuple(blocks), output_tokens_max=0)


def done(fleet: Balancer, one: InferenceRequest, policy: RoutingPolicy = POLICY) -> tuple[str, int | None]:
    """Who took it, and the tokens that it had to compute; it is over by the next, having taken a second."""
    decision = fleet.route(one, policy, NOW_S)
    fleet.finish(one.request_id, NOW_S + 1)
    return node_of(decision), decision.uncached_tokens


def fleet_of(names: str, settings: BalancerSettings | None = None, **changes: object) -> Balancer:
    reports = [snapshot(name, **changes) for name in names]
    return balancer(*reports) if settings is None else balancer(*reports, settings=settings)


def test_a_prompt_goes_where_its_beginning_is_and_counts_by_the_rest() -> None:
    fleet = fleet_of("abcd")
    node, uncached = done(fleet, asked("r1", range(20)))
    assert uncached == 2050
    for number in range(2, 20):
        assert done(fleet, asked(f"r{number}", range(20))) == (node, 50)
    assert done(fleet, asked("longer", range(30))) == (node, 1050)
    other = done(fleet, asked("other", range(100, 120)))
    assert other[1] == 2050


def test_prompts_with_different_beginnings_spread() -> None:
    fleet = fleet_of("abcd")
    first = Counter(
        done(fleet, asked(f"r{number}", range(number * 100, number * 100 + 20)))[0] for number in range(400)
    )
    assert all(60 < count < 140 for count in first.values())


def test_affinity_gives_way_to_load() -> None:
    """It enters through the tokens to compute alone: enough work ahead weighs more than any cache."""
    fleet = fleet_of("ab")
    home, _ = done(fleet, asked("r1", range(20)))
    homes = [node_of(fleet.route(asked(f"r{number}", range(20)), POLICY, NOW_S)) for number in range(2, 60)]
    away = homes.index("b" if home == "a" else "a")
    # n requests there cost ((2 + n/8)·50·n + 50·(1 + n))/r, the other node costs 2050/r: more than 9.5 of them.
    assert away == 10
    assert len(set(homes[away + 1 :])) == 2, "and then both have it"


@pytest.mark.parametrize(
    ("changes", "tokens_kept"),
    [
        ({"kv_blocks_total": 140, "kv_block_size_tokens": 16}, 2000),  # 2240 tokens: 35 blocks of 64
        ({"kv_blocks_total": 40, "kv_block_size_tokens": 16}, 0),  # 640 tokens: the engine will refuse it
        ({"kv_blocks_total": None, "kv_block_size_tokens": 16}, 1500),
        ({"kv_blocks_total": 1000, "kv_block_size_tokens": None}, 1500),
    ],
)
def test_a_node_is_taken_to_keep_what_it_says_it_holds_or_what_is_set(
    changes: dict[str, object], tokens_kept: int
) -> None:
    settings = BalancerSettings(prefix=PrefixSettings(node_tokens=15 * 64))
    fleet = fleet_of("a", settings, **changes)
    done(fleet, asked("r1", range(20)))
    assert done(fleet, asked("r2", range(20))) == ("a", 2050 - tokens_kept)


@pytest.mark.parametrize(("context_tokens", "kept"), [(1366, 2000), (1365, 0)])
def test_a_prompt_is_remembered_unless_its_estimate_is_far_over_the_context(context_tokens: int, kept: int) -> None:
    """Long prompts are those that are estimated, and an estimate of 2050 tokens may be too large by half."""
    fleet = fleet_of("a", models=(ServedModel(MODEL, context_length_tokens=context_tokens),))
    one, other = (replace(asked(name, range(20)), prompt=TokenCount(2050, exact=False)) for name in ("r1", "r2"))
    done(fleet, one)
    assert done(fleet, other) == ("a", 2050 - kept)


def test_without_an_index_every_prompt_counts_whole() -> None:
    fleet = fleet_of("a", BalancerSettings(prefix=PrefixSettings(index_bytes_max=0)))
    assert {done(fleet, asked(f"r{number}", range(20))) for number in range(3)} == {("a", 2050)}


def test_a_prompt_without_blocks_counts_whole() -> None:
    fleet = fleet_of("a")
    done(fleet, asked("r1", range(20)))
    assert done(fleet, replace(asked("r2", range(20)), prompt_blocks=())) == ("a", 2050)


def left(fleet: Balancer) -> None:
    fleet.observe(NodeLeft("a", "boot-1"), NOW_S)
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), NOW_S)


def restarted(fleet: Balancer) -> None:
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), NOW_S)


def forgotten(fleet: Balancer) -> None:
    fleet.tick(NOW_S + 301)
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), NOW_S)


def reported(fleet: Balancer) -> None:
    fleet.observe(NodeReported(snapshot("a", sequence=2, kv_usage=0.5)), NOW_S)


@pytest.mark.parametrize(("happens", "uncached"), [(left, 2050), (restarted, 2050), (forgotten, 2050), (reported, 50)])
@pytest.mark.parametrize("settled", [False, True])
def test_a_cache_is_gone_with_its_engine_and_stays_with_it(
    happens: Callable[[Balancer], None], uncached: int, settled: bool
) -> None:
    """Also where the index had yet to take in what was sent before."""
    fleet = fleet_of("a")
    fleet.route(asked("r1", range(20)), POLICY, NOW_S)
    if settled:
        fleet.settle()
    happens(fleet)
    assert done(fleet, asked("r2", range(20))) == ("a", uncached)


@pytest.mark.parametrize("settled", [False, True])
def test_what_was_sent_to_a_node_that_is_forgotten_took_its_room_while_it_was_there(settled: bool) -> None:
    """So that it never matters when the index took it in. There is room for 20 blocks; the larger node gives."""
    fleet = fleet_of("ab", BalancerSettings(prefix=PrefixSettings(index_bytes_max=ON_THE_WAY_SHARE * 20 * ENTRY_BYTES)))
    fleet.observe(NodeReported(snapshot("a", sequence=2)), NOW_S + 100)
    # All are stale by now, so they take turns.
    ids = [asked(f"r{number}", range(100 * number, 100 * number + 15)) for number in range(2)]
    assert [node_of(fleet.route(one, POLICY, NOW_S + 200)) for one in ids] == ["a", "b"]
    if settled:
        fleet.settle()
    assert fleet.tick(NOW_S + 300) == ["b"]
    fleet.observe(NodeReported(snapshot("a", sequence=3)), NOW_S + 300)
    assert fleet.route(asked("r2", range(15)), POLICY, NOW_S + 300).uncached_tokens == 1550 - 500


def both(name: str) -> Snapshot:
    return snapshot(name, models=(ServedModel(MODEL), ServedModel("tuned")))


def test_the_same_text_for_another_model_or_adapter_is_another_prompt() -> None:
    """Chains are salted by the model's name: engines share no cache between adapters."""
    fleet = balancer(both("a"), both("b"))
    text = Prompt(texts=("Long ago, in a galaxy far away, " * 100,))

    def of(request_id: str, model: str) -> InferenceRequest:
        return request(request_id, 800, model=model, prompt_blocks=blocks_of(model, text, 7), output_tokens_max=0)

    assert done(fleet, of("r1", MODEL))[1] == 800
    assert done(fleet, of("r2", "tuned"))[1] == 800
    assert (done(fleet, of("r3", MODEL))[1] or 800) < 100
    assert (done(fleet, of("r4", "tuned"))[1] or 800) < 100


def test_the_phase_rests_on_what_is_left_to_compute() -> None:
    fleet = fleet_of("ab")
    one = replace(asked("r1", range(50)), output_tokens_max=20)
    assert fleet.would_route(one, POLICY, NOW_S).phase is Phase.PREFILL_HEAVY
    done(fleet, one)
    assert fleet.would_route(replace(one, request_id="r2"), POLICY, NOW_S).phase is Phase.DECODE


@pytest.mark.parametrize("strategy", ["lmetric", "least-added-delay"])
def test_strategies_that_know_of_prompts_follow_their_beginnings(strategy: str) -> None:
    fleet = fleet_of("abcdef")
    policy = RoutingPolicy(strategy=strategy)
    homes = {done(fleet, asked(f"r{number}", range(20)), policy)[0] for number in range(30)}
    assert len(homes) == 1
