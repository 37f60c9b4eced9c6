"""How a route wants its requests routed, and how a mapping becomes that."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from extproc.core.cost import DEFAULT_STRATEGY, STRATEGIES, LoadScoreWeights
from extproc.core.filters import Limits
from extproc.core.settings import Fault, faults_of

PolicyName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class RoutingPolicy(BaseModel):
    """The named set of strategy, weights and limits for a route."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: PolicyName = "default"
    strategy: str = DEFAULT_STRATEGY
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

    @field_validator("strategy")
    @classmethod
    def _known(cls, strategy: str) -> str:
        if strategy not in STRATEGIES:
            msg = f"one of {', '.join(sorted(STRATEGIES))}"
            raise ValueError(msg)
        return strategy


def policy_from_mapping(mapping: Mapping[str, Any]) -> RoutingPolicy | list[Fault]:
    """A policy, or every fault of the mapping. Numbers may come as strings: Envoy's YAML makes them so."""
    try:
        return RoutingPolicy.model_validate(mapping)
    except ValidationError as error:
        return faults_of(error)
