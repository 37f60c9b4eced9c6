"""The lines of a journal: the calls that the balancer got, and what it decided.

One JSON object a line, told apart by `call`. A file begins with a `Head`. What many lines would repeat, policies and
lists of models, stands in a line of its own, and others name it by a number; each file has the lines of the numbers
that it uses. There is nothing of a prompt but the hashes of its blocks, and of most tenants no more than a hash
(`journal.tenants`); both are keyed with secrets of the process.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from extproc.core.admission import WAITABLE
from extproc.core.decision import Candidate, Chosen, Decision, Queued, Refused, Unknown
from extproc.core.outcome import Answered
from extproc.core.request import InferenceRequest, Phase
from extproc.core.snapshot import ServedModel, Snapshot
from extproc.journal.lineform import LineForm, unpacked
from extproc.journal.peerlines import Peer

FORMAT: Final = 3
"""Of what is written here. Another one is not read; but all have `call`, `format` and `version` in their first line."""
BEGINNING: Final = b'{"call":"journal"'
"""Of every journal, in whatever format: by this `serve` knows what it may append to."""
LINE_BYTES_MAX: Final = 1024 * 1024
"""No line is longer. Prompts have 4,096 blocks at most, decisions 1,000 candidates; what is over it is not written."""


class Head(LineForm, frozen=True, tag="journal"):
    """What the lines behind it belong to."""

    format: int
    version: str
    """Of extproc."""
    run: str
    """One life of one `serve`."""
    part: int
    """Of the run, from 0: a number that is left out is a file that is gone."""
    begins: bool
    """Whether the run begins here: all that the balancer was told follows."""
    started_at: str
    """For people: when the run began, by the wall clock."""
    started_s: float
    """The same on the balancer's clock."""
    settings: dict[str, Any]
    """The balancer's."""


class Policy(LineForm, frozen=True, tag="policy"):
    """A policy, and the number by which `Routed` names it."""

    number: int
    policy: dict[str, Any]


class Models(LineForm, frozen=True, tag="models"):
    """A node's list of models, and the number by which `Reported` names it."""

    number: int
    models: tuple[ServedModel, ...]


class Lost(LineForm, frozen=True, tag="lost"):
    """Here so many lines could not be written."""

    lines: int


class Reported(LineForm, frozen=True, tag="reported"):
    """`observe` of a snapshot."""

    now_s: float
    snapshot: dict[str, Any]
    """What is known of it, without the models."""
    models: int | None = None


class Left(LineForm, frozen=True, tag="left"):
    """`observe` of a goodbye."""

    now_s: float
    node_id: str
    boot_id: str


class KvBlocks(LineForm, frozen=True, tag="kv_blocks"):
    """`observe` of what a node tells of its cache."""

    now_s: float
    node_id: str
    boot_id: str
    everything: bool = False
    stored: bytes = b""
    """Numbers as `blocks` has them."""
    removed: bytes = b""


