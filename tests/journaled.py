"""Random lives of a balancer, and journals of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from extproc.config import Config, JournalSettings
from extproc.core.admissionsettings import PriorityClass, Quota
from extproc.core.aliases import Frozen
from extproc.core.balancer import Balancer
from extproc.core.cost import STRATEGIES
from extproc.core.decision import Decision
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest, TokenCount
from extproc.core.room import Limits
from extproc.core.settings import EjectionSettings, PrefixSettings
from extproc.core.snapshot import KvBlocksTold, NodeLeft, NodeReported, NodeState, ServedModel
from extproc.core.staticsettings import StaticModel, StaticNode
from extproc.journal.balancer import JournaledBalancer, balancer, close
from tests.core.fleet import MODEL, request, snapshot
from tests.peerlives import PEER_CALLS, PEER_NAMES, hear

START_S = 5000.0
NODES = "abc"
MODEL_LISTS = (
    (ServedModel(MODEL, context_length_tokens=8192),),
    (ServedModel(MODEL), ServedModel("adapter", loaded=False)),
    (),
    None,
)
POLICIES = [
    *(RoutingPolicy(name=name, strategy=name) for name in STRATEGIES),
    RoutingPolicy(name="small", limits=Limits(requests_waiting_max=1, kv_blocks_required=True)),
    RoutingPolicy(
        name="small-or-other", limits=Limits(requests_waiting_max=1), fallback_models=Frozen({MODEL: "adapter"})
    ),
    RoutingPolicy(name="soon", ttft_s=0.1),
    RoutingPolicy(name="half", canary=50, classify="prefill-heavy"),
    RoutingPolicy(name="listed", destination="override-host", destinations_max=2, canary=80),
]
CLASSES = {
    "high": PriorityClass(queue_ms_max=5000, reserved_share=0.2),
    "standard": PriorityClass(queue_ms_max=1000, queue_requests_max=4, queue_bytes_max=2000),
    "at-once": PriorityClass(),
    "low": PriorityClass(queue_ms_max=600_000),
}
"""In an order that is not the alphabet's."""
TEXTS = st.sampled_from(["", "x", "é\n\x1b", '"\\'])
SUBSETS = st.sampled_from(
    [*[None] * 8, (), (snapshot("a").host,), (snapshot("b").host.partition(":")[0], snapshot("c").host), ("10.9.9.9",)]
)
QUOTAS = (
    Quota(tenant="alice", tokens_per_minute=30_000),
    Quota(tenant="", model=MODEL, request_tokens_max=5000),
    Quota(tokens_per_minute=100_000, concurrent_tokens=20_000),
)

Call = tuple[str, dict[str, Any]]


def _call(name: str, **arguments: SearchStrategy[Any]) -> SearchStrategy[Call]:
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


def _counts(most: int) -> SearchStrategy[int | None]:
    return st.none() | st.integers(0, most)


