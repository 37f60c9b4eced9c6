"""What the balancer can be told: bounds and assumptions, with their units, and how a fault in them reads."""

import re
from dataclasses import dataclass
from math import fsum

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from extproc.core.admissionsettings import Classes, PriorityClass, QuotaList
from extproc.core.exchangesettings import ExchangeSettings
from extproc.core.forecastsettings import ForecastSettings
from extproc.core.staticsettings import StaticNodeList
from extproc.sizes import MIB, Size


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a configuration or policy."""

    path: str
    """Where, as `policies.batch.limits.kv_usage_max`."""
    wanted: str
    got: str
    """What stood there, cut to `GOT_CHARS_MAX` characters."""

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.path or '(top)'}: wanted {self.wanted}, got {self.got}"


RESERVED_SHARE_MAX = 0.9
"""Of a node's room, by all classes together: the lowest must be able to go."""
GOT_CHARS_MAX = 80
"""What a fault repeats of a value or a key."""

UNKNOWN_KEY = "a known key"
"""What is wanted in place of a key that there is not."""
_LOGIN = re.compile(r"(?<=://).*@|[^\s'\"/]+:(?!//)[^\s'\"]*@", re.DOTALL)
_SECRET_KEY = re.compile(r"pass|secret|token|seed|nkey|credential|jwt|api_?key", re.IGNORECASE)
_WANTED = {
    "extra_forbidden": UNKNOWN_KEY,
    "missing": "a value",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
}


