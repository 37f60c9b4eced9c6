"""What holds of `decide` whatever the fleet, the request and the strategy."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from extproc.core.cost import STRATEGIES
from extproc.core.decision import Chosen, Refused, Unknown
from extproc.core.hidden import KV_BLOCKS, KV_SIZE, KV_USAGE, QUEUE, some_hide
from extproc.core.policy import RoutingPolicy
from extproc.core.request import Endpoint, InferenceRequest, TokenCount
from extproc.core.room import KV_USAGE_MAX_OF_LOAD_SCORE, TOO_FEW_BLOCKS
from extproc.core.router import FallBack, Known, decide
from extproc.core.snapshot import ALWAYS, Learned, NodeState, NodeView, OwnLoad, ServedModel
from tests.core.fleet import MODEL, NOW_S, SETTINGS, view

NODE_IDS = [f"n{number}" for number in range(12)]
maybe = st.none() | st.integers(0, 2000)
counts = st.integers(0, 300)
NODES = st.builds(
    view,
    node_id=st.sampled_from(NODE_IDS),
    own=st.builds(
        OwnLoad,
        *(counts, counts, counts, counts, st.integers(-2000, 2000), st.integers(0, 10**6), counts),
        work_tokens=st.floats(0, 1e6),
        work_since_s=st.floats(NOW_S - 400, NOW_S + 5) | st.just(ALWAYS),
    ),
    sampled_at_s=st.floats(NOW_S - 400, NOW_S),
    learned=st.builds(
        Learned, st.floats(0.1, 1e7), st.floats(0, 1e6), st.none() | st.floats(1e-4, 60), st.floats(0, 1)
    ),
    ready_since_s=st.floats(NOW_S - 20, NOW_S) | st.just(float("-inf")),
    state=st.sampled_from(NodeState),
    models=st.none()
    | st.lists(
        st.builds(ServedModel, st.sampled_from([MODEL, "other"]), st.none(), maybe, st.booleans()), max_size=2
    ).map(tuple),
    gpu_utilization=st.none() | st.floats(0, 1),
    kv_usage=st.none() | st.floats(0, 1),
    kv_block_size_tokens=st.none() | st.integers(1, 256),
    kv_blocks_total=maybe,
    kv_blocks_available=maybe,
    pending_prefills=maybe,
    requests_running=maybe,
    requests_waiting=st.none() | st.integers(0, 200),
    adapter_slots_free=st.none() | st.integers(0, 4),
    weight=st.floats(0.001, 1000),
)
FLEETS = st.lists(NODES, max_size=12, unique_by=lambda node: node.snapshot.node_id)
REQUESTS = st.builds(
    InferenceRequest,
    request_id=st.text(max_size=8).filter(lambda text: text.isprintable()),
    model=st.sampled_from([MODEL, "other", "nobody's"]),
    endpoint=st.sampled_from(Endpoint),
    prompt=st.builds(TokenCount, st.integers(0, 10**7), st.booleans()),
    output_tokens_max=st.none() | st.integers(0, 10**7),
    prompt_blocks=st.integers(0, 50).map(lambda count: tuple(range(count))),
    sequences=st.integers(1, 128),
)
KNOWN = st.builds(
    Known,
    turn=st.integers(0, 10**9),
    models_left=st.sampled_from([(), ("nobody's",)]),
    cached_tokens=st.dictionaries(st.sampled_from(NODE_IDS), st.integers(1, 10**7)),
    told=st.sampled_from([(), NODE_IDS[:1], NODE_IDS]),
    out_until_s=st.dictionaries(st.sampled_from(NODE_IDS), st.floats(NOW_S - 60, NOW_S + 60)),
    output_tokens=st.floats(0, 1e6),
    prefill_tokens_per_s=st.floats(0.1, 1e7),
    decode_s_per_token=st.floats(1e-6, 60),
)
POLICIES = st.builds(
    RoutingPolicy,
    strategy=st.sampled_from(sorted(STRATEGIES)),
    first_token_weight=st.floats(0, 1000),
    output_token_weight=st.floats(0, 1000),
)


def sensible(asked: InferenceRequest, known: Known) -> Known:
    """No node has more of a prompt than there is."""
    cached = {one: min(count, asked.prompt.tokens) for one, count in known.cached_tokens.items()}
    return structs.replace(known, cached_tokens=cached)


@given(nodes=FLEETS, asked=REQUESTS, policy=POLICIES, known=KNOWN, seed=st.integers())
def test_the_order_of_the_table_never_matters(
    nodes: list[NodeView], asked: InferenceRequest, policy: RoutingPolicy, known: Known, seed: int
) -> None:
    known = sensible(asked, known)
    shuffled = nodes[:]
    random.Random(seed).shuffle(shuffled)
    one = decide(asked, nodes, policy, SETTINGS, known, NOW_S)
    other = decide(asked, shuffled, policy, SETTINGS, known, NOW_S)
    if isinstance(one.outcome, FallBack) and isinstance(other.outcome, FallBack):
        assert {id(node) for node in one.outcome.members} == {id(node) for node in other.outcome.members}
    else:
        assert one == other


@settings(max_examples=200)
@given(nodes=FLEETS, asked=REQUESTS, policy=POLICIES, known=KNOWN)
def test_decide_raises_for_no_input_and_names_eligible_nodes_only(
    nodes: list[NodeView], asked: InferenceRequest, policy: RoutingPolicy, known: Known
) -> None:
    known = sensible(asked, known)
    verdict = decide(asked, nodes, policy, SETTINGS, known, NOW_S)
    able = [node for node in nodes if may_take(node, asked)]
    eligible = [node for node in able if is_well(node, known)] or able
    # Where some hide what a limit looks at, it holds for none of them or by what the others tell: see test_comparable.
    all_tell = not some_hide(eligible) & (QUEUE | KV_USAGE | KV_SIZE | KV_BLOCKS)
    match verdict.outcome:
        case Chosen(node_id, host):
            node = next(node for node in nodes if node.snapshot.node_id == node_id)
            assert node.snapshot.host == host
            assert has_room(node, policy) or not all_tell
            assert node in eligible
            assert verdict.uncached_tokens is not None
            assert 1 <= verdict.uncached_tokens <= max(1, asked.prompt.tokens)
            fitting = [one for one in verdict.candidates if one.excluded is None]
            short = [one for one in verdict.candidates if one.excluded == TOO_FEW_BLOCKS]
            first = fitting[0] if fitting else short[0]
            assert first.node_id == node_id, "the cheapest with room; without any, the cheapest that lacks only blocks"
        case FallBack(members):
            assert members
            for node in members:
                age_s = NOW_S - node.sampled_at_s
                assert age_s >= SETTINGS.nodes.fresh_s
                assert age_s >= SETTINGS.nodes.stale_s or node.snapshot.state is NodeState.READY
                assert may_hold(node, asked)
        case Unknown():
            assert not nodes
        case Refused():
            assert nodes
            assert not all_tell or not any(has_room(node, policy) for node in eligible)


def may_take(node: NodeView, asked: InferenceRequest) -> bool:
    fresh = NOW_S - node.sampled_at_s < SETTINGS.nodes.fresh_s
    return fresh and node.snapshot.state is NodeState.READY and may_hold(node, asked)


def may_hold(node: NodeView, asked: InferenceRequest) -> bool:
    """Whether nothing known speaks against the node's serving the model, and against the request's length."""
    if node.context_lengths is None:
        return True
    if asked.model not in node.context_lengths:
        return False
    length_tokens = node.context_lengths[asked.model]
    surely_tokens = (asked.prompt.tokens if asked.prompt.exact else 0) + (asked.output_tokens_max or 0)
    return length_tokens is None or surely_tokens <= length_tokens


def has_room(node: NodeView, policy: RoutingPolicy) -> bool:
    """By its shares and its queue; too few free blocks refuse nothing."""
    one, own = node.snapshot, node.own
    usage = one.kv_usage
    if usage is not None and one.kv_blocks_total:
        usage = max(0.0, usage + own.kv_blocks_unseen / one.kv_blocks_total)
    waiting = one.requests_waiting and one.requests_waiting + own.requests_unseen
    usage_max = policy.limits.kv_usage_max
    if usage_max is None and policy.strategy == "load-score":
        usage_max = KV_USAGE_MAX_OF_LOAD_SCORE
    return (usage is None or usage_max is None or usage < usage_max) and (
        waiting is None or waiting < policy.limits.requests_waiting_max
    )


def is_well(node: NodeView, known: Known) -> bool:
    return known.out_until_s.get(node.snapshot.node_id, NOW_S) <= NOW_S