_REPORT = _call(
    "report",
    node=st.sampled_from(NODES),
    boot_id=st.sampled_from(["boot-1", "boot-1", "boot-1", "boot-2"]),
    sample_age_s=st.sampled_from([0.0, 0.1, 3.0, 11.0]),
    state=st.sampled_from([NodeState.READY, NodeState.READY, NodeState.READY, NodeState.LOADING, NodeState.DRAINING]),
    models=st.sampled_from(MODEL_LISTS),
    kv_usage=st.none() | st.floats(0, 1),
    kv_blocks_total=st.sampled_from([10, 1000, 1000]),
    pending_prefills=_counts(3),
    requests_running=st.sampled_from([None, 0, 0, 5]),
    requests_waiting=st.sampled_from([None, 0, 3, 100]),
    decode_ms_per_token=st.none() | st.floats(0, 100),
    prefill_tokens_total=_counts(100_000),
    prefill_seconds_total=st.floats(0, 100),
    first_tokens_total=_counts(100),
    prefix_hits_total=_counts(100_000),
    adapter_slots_free=_counts(1),
    round_trip_s=st.floats(0, 0.5),
    weight=st.floats(0.1, 3),
)
_ROUTE = _call(
    "route",
    tokens=st.integers(0, 9000),
    chain=st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 3)),
    policy=st.sampled_from(POLICIES),
    model=st.sampled_from([MODEL, MODEL, MODEL, MODEL, "adapter", "nobody's"]),
    exact=st.booleans(),
    sequences=st.integers(1, 3),
    output_tokens_max=st.sampled_from([None, 0, 100]),
    trace_id=TEXTS,
    priority=st.sampled_from(["", *CLASSES, "nobody's"]),
    tenant=st.sampled_from(["", "alice", "bob", "carol"]),
    body_bytes=st.integers(0, 1500),
    model_fixed=st.booleans(),
    subset=SUBSETS,
    rehearsed=st.sampled_from([False, False, False, False, True]),
)
_ADMIT = _call("admit", calls=st.sampled_from([1, 1, 2]))
_WAIT = _call("wait", seconds=st.sampled_from([0.01, 0.3, 1.5, 7.0, 700.0]))
_WHICH = st.integers(0, 8)
_CHAINS = st.builds(
    lambda chain, places: tuple(2**64 - 1 - chain * 1000 - place for place in places),
    st.integers(0, 2),
    st.sampled_from([range(0), range(20), range(3, 5), range(40)]),
)
_REST = st.one_of(
    _call("uninspected", trace_id=TEXTS, policy=st.none() | st.sampled_from(POLICIES), subset=SUBSETS),
    _call("served", which=_WHICH, host=st.sampled_from([*(snapshot(name).host for name in NODES), "10.9.9.9:1"])),
    _call(
        "kv_blocks",
        node_id=st.sampled_from(NODES),
        boot_id=st.sampled_from(["boot-1", "boot-1", "boot-1", "boot-2"]),
        everything=st.booleans(),
        stored=_CHAINS,
        removed=_CHAINS,
    ),
    _call("recount", which=_WHICH, tokens=st.integers(0, 9000)),
    _call("first_token", which=_WHICH),
    _call("leave", which=_WHICH),
    _call("finish", which=_WHICH),
    _call(
        "answered",
        which=_WHICH,
        ending=st.sampled_from(Ending),
        host=st.sampled_from([None, snapshot("a").host, snapshot("b").host, "10.9.9.9:1"]),
        model=st.sampled_from([None, MODEL]),
        output_tokens=_counts(500),
        over=st.booleans(),
        used_tokens=_counts(20_000),
    ),
    PEER_CALLS,
    _call("left", node=st.sampled_from(NODES), boot_id=st.sampled_from(["boot-1", "boot-2"])),
    _call("tick"),
    _call("settle"),
    _call("drain"),
    _WAIT,
)
FLEET: list[Call] = [("report", {"node": node_id}) for node_id in NODES]
"""All nodes are ready."""
FULL: list[Call] = [("report", {"node": node_id, "requests_waiting": 100}) for node_id in NODES]
"""None has room."""
OTHER_FREE: list[Call] = [
    *FULL[:2],
    ("report", {"node": NODES[2], "models": (ServedModel("adapter"),), "adapter_slots_free": 1}),
]
"""Only the fallback model has room."""
_SCENES = st.one_of(
    st.lists(_REPORT | _ROUTE | _ROUTE | _ADMIT | _REST, min_size=1, max_size=6),
    st.sampled_from([FLEET, FULL, FULL[:2], OTHER_FREE]),
    st.tuples(*[_REPORT] * 3).map(list),
    st.lists(_ROUTE, min_size=2, max_size=5).map(lambda routes: [*FULL, *routes]),
    _ADMIT.map(lambda call: [*FLEET, call]),
    st.tuples(_WAIT, _ADMIT).map(list),
)
LIVES = st.lists(_SCENES, min_size=1, max_size=10).map(lambda scenes: [call for scene in scenes for call in scene])
"""What may happen to a balancer; often enough its nodes are there, or full."""


