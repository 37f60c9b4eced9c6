"""Whatever a node hides, it is not chosen for it: for every strategy, and every set of signals that it may hide.

Exactly, where costs rest on what the router knows itself, or on the worst of those that tell: hiding such a signal
never makes a node be chosen that was not. Where a comparison is left out for all it can only be as good as a node that
is like it and tells: that one is never passed over for it.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from extproc.core.cost import STRATEGIES
from extproc.core.decision import Candidate, Chosen
from extproc.core.nodeshare import Pending
from extproc.core.peerload import PeerLoad, Said, sum_of, with_peers
from extproc.core.peershares import NodeShare
from extproc.core.policy import RoutingPolicy
from extproc.core.room import Limits
from extproc.core.router import Known, Verdict, decide
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import ALWAYS, SIGNALS, Learned, NodeView, OwnLoad, ServedModel
from tests.core.fleet import MODEL, NOW_S, request, view

SETTINGS = BalancerSettings(candidates_kept_max=64)
OURS = st.sampled_from(sorted(SIGNALS))
WHOLE = {"kv_block_size_tokens": 16, "kv_blocks_total": 1000}


OF_OTHERS = [
    sum_of([Said(1, NOW_S - 0.1, NodeShare("", NOW_S - its_sample_s_ago, *numbers))], NOW_S - 0.3)
    for its_sample_s_ago, numbers in (
        (0.1, (3, 4, 2, 2, 1, 30, 2, 1, 500, 900, 1400, 1200)),
        (0.5, (9, 9, 6, 6, 4, -20, 3, 3, 2000, 3000, 6000, 100)),
        (0.5, (0, 0, 0, 0, 5, -20, 2, 0, 0, 0, 0, 0)),
    )
]
"""What other routers have at a node, beside a sample of 0.3 s ago."""


def with_others(own: OwnLoad, pending: int, theirs: PeerLoad | None) -> OwnLoad:
    """The same together with that, at a node that tells all."""
    claimed = pending - own.prefills_of_others
    ours = Pending(pending, claimed, claimed, min(own.prefill_tokens, claimed * 100))
    return own if theirs is None else with_peers(own, ours, theirs, Learned(800.0, 100.0), 8000.0)


@st.composite
def truths(draw: st.DrawFn) -> tuple[dict[str, Any], OwnLoad, Learned]:
    """A node as it is: what it tells, what we have there, what we learned."""
    running, waiting = draw(st.integers(0, 30)), draw(st.sampled_from([0, 0, 3, 99, 100, 120]))
    tells_firsts = draw(st.booleans())
    pending = draw(st.integers(0, running + waiting))
    open_ = draw(st.integers(0, 20))
    told = {
        "requests_running": running,
        "requests_waiting": waiting,
        "pending_prefills": pending,
        "active_decodes": running + waiting - pending,
        "kv_usage": draw(st.sampled_from([0.0, 0.3, 0.89, 0.9, 1.0])),
        "kv_blocks_available": draw(st.sampled_from([0, 5, 900])),
        "gpu_utilization": draw(st.sampled_from([0.1, 0.9, 1.0])),
        "gpu_memory_usage": 0.5,
        "prefill_latency_ms": 20.0,
        "decode_ms_per_token": 20.0,
        "prefill_tokens_total": 10**6,
        "prefill_seconds_total": 1000.0,
        "first_tokens_total": 1000,
        "prefix_queries_total": 10**6,
        "prefix_hits_total": 10**5,
        "adapter_slots_free": draw(st.integers(0, 2)),
        "models": draw(
            st.sampled_from(
                [
                    (ServedModel(MODEL, context_length_tokens=8192),),
                    (ServedModel(MODEL, context_length_tokens=8192, loaded=False),),
                    (ServedModel(MODEL, context_length_tokens=600),),
                    (ServedModel("other"),),
                ]
            )
        ),
        **WHOLE,
    }
    unstarted = draw(st.integers(0, 5000))
    own = OwnLoad(
        sequences_open=open_,
        requests_held=open_,
        sequences_unseen=draw(st.integers(0, open_)),
        requests_unseen=draw(st.integers(0, open_)),
        kv_blocks_unseen=draw(st.integers(-20, 120)),
        prefill_tokens=unstarted // 2,
        prefills_of_others=draw(st.integers(0, pending)),
        work_tokens=float(unstarted),
        work_since_s=ALWAYS if tells_firsts else NOW_S - draw(st.sampled_from([0.0, 0.2, 5.0])),
        tokens_unstarted=unstarted,
        sent_tokens=float(draw(st.integers(0, 9000))),
        sent_since_s=ALWAYS if tells_firsts else NOW_S - draw(st.sampled_from([0.0, 0.2, 5.0])),
    )
    own = with_others(own, pending, draw(st.sampled_from([None, None, None, *OF_OTHERS])))
    rate, trust = draw(st.sampled_from([800.0, 8000.0, 20_000.0])), draw(st.sampled_from([0.02, 0.4, 1.0]))
    return told, own, Learned(rate, draw(st.sampled_from([100.0, 3000.0])), 0.02, trust)


TRUTHS = truths()
ASKED = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(sorted(STRATEGIES)),
        "request_id": st.text("abc123", min_size=1, max_size=5),
        "tokens": st.sampled_from([1, 100, 1000]),
        "cached": st.sampled_from([0, 96]),
        "required": st.booleans(),
    }
)


def node(name: str, truth: tuple[dict[str, Any], OwnLoad, Learned], hiding: frozenset[str] = frozenset()) -> NodeView:
    told, own, learned = truth
    return view(name, own, learned=learned, **(told | dict.fromkeys(hiding)))


def verdict_of(nodes: Sequence[NodeView], asked: dict[str, Any]) -> Verdict:
    limits = Limits(kv_blocks_required=asked["required"])
    policy = RoutingPolicy(strategy=asked["strategy"], limits=limits)
    cached = {one.snapshot.node_id: asked["cached"] for one in nodes} if asked["cached"] else {}
    return decide(
        request(asked["request_id"], asked["tokens"]), nodes, policy, SETTINGS, Known(cached_tokens=cached), NOW_S
    )


def chosen_of(verdict: Verdict) -> str | None:
    return verdict.outcome.node_id if isinstance(verdict.outcome, Chosen) else None


def candidate(verdict: Verdict, name: str) -> Candidate | None:
    return next((one for one in verdict.candidates if one.node_id == name), None)


@given(TRUTHS, st.lists(TRUTHS, max_size=3), st.frozensets(OURS, min_size=1), ASKED)
def test_who_hides_is_never_preferred_to_one_that_is_like_it_and_tells(
    truth: tuple[dict[str, Any], OwnLoad, Learned],
    others: list[tuple[dict[str, Any], OwnLoad, Learned]],
    hiding: frozenset[str],
    asked: dict[str, Any],
) -> None:
    """Chosen is it only where the other costs as much, and is as free: by the same throw as between equals."""
    rest = [node(f"o{place}", other) for place, other in enumerate(others)]
    verdict = verdict_of([node("hides", truth, hiding), node("tells", truth), *rest], asked)
    if chosen_of(verdict) == "hides":
        like, own = candidate(verdict, "tells"), candidate(verdict, "hides")
        assert own is not None
        if like is None:  # it tells that it cannot serve this one: so nobody else can
            assert "models" in hiding
            assert all(one.excluded for one in verdict.candidates if one is not own)
            return
        assert like.excluded in (None, own.excluded)
        if asked["strategy"] not in TURNS:
            assert like.cost == own.cost


@given(TRUTHS, st.lists(TRUTHS, min_size=1, max_size=3), st.frozensets(OURS, min_size=1), ASKED)
def test_no_order_of_nodes_and_no_throw_matters_to_that(
    truth: tuple[dict[str, Any], OwnLoad, Learned],
    others: list[tuple[dict[str, Any], OwnLoad, Learned]],
    hiding: frozenset[str],
    asked: dict[str, Any],
) -> None:
    """The costs themselves: those of the one that hides are not under those of the one that tells."""
    nodes = [node("hides", truth, hiding), node("tells", truth), *(node(f"o{n}", one) for n, one in enumerate(others))]
    verdict = verdict_of(nodes, asked | {"strategy": "least-added-delay"})
    own, like = candidate(verdict, "hides"), candidate(verdict, "tells")
    if own is not None and like is not None:
        assert own.cost is not None
        assert like.cost is not None
        assert own.cost >= like.cost


TURNS = ("random", "round-robin", "power-of-two")
"""Strategies that ask first whose turn it is."""
EXACT = {
    "least-added-delay": SIGNALS - {"requests_running", "requests_waiting", "pending_prefills", "models"},
    "lmetric": SIGNALS - {"requests_running", "requests_waiting", "pending_prefills", "models"},
    "least-inflight": SIGNALS - {"requests_running", "requests_waiting", "models"},
    "power-of-two": SIGNALS - {"requests_running", "requests_waiting", "models"},
    "round-robin": SIGNALS - {"models"},
    "random": SIGNALS - {"models"},
    "load-score": SIGNALS
    - {"kv_usage", "kv_blocks_total", "kv_block_size_tokens", "requests_waiting", "pending_prefills", "models"}
    - {"gpu_utilization"},
}
"""What may be hidden without any gain, by strategy, as long as no limit is at stake."""
LIMITED = frozenset({"requests_waiting", "kv_usage", "kv_blocks_available", "kv_blocks_total", "kv_block_size_tokens"})


def roomy(truth: tuple[dict[str, Any], OwnLoad, Learned]) -> tuple[dict[str, Any], OwnLoad, Learned]:
    """The same node far from every limit, with the model."""
    told, own, learned = truth
    far = {"requests_waiting": told["requests_waiting"] % 50, "kv_usage": 0.3, "kv_blocks_available": 900}
    far |= {"pending_prefills": min(told["pending_prefills"], told["requests_running"])}
    models = (ServedModel(MODEL, context_length_tokens=8192, loaded=told["models"][0].loaded),)
    return told | far | {"models": models}, structs.replace(own, kv_blocks_unseen=0), learned


@given(TRUTHS, st.lists(TRUTHS, min_size=1, max_size=4), st.frozensets(OURS, min_size=1), ASKED)
def test_who_was_not_chosen_is_not_chosen_for_hiding_what_costs_compare_by_the_worst(
    truth: tuple[dict[str, Any], OwnLoad, Learned],
    others: list[tuple[dict[str, Any], OwnLoad, Learned]],
    hiding: frozenset[str],
    asked: dict[str, Any],
) -> None:
    rest = [node(f"o{place}", roomy(other)) for place, other in enumerate(others)]
    exactly = hiding & EXACT[asked["strategy"]]
    told = chosen_of(verdict_of([node("a", roomy(truth)), *rest], asked))
    hides = chosen_of(verdict_of([node("a", roomy(truth), exactly), *rest], asked))
    assert hides == told or hides != "a"


@given(TRUTHS, st.lists(TRUTHS, min_size=1, max_size=4), ASKED)
def test_who_hides_what_it_serves_comes_after_those_who_tell_that_they_serve_it(
    truth: tuple[dict[str, Any], OwnLoad, Learned],
    others: list[tuple[dict[str, Any], OwnLoad, Learned]],
    asked: dict[str, Any],
) -> None:
    """As long as one of them has room, and some are known not to serve it."""
    rest = [node(f"o{place}", roomy(other)) for place, other in enumerate(others)]
    elsewhere = node("z", ({**roomy(truth)[0], "models": (ServedModel("other"),)}, *truth[1:]))
    verdict = verdict_of([node("a", roomy(truth), frozenset({"models"})), elsewhere, *rest], asked)
    assert chosen_of(verdict) not in ("a", None)
    too_short = node("z", ({**roomy(truth)[0], "models": (ServedModel(MODEL, context_length_tokens=1),)}, *truth[1:]))
    unknown = ({**roomy(truth)[0], "models": (ServedModel(MODEL),)}, *truth[1:])
    verdict = verdict_of([node("a", unknown), too_short, *rest], asked | {"tokens": 100})
    assert chosen_of(verdict) not in ("a", None)
    assert chosen_of(verdict_of([node("a", roomy(truth), frozenset({"models"})), elsewhere], asked)) == "a"
