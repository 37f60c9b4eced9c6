"""What an agent tells about a node, and what the router sees of it: values only.

Unknown is `None`, never 0: a node must gain nothing by hiding a signal.
"""

import enum
from collections.abc import Container, Mapping
from dataclasses import dataclass

from msgspec import Struct

# What a snapshot may hold. Agents leave out what is beyond, routers refuse it.
REQUESTS_MAX = 1_000_000
KV_BLOCKS_MAX = 1_000_000_000
KV_BLOCK_SIZE_TOKENS_MAX = 1_000_000
LATENCY_MS_MAX = 3_600_000.0
"""One hour."""
COUNTER_MAX = 2**53
"""What engines count since their start: tokens, requests, seconds."""
ROUND_TRIP_S_MAX = 10.0
ADAPTERS_MAX = 10_000
MODELS_MAX = 256
CONTEXT_LENGTH_TOKENS_MAX = 1_000_000_000
REASON_CHARS_MAX = 300
SNAPSHOTS_TOGETHER_MAX = 16
"""Reports of several nodes that come as one message: each is taken before anything else happens."""
SIGNALS = frozenset(
    {
        "models",
        "gpu_utilization",
        "gpu_memory_usage",
        "kv_usage",
        "kv_block_size_tokens",
        "kv_blocks_total",
        "kv_blocks_available",
        "pending_prefills",
        "active_decodes",
        "requests_running",
        "requests_waiting",
        "prefill_latency_ms",
        "decode_ms_per_token",
        "prefill_tokens_total",
        "prefill_seconds_total",
        "first_tokens_total",
        "prefix_queries_total",
        "prefix_hits_total",
        "adapter_slots_free",
    }
)
"""What may be absent: fields of a snapshot."""


class NodeState(enum.Enum):
    """What the agent says of the node."""

    LOADING = "loading"
    """The engine does not answer, or its model is not ready yet."""
    READY = "ready"
    DRAINING = "draining"
    """Finishes what it has, takes nothing new."""


class Freshness(enum.Enum):
    """How far a snapshot can be trusted, by its age."""

    FRESH = "fresh"
    """The choice rests on it."""
    STALE = "stale"
    """Only its state is trusted: the node takes part in the fallback if it was ready."""
    UNKNOWN = "unknown"
    """Nothing of it is trusted but its state: the node is still a member, and in the fallback if it was ready."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of a node's model list."""

    name: str
    version: str | None = None
    context_length_tokens: int | None = None
    """Prompt and output together."""
    loaded: bool = True
    """False: a LoRA adapter that the node may load but has not."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One report of a node's state."""

    node_id: str
    host: str
    """`ip:port` or `[ip6]:port`: what Envoy takes as a destination."""
    boot_id: str
    """A new value means that the engine or its agent began anew and that sequences start again."""
    sequence: int
    sample_age_s: float
    """Age of the sample when it was sent: clocks of two machines are never compared."""
    state: NodeState
    models: tuple[ServedModel, ...] | None = None
    """`None`: not known; `()`: the engine lists none."""
    gpu_utilization: float | None = None
    """Share 0..1 of the time in which it computed something."""
    gpu_memory_usage: float | None = None
    """Share 0..1 of its memory in use."""
    kv_usage: float | None = None
    """Share 0..1 of the KV cache in use."""
    kv_block_size_tokens: int | None = None
    kv_blocks_total: int | None = None
    kv_blocks_available: int | None = None
    pending_prefills: int | None = None
    """Requests whose first token has not come, queued ones included."""
    active_decodes: int | None = None
    """Requests past their first token."""
    requests_running: int | None = None
    requests_waiting: int | None = None
    prefill_latency_ms: float | None = None
    """Mean of the last interval."""
    decode_ms_per_token: float | None = None
    """Mean of the last interval."""
    prefill_tokens_total: int | None = None
    """Prompt tokens computed, not found in the cache, by requests past their first token; since the engine's start."""
    prefill_seconds_total: float | None = None
    """Σ over these requests of the time from arrival to first token."""
    first_tokens_total: int | None = None
    """How many these requests are."""
    prefix_queries_total: int | None = None
    """Tokens looked up in the engine's prefix cache, since its start."""
    prefix_hits_total: int | None = None
    """Tokens found there."""
    adapter_slots_free: int | None = None
    """LoRA adapters that could be loaded without throwing another out."""
    round_trip_s: float = 0.0
    """Of the agent's stream to us, as it measured it; 0: not measured yet."""
    weight: float = 1.0
    """Share in the fallback's round robin, over 0."""
    not_ready_reason: str | None = None
    """For people: why the state is not READY."""
    absent: tuple[tuple[str, str], ...] = ()
    """Signals that the engine should tell and that cannot be trusted, by the names of the fields above; and why."""


