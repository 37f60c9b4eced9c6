"""How a route wants its requests routed, and how a mapping becomes that."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from xxhash import xxh3_64_intdigest

from extproc.core.admissionsettings import ClassName
from extproc.core.aliases import Aliases, FallbackModels, Frozen, target_of
from extproc.core.cost import DEFAULT_STRATEGY, STRATEGIES, LoadScoreWeights
from extproc.core.room import Limits
from extproc.core.settings import Fault, faults_of

HEADER_NAME_CHARS_MAX: Final = 64
CLAIM_CHARS_MAX: Final = 256
"""Of a namespace and a claim's path."""
CLAIM_DEPTH_MAX: Final = 8
"""Names in a claim's path."""
DESTINATIONS_MAX: Final = 16
"""Hosts that Envoy is told of for one request."""
CANARY_SEED: Final = 0x0CA9A97
"""Of its own: which arm a request is in must not go with the model that its alias gives it."""
_HASHES: Final = 2**64
SECRET_HEADERS: Final = frozenset(("authorization", "cookie", "proxy-authorization"))
"""What stands in these must not stand in logs, and a tenant's name does."""


def _shown_header(name: str) -> str:
    name = name.lower()
    if name in SECRET_HEADERS:
        msg = "a header that carries no secret"
        raise ValueError(msg)
    return name


def _mode(mode: object) -> object:
    return "off" if mode is False else mode  # YAML 1.1, which Kubernetes reads, takes the word for that


def _claim(text: str) -> str:
    namespace, _, path = text.partition(":")
    names = path.split(".")
    if not (namespace and all(names) and text.isprintable()) or len(names) > CLAIM_DEPTH_MAX:
        msg = f"namespace:path.to.claim, of at most {CLAIM_DEPTH_MAX} names"
        raise ValueError(msg)
    return text