def live(one: Balancer, life: Iterable[Call], name: str = "r") -> list[Decision]:
    """Make these calls, at times that begin after the start; all decisions. Request ids are the name and a number."""
    now_s = START_S + 60
    decisions: list[Decision] = []
    sent: list[InferenceRequest] = []
    for number, (call, values) in enumerate(life):
        arguments = dict(values)
        now_s += 0.005
        which = f"{name}{len(sent) - arguments.pop('which', 0)}"
        match call:
            case "report":
                node_id = arguments.pop("node")
                one.observe(NodeReported(snapshot(node_id, sequence=number + 1, **arguments)), now_s)
            case "left":
                one.observe(NodeLeft(arguments["node"], arguments["boot_id"]), now_s)
            case "route":
                policy, (chain, shared, own) = arguments.pop("policy"), arguments.pop("chain")
                # Three families of prompts with a beginning in common; hashes have 64 bits.
                blocks = [2**64 - 1 - chain * 1000 - place for place in range(shared)] + [
                    number * 1000 + place for place in range(own)
                ]
                decide = one.rehearse if arguments.pop("rehearsed", False) else one.route
                arguments |= dict.fromkeys(("prompt_blocks", "token_blocks"), tuple(blocks))
                sent.append(request(f"{name}{len(sent) + 1}", **arguments))
                decisions.append(decide(sent[-1], policy, now_s))
            case "kv_blocks":
                one.observe(KvBlocksTold(**arguments), now_s)
            case _ if call in PEER_NAMES:
                hear(one, call, arguments, now_s)
            case "served":
                one.served(which, arguments["host"], now_s)
            case "uninspected":
                decisions.append(one.route_uninspected(f"u{number}", now_s=now_s, **arguments))
            case "admit":
                for _ in range(arguments["calls"]):
                    decisions += one.admit(now_s)
            case "drain":
                decisions += one.drain(now_s)
            case "recount":
                known = next((asked for asked in sent if asked.request_id == which), None)
                if known is not None:
                    one.recount(replace(known, prompt=TokenCount(arguments["tokens"], exact=True)))
            case "first_token" | "leave" | "finish":
                getattr(one, call)(which, now_s)
            case "answered":
                one.answered(Answered(which, **arguments), now_s)
            case "tick":
                one.tick(now_s)
            case "settle":
                one.settle()
            case "wait":
                now_s += arguments["seconds"]
            case _:
                raise AssertionError(call)
    return decisions


def routes(count: int, **changes: Any) -> list[Call]:
    """So many requests alike, each over before the next but two."""
    route = {"tokens": 500, "chain": (0, 5, 1), "policy": RoutingPolicy()} | changes
    return [call for _ in range(count) for call in (("route", route), ("finish", {"which": 2}))]


def asks(count: int, **changes: Any) -> list[Call]:
    """So many requests that stay, of a class that may wait for long."""
    route = {"tokens": 500, "chain": (0, 5, 1), "policy": RoutingPolicy(), "priority": "low"} | changes
    return [("route", route)] * count


def config(path: Path | None, **journal: Any) -> Config:
    """Small limits, so that they are met."""
    settings = JournalSettings.model_construct(path=path, **({"file_bytes_max": 2**26, "files_max": 4} | journal))
    return Config.model_construct(
        journal=settings,
        static_nodes=(StaticNode(host=snapshot("a").host, node_id="z", models=(StaticModel(name=MODEL),)),),
        prefix=PrefixSettings(index_bytes_max=256 * 100, node_tokens=64 * 60, kv_blocks_node_max=50),
        ejection=EjectionSettings(share_max=1),
        candidates_kept_max=2,
        classes=CLASSES,
        quotas=QUOTAS,
        quota_buckets_max=3,
    )


def no_fault() -> None:
    raise AssertionError("the journal could not be written")


def journaled(path: Path, **journal: Any) -> JournaledBalancer:
    one = balancer(config(path, **journal), START_S, no_fault)
    assert isinstance(one, JournaledBalancer), one
    return one


def write(path: Path, life: Iterable[Call], **journal: Any) -> list[Decision]:
    """A journal of one life; its decisions."""
    one = journaled(path, **journal)
    decisions = live(one, life)
    close(one)
    return decisions