class Decided(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What of a decision does not stand in the call already. One of the outcomes is there."""

    strategy: str
    chosen: Chosen | None = None
    refused: Refused | None = None
    unknown: Unknown | None = None
    queued: Queued | None = None
    model: str | None = None
    """What it goes to, where the line does not say it: its fallback model, or any of one who has waited."""
    queued_s: float | None = None
    """How long it has waited."""
    phase: Phase | None = None
    uncached_tokens: int | None = None
    candidates: tuple[Candidate, ...] = ()
    arm: str = ""

    @property
    def node_id(self) -> str | None:
        """The chosen node's."""
        return None if self.chosen is None else self.chosen.node_id


class Routed(LineForm, frozen=True, tag="route"):
    """`route`."""

    now_s: float
    policy: int
    request: InferenceRequest
    """Without its blocks."""
    blocks: bytes = b""
    token_blocks: bytes = b""
    decided: Decided | None = None
    """`None`: it raised, a fault of ours."""


class Rehearsed(LineForm, frozen=True, tag="rehearse"):
    """`rehearse`."""

    now_s: float
    policy: int
    request: InferenceRequest
    """Without its blocks."""
    blocks: bytes = b""
    token_blocks: bytes = b""
    decided: Decided | None = None


class Admitted(LineForm, frozen=True, tag="admit"):
    """One decision of `admit`; nothing is written where it made none."""

    now_s: float
    request_id: str
    decided: Decided
    left: int = 0
    """How many of the same call stand in the lines behind it."""

    @property
    def turned_away(self) -> bool:
        """Whether its time was up. Whoever goes by turn is not refused for what may be otherwise in a while."""
        return self.decided.refused is not None and self.decided.refused.refusal in WAITABLE


class Drained(LineForm, frozen=True, tag="drain"):
    """One decision of `drain`."""

    now_s: float
    request_id: str
    decided: Decided


class Uninspected(LineForm, frozen=True, tag="route_uninspected"):
    """`route_uninspected`."""

    now_s: float
    request_id: str
    trace_id: str
    decided: Decided | None = None
    policy: int | None = None
    subset: tuple[str, ...] | None = None


class Recounted(LineForm, frozen=True, tag="recount"):
    """`recount`."""

    request: InferenceRequest
    blocks: bytes = b""
    token_blocks: bytes = b""


class FirstToken(LineForm, frozen=True, tag="first_token"):
    """`first_token`."""

    now_s: float
    request_id: str


class Served(LineForm, frozen=True, tag="served"):
    """`served`."""

    now_s: float
    request_id: str
    host: str


class StreamLeft(LineForm, frozen=True, tag="leave"):
    """`leave`."""

    now_s: float
    request_id: str


class Finished(LineForm, frozen=True, tag="finish"):
    """`finish`."""

    now_s: float
    request_id: str


class Told(LineForm, frozen=True, tag="answered"):
    """`answered`."""

    now_s: float
    answered: Answered


class Ticked(LineForm, frozen=True, tag="tick"):
    """`tick`."""

    now_s: float


Waited = Admitted | Drained
Deciding = Routed | Rehearsed | Waited | Uninspected
Call = (
    Reported
    | Left
    | KvBlocks
    | Peer
    | Deciding
    | Recounted
    | FirstToken
    | Served
    | StreamLeft
    | Finished
    | Told
    | Ticked
)
Line = Head | Policy | Models | Lost | Call

_SNAPSHOT_FIELDS: Final = tuple(name for name in Snapshot.__dataclass_fields__ if name != "models")
_snapshot_values: Callable[[Snapshot], tuple[Any, ...]] = attrgetter(*_SNAPSHOT_FIELDS)

encode = msgspec.json.Encoder().encode
"""A line without its end. Raises for what JSON cannot hold: halves of surrogate pairs."""
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def decode(raw: bytes) -> Line:
    """A line. Raises `msgspec.DecodeError`, and `RecursionError` for deep nesting."""
    return _decoder.decode(raw)


def known_of(snapshot: Snapshot) -> dict[str, Any]:
    """What `Reported` says of a snapshot."""
    values = zip(_SNAPSHOT_FIELDS, _snapshot_values(snapshot), strict=True)
    return {name: value for name, value in values if value not in (None, ())}


def decided_of(decision: Decision, model_told: str | None = None) -> Decided:
    """What a decision says beyond the call, which tells this model or none."""
    outcome = decision.outcome
    return Decided(
        decision.strategy,
        outcome if isinstance(outcome, Chosen) else None,
        outcome if isinstance(outcome, Refused) else None,
        outcome if isinstance(outcome, Unknown) else None,
        outcome if isinstance(outcome, Queued) else None,
        None if decision.model == model_told else decision.model,
        decision.queued_s or None,
        decision.phase,
        decision.uncached_tokens,
        decision.candidates,
        decision.arm,
    )


def request_of(line: Routed | Rehearsed | Recounted) -> InferenceRequest:
    """Its request, with the blocks. Raises as `unpacked`."""
    return replace(line.request, prompt_blocks=unpacked(line.blocks), token_blocks=unpacked(line.token_blocks))


def as_written(decided: Decided) -> Decided:
    """The same as it comes back: JSON has no infinite costs."""
    return msgspec.json.decode(encode(decided), type=Decided)