def faults_of(error: ValidationError) -> list[Fault]:
    """Every fault in one validation error, in the order of the fields."""
    faults = []
    for one in error.errors(include_url=False):
        if one["type"] == "default_factory_not_called":
            continue  # a default that rests on a field whose own fault is told
        wanted = _WANTED.get(one["type"]) or one["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        got = "nothing" if one["type"] == "missing" else shown(one["input"])
        if wanted == UNKNOWN_KEY and isinstance(one["input"], str) and _SECRET_KEY.search(_key(one["loc"][-1])):
            got = "a text that is not shown"
        faults.append(Fault(".".join(_key(part) for part in one["loc"]), wanted, got))
    return faults


def shown(value: object) -> str:
    """A value as a fault repeats it: without the user and password that a URL may hold."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of over 4300 digits
        return "a number too long to print"
    text = _LOGIN.sub("...@", text)
    return text if len(text) <= GOT_CHARS_MAX else text[: GOT_CHARS_MAX - 3] + "..."


def _key(part: str | int) -> str:
    """A key as it may stand in one line: hostile ones are cut, and escaped."""
    text = str(part)[:GOT_CHARS_MAX]
    return text if text.isprintable() else repr(text)[1:-1]


class NodeLimits(BaseModel):
    """How long a node's word counts, and how many nodes there may be."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    fresh_s: float = Field(5.0, gt=0, le=3600)
    """Younger snapshots are trusted; the choice rests on them."""
    stale_s: float = Field(10.0, gt=0, le=3600)
    """Older snapshots say nothing any more; the node stays a member. Snapshots that arrive older are refused."""
    member_s: float = Field(300.0, gt=0, le=86_400)
    """After this long without a word the node is forgotten."""
    report_interval_s: float = Field(1.0, gt=0, le=60)
    """How often agents report. For two intervals after the start every request continues without a destination."""
    settle_s: float = Field(10.0, ge=0, le=3600)
    """How long agents may take to come back after our start. Until then a model that no known node serves, a context
    that none has, and nodes that are not ready, prove nothing: such requests continue without a destination."""
    slow_start_s: float = Field(10.0, ge=0, le=3600)
    """How long a node that just became ready counts as slower than it is, at first by four: its cache is cold, its rate
    unknown, and it must not draw everybody at once."""
    prune_interval_s: float = Field(2.0, gt=0, le=60)
    nodes_max: int = Field(4096, ge=1, le=100_000)
    """Nodes of agents in the table; the snapshots of further ones are refused. Static nodes stand beside them."""

    @model_validator(mode="after")
    def _ordered(self) -> "NodeLimits":
        if not self.fresh_s <= self.stale_s <= self.member_s:
            msg = f"fresh_s ({self.fresh_s:g}) <= stale_s ({self.stale_s:g}) <= member_s ({self.member_s:g})"
            raise ValueError(msg)
        return self


class ExpectedRates(BaseModel):
    """What a request is assumed to cost where nothing better is known; the nodes' own figures replace it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    prefill_tokens_per_s: float = Field(8000.0, gt=0, le=1e7)
    """The same for every node: only how nodes differ matters to a choice, and that is learned."""
    prefill_tokens: int = Field(1000, ge=1, le=1_000_000)
    """Prompt tokens of a request that others sent."""
    decode_s_per_token: float = Field(0.025, gt=0, le=60)
    output_tokens: int = Field(256, ge=0, le=1_000_000)
    """Expected length of an answer; a request's own limit caps it."""


class PrefixSettings(BaseModel):
    """The index of which node has which beginnings of prompts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    index_bytes_max: Size = Field(256 * MIB, ge=0, le=2**40)
    """Memory for it. 0: no index, every prompt counts whole."""
    node_tokens: int = Field(400_000, ge=0, le=1_000_000_000)
    """Tokens that a node's cache is taken to hold where the node does not tell its KV blocks."""
    kv_index_bytes_max: Size = Field(256 * MIB, ge=0, le=2**40)
    """Memory for the blocks that engines tell of their caches; what a node tells over it is refused."""
    kv_blocks_node_max: int = Field(1_000_000, ge=0, le=100_000_000)
    """Blocks of 16 tokens that one node may tell. 0: none may, and every node's cache is estimated."""


class EjectionSettings(BaseModel):
    """When a node that fails requests is left out, and for how long."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    unreachable_max: int = Field(1, ge=1, le=1000)
    """So many answers 502, 503 or none at all, in a row, and the node is out."""
    errors_max: int = Field(5, ge=1, le=1000)
    """So many other answers of 500 and over, in a row: one may be the request's own fault."""
    first_s: float = Field(5.0, gt=0, le=3600)
    """How long for the first time; each time again doubles it."""
    longest_s: float = Field(60.0, gt=0, le=86_400)
    """No longer than that; a node that was fine for so long begins anew."""
    share_max: float = Field(0.5, ge=0, le=1)
    """Share of the nodes that may be out at once. The last node that could serve a request never is."""

    @model_validator(mode="after")
    def _ordered(self) -> "EjectionSettings":
        if self.first_s > self.longest_s:
            msg = f"first_s ({self.first_s:g}) <= longest_s ({self.longest_s:g})"
            raise ValueError(msg)
        return self


def _usual_classes() -> dict[str, PriorityClass]:
    return {"interactive": PriorityClass(), "standard": PriorityClass(), "batch": PriorityClass(queue_ms_max=30_000)}


class BalancerSettings(BaseModel):
    """All that the balancer can be told."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    nodes: NodeLimits = NodeLimits()
    static_nodes: StaticNodeList = ()
    """Nodes that are known before any agent speaks; see `StaticNode`."""
    rates: ExpectedRates = ExpectedRates()
    prefix: PrefixSettings = PrefixSettings()
    ejection: EjectionSettings = EjectionSettings()
    exchange: ExchangeSettings = ExchangeSettings()
    """What routers tell each other, where they are connected."""
    left_max_s: float = Field(600.0, gt=0, le=86_400)
    """A request whose stream was left before its end, and whose end nobody tells, counts no longer than this."""
    retry_after_s: int = Field(1, ge=1, le=3600)
    """What refused clients are told to wait, at least."""
    retry_after_max_s: int = Field(60, ge=1, le=86_400)
    """The same, at most: between them, as long as it takes until there should be room."""
    classes: Classes = Field(default_factory=_usual_classes, min_length=1, max_length=16)
    """Classes of priority, the highest first, and how long what belongs to them may wait for room."""
    default_class: str = Field("standard", validate_default=True)
    """The class of requests that are given none."""
    quotas: QuotaList = Field((), max_length=1000)
    """What tenants may use of models; see `Quota`."""
    forecast: ForecastSettings = ForecastSettings()
    quota_buckets_max: int = Field(10_000, ge=1, le=1_000_000)
    """Tenants, each with each model, whose use is remembered at a time."""
    decisions_kept_max: int = Field(200, ge=0, le=100_000)
    """Latest decisions kept for /decisions."""
    candidates_kept_max: int = Field(16, ge=1, le=1000)
    """Best candidates kept of each decision."""

    @field_validator("classes")
    @classmethod
    def _leave_something(cls, classes: dict[str, PriorityClass]) -> dict[str, PriorityClass]:
        reserved = fsum(one.reserved_share for one in classes.values())
        if reserved > RESERVED_SHARE_MAX:
            msg = f"reserved_share of all classes together at most {RESERVED_SHARE_MAX:g}, not {reserved:g}"
            raise ValueError(msg)
        return classes

    @field_validator("default_class")
    @classmethod
    def _one_of_the_classes(cls, name: str, info: ValidationInfo) -> str:
        classes: dict[str, PriorityClass] = info.data.get("classes", {name: None})
        if name not in classes:
            msg = f"one of {', '.join(classes)}"
            raise ValueError(msg)
        return name

    @model_validator(mode="after")
    def _retries_ordered(self) -> "BalancerSettings":
        if self.retry_after_s > self.retry_after_max_s:
            msg = f"retry_after_s ({self.retry_after_s}) <= retry_after_max_s ({self.retry_after_max_s})"
            raise ValueError(msg)
        return self