class OwnLoad(Struct, frozen=True):
    """What we sent to a node ourselves, as the ledger has it beside the node's latest sample."""

    sequences_open: int = 0
    """Answers of requests sent and not finished; engines count each of a request's `n` answers."""
    sequences_unseen: int = 0
    """Of these, sent after the sample was taken."""
    requests_unseen: int = 0
    """The unseen requests themselves."""
    sequences_finished: int = 0
    """Answers that the sample shows and that are over."""
    kv_blocks_unseen: int = 0
    """KV blocks of the unseen requests, less those of the finished: may be under 0."""
    prefill_tokens: int = 0
    """Σ uncached prompt tokens of requests whose first token has not come."""
    prefills_of_others: int = 0
    """Pending prefills of the sample that are not ours."""
    work_tokens: float = 0.0
    """Prompt tokens to be computed, others' too, as of `work_since_s`; they shrink at the node's rate since."""
    work_since_s: float = float("inf")
    """`ALWAYS`: all pending prompts count whole until their first token comes."""
    tokens_unstarted: int = 0
    """Σ uncached prompt tokens of open requests of whose first token nobody told, whatever samples say."""
    sent_tokens: float = 0.0
    """Prompt tokens that we sent, as of `sent_since_s`; they shrink at the fleet's rate, whatever samples say."""
    sent_since_s: float = float("-inf")
    """`ALWAYS`: they do not shrink, for first tokens are told."""
    requests_held: int = 0
    """Requests whose stream is open: each has an answer in the making there, whatever the sample says."""
    adapters_sent: frozenset[str] = frozenset()
    """Adapters that it was asked for while it had not loaded them: it may be loading them, or have them by now."""
    adapters_unseen: int = 0
    """Of these, asked for after the sample was taken: each will take a place that the sample calls free."""


ALWAYS = float("inf")
NEVER = float("-inf")
NO_LOAD = OwnLoad()


class Learned(Struct, frozen=True):
    """What the router has learned of a node."""

    prefill_tokens_per_s: float = 8000.0
    prefill_tokens_mean: float = 1000.0
    """Prompt tokens computed for one request."""
    decode_s_per_token: float | None = None
    """Seconds of one decode step; `None`: the node has not told."""
    cache_trust: float = 1.0
    """Share 0..1 of the prefix hits that we expect which the node really has."""
    told_trust: float = 1.0
    """The same of those that the blocks it tells let us expect; 1 unless its own count of hits contradicts them."""

    def trust(self, *, told: bool) -> float:
        """Of what it told, or of what we estimate."""
        return self.told_trust if told else self.cache_trust


class NodeView(Struct, frozen=True):
    """A node as `decide` sees it: its latest snapshot, when that was sampled, our own load on it, what we learned.

    A new value replaces it when any of these changes; a decision never builds one.
    """

    snapshot: Snapshot
    sampled_at_s: float
    """On the router's clock: arrival minus the sample's age minus the way. `NEVER`: it is static."""
    context_lengths: Mapping[str, int | None] | None
    """Served models, each with its context length in tokens (`None`: unknown); `None`: the list is not known."""
    own: OwnLoad = NO_LOAD
    learned: Learned = Learned()
    ready_since_s: float = float("-inf")
    """When it was first called ready after it was not."""
    adapters_unloaded: Container[str] = frozenset()
    """Served models that are adapters which the node has yet to load."""
    in_flight: int = 0
    """Sequences at the node now, pending and decoding: the sample's, brought up to date by the ledger. n of costs."""
    prefill_tokens_pending: float = 0.0
    """Σ uncached prompt tokens of requests there without a first token, others' by their mean."""
    hides: int = 0
    """Which signals the snapshot lacks, see `hidden`."""

    @property
    def is_static(self) -> bool:
        """Whether it stands in the configuration, and no agent has told anything of it."""
        return self.sampled_at_s == NEVER


@dataclass(frozen=True, slots=True)
class NodeReported:
    """An agent pushed a snapshot."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """An agent said goodbye for a node; ignored unless it names the boot that the table knows."""

    node_id: str
    boot_id: str


@dataclass(frozen=True, slots=True)
class KvBlocksTold:
    """An agent told what has changed in a node's prefix cache, by what its engine says."""

    node_id: str
    boot_id: str
    everything: bool
    """The stored ones are all that there is. With none of them: it is not known any more what there is."""
    stored: tuple[int, ...] = ()
    """As `InferenceRequest.token_blocks`."""
    removed: tuple[int, ...] = ()
    """Gone, before `stored` came."""


NodeEvent = NodeReported | NodeLeft | KvBlocksTold


@dataclass(frozen=True, slots=True)
class Applied:
    """The table took the event."""

    displaced: tuple[str, ...] = ()
    """Static nodes that are no members any more, because this is the same node by another id."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """Out of order, repeated, or about a node that the table does not know: harmless."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotAllowed:
    """The table refuses the event: too old, or the table is full."""

    reason: str


Observation = Applied | Ignored | NotAllowed