Destination = Literal["original-dst", "original-dst-metadata", "override-host"]
DESTINATIONS: Final[tuple[Destination, ...]] = get_args(Destination)
PolicyName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
HeaderName = Annotated[
    str,
    Field(min_length=1, max_length=HEADER_NAME_CHARS_MAX, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"),
    AfterValidator(_shown_header),
]
"""A token of RFC 9110, so none of HTTP/2's own, which begin with a colon. In lower case, as Envoy shows headers."""
Claim = Annotated[str, Field(max_length=CLAIM_CHARS_MAX), AfterValidator(_claim)]


class RoutingPolicy(BaseModel):
    """The named set of strategy, weights, limits and names for a route."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: PolicyName = "default"
    mode: Annotated[Literal["enforce", "observe", "off"], BeforeValidator(_mode)] = "enforce"
    """`observe`: requests are decided about and the decisions kept, but Envoy is told nothing; `off`: nothing is
    decided. Either way requests go where Envoy's own route sends them."""
    strategy: str = DEFAULT_STRATEGY
    canary: float = Field(100.0, ge=0, le=100, allow_inf_nan=False)
    """Percent of requests that the strategy chooses a node for, by a hash of their ids. The rest is the control arm:
    weighted round robin over the nodes that could serve them."""
    classify: Literal["expected-time", "prefill-heavy", "decode"] = "expected-time"
    """How a request's phase is found: by comparing the expected seconds of its prompt and of its answer; or which one
    all requests of the route have."""
    destination: Destination = "original-dst"
    """How Envoy is told: the chosen node for a cluster of type `ORIGINAL_DST`, in a header or in dynamic metadata; or a
    list of nodes for a load balancing policy of type `override_host`, as a Gateway API endpoint picker tells it."""
    destinations_max: int = Field(3, ge=1, le=DESTINATIONS_MAX)
    """`override-host`: nodes in that list, the chosen one first and then those that may serve instead."""
    model_header: HeaderName | None = "x-model"
    """The request header that names the model where Envoy does not show the (whole) body. `None`: none does."""
    first_token_weight: float = Field(2.0, ge=0, le=1000, allow_inf_nan=False)
    """`least-added-delay`: what a second that the request waits for its first token counts against a second by which it
    delays others."""
    crowding_weight: float = Field(0.125, ge=0, le=1000, allow_inf_nan=False)
    """`least-added-delay`: what a second of prompt work ahead counts more for each sequence that it holds up."""
    output_token_weight: float = Field(2.0, ge=0, le=1000, allow_inf_nan=False)
    """`least-added-delay`: tokens of prefill that hold up other sequences as much as one token of the answer does."""
    leave_after_first_token: bool = False
    """Where Envoy shows answers piece by piece: whether a stream is left once the first token has been seen, and the
    request's end learned from Envoy's access log. For Envoys with one router each: of several the log tells but one."""
    weights: LoadScoreWeights = LoadScoreWeights()
    """`load-score`'s."""
    limits: Limits = Limits()
    ttft_s: float | None = Field(None, gt=0, le=3600, allow_inf_nan=False)
    """Seconds within which first tokens are wanted: a node whose prompt work ahead of a request takes too much of them
    has no room for it. `None`: no objective, and no such limit."""
    wait_fraction: float = Field(0.25, ge=0, le=10, allow_inf_nan=False)
    """How much of `ttft_s` that work may take."""
    priority: ClassName | None = None
    """The class of the route's requests; `None`: the configuration's `default_class`."""
    priority_header: HeaderName | None = None
    """The request header that may name another class than `priority`; a class that is not known is not heard."""
    tenant_header: HeaderName | None = None
    """The request header that names the tenant."""
    tenant_metadata: Claim | None = None
    """The claim that names the tenant, as `namespace:path.to.claim` in the dynamic metadata that Envoy's filters set:
    `envoy.filters.http.jwt_authn:payload.sub`. A last name with dots of its own may stand at the path's end."""
    aliases: Aliases = Frozen({})
    """Names that clients may ask for, with the models that they get; engines see the model's own name."""
    fallback_models: FallbackModels = Frozen({})
    """Models with the one that serves instead while they are overloaded. They are looked up after aliases, and once: no
    chains."""

    @field_validator("strategy")
    @classmethod
    def _known(cls, strategy: str) -> str:
        if strategy not in STRATEGIES:
            msg = f"one of {', '.join(sorted(STRATEGIES))}"
            raise ValueError(msg)
        return strategy

    @field_validator("tenant_metadata")
    @classmethod
    def _one_tenant(cls, claim: str | None, info: ValidationInfo) -> str | None:
        if claim is not None and info.data.get("tenant_header") is not None:
            msg = "one of tenant_header and tenant_metadata"
            raise ValueError(msg)
        return claim

    @field_validator("fallback_models")
    @classmethod
    def _of_models(cls, fallbacks: Frozen[str], info: ValidationInfo) -> Frozen[str]:
        aliases: Aliases = info.data.get("aliases", Frozen({}))
        for name in (*fallbacks, *fallbacks.values()):
            if name in aliases and name not in aliases[name]:
                msg = f"models, and {name!r:.80} is an alias"
                raise ValueError(msg)
        return fallbacks

    @property
    def others_max(self) -> int:
        """Nodes that are named beside the chosen one, at most."""
        return self.destinations_max - 1 if self.destination == "override-host" else 0

    def arm_of(self, request_id: str) -> Literal["strategy", "control"]:
        """The arm of the canary that a request is in; the same request is always in the same."""
        if self.canary >= 100:
            return "strategy"
        place = xxh3_64_intdigest(request_id.encode(), CANARY_SEED) / _HASHES * 100
        return "strategy" if place < self.canary else "control"

    def model_for(self, asked: str, request_id: str) -> str:
        """The model that a request gets that asks for this one; the same request always gets the same."""
        targets = self.aliases.get(asked)
        return asked if targets is None else target_of(targets, request_id)


def policy_from_mapping(mapping: Mapping[str, Any]) -> RoutingPolicy | list[Fault]:
    """A policy, or every fault of the mapping. Numbers may come as strings: Envoy's YAML makes them so."""
    try:
        return RoutingPolicy.model_validate(mapping)
    except ValidationError as error:
        return faults_of(error)
