"""What an agent tells about a node, and what the router sees of it: values only.

Unknown is `None`, never 0: a node must gain nothing by hiding a signal.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct

# What a snapshot may hold. Agents leave out what is beyond, routers refuse it.
REQUESTS_MAX = 1_000_000
KV_BLOCKS_MAX = 1_000_000_000
KV_BLOCK_SIZE_TOKENS_MAX = 1_000_000
LATENCY_MS_MAX = 3_600_000.0
"""One hour."""
MODELS_MAX = 256
CONTEXT_LENGTH_TOKENS_MAX = 1_000_000_000
REASON_CHARS_MAX = 300


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
    """Nothing of it is trusted; the node is still a member and takes part in the fallback."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of a node's model list."""

    name: str
    version: str | None = None
    context_length_tokens: int | None = None
    """Prompt and output together."""


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
    """Share 0..1."""
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
    weight: float = 1.0
    """Share in the fallback's round robin, over 0."""
    not_ready_reason: str | None = None
    """For people: why the state is not READY."""


class OwnLoad(Struct, frozen=True):
    """What we sent to a node ourselves: the part that no snapshot shows yet, and all that is open."""

    sequences_open: int = 0
    """Answers of requests sent and not finished; engines count each of a request's `n` answers."""
    sequences_unseen: int = 0
    """Of these, sent after the node's latest sample was taken."""
    kv_blocks_unseen: int = 0
    """KV blocks that the unseen requests will take."""
    requests_unseen: int = 0
    """The unseen requests themselves."""


NO_LOAD = OwnLoad()


class NodeView(Struct, frozen=True):
    """A node as `decide` sees it: its latest snapshot, when that was sampled, and our own load on it.

    A new value replaces it when a snapshot or the ledger changes; a decision never builds one.
    """

    snapshot: Snapshot
    sampled_at_s: float
    """On the router's clock: arrival minus the sample's age."""
    context_lengths: Mapping[str, int | None] | None
    """Served models, each with its context length in tokens (`None`: unknown); `None`: the list is not known."""
    own: OwnLoad = NO_LOAD


@dataclass(frozen=True, slots=True)
class NodeReported:
    """An agent pushed a snapshot."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """An agent said goodbye for a node; ignored unless it names the boot that the table knows."""

    node_id: str
    boot_id: str


NodeEvent = NodeReported | NodeLeft


@dataclass(frozen=True, slots=True)
class Applied:
    """The table took the event."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """Out of order, repeated, or about a node that the table does not know: harmless."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotAllowed:
    """The table refuses the event: too old, or the table is full."""

    reason: str


Observation = Applied | Ignored | NotAllowed
