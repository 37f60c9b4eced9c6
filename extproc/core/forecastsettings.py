"""What the forecast can be told: the objective, how much to keep free, and how long a new node takes."""

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ForecastSettings(BaseModel):
    """How many nodes a model needs, and from when."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    ttft_s: float = Field(2.0, ge=0.01, le=3600)
    """The time to first token that nodes are counted for."""
    burst_share: float = Field(0.99, ge=0.5, le=0.999_999)
    """Share of time in which what comes shall fit. 0.99 kept 95 % of the requests and more within `ttft_s`."""
    headroom: float = Field(0.1, ge=0, le=0.9)
    """Share of the nodes' time that is left free at all times."""
    nodes_min: int = Field(1, ge=0, le=100_000)
    """Never fewer, traffic or not. A model without a node is unknown to clients (404), so 0 cannot be left again."""
    window_s: int = Field(512, ge=64, le=4096)
    """How far back arrivals count. Longer is steadier, and slower to give nodes back."""
    cold_start_s: float = Field(60.0, gt=0, le=3600)
    """How long a node is loading before it is ready, for models of which none was seen to start."""
    cold_start_min_s: float = Field(30.0, gt=0, le=3600)
    """No cold start is taken to be shorter, whatever was seen: what the autoscaler takes counts too."""
    cold_start_max_s: float = Field(120.0, gt=0, le=3600)
    """None is taken to be longer: nobody can look so far ahead."""
    models_max: int = Field(64, ge=1, le=1024)
    """Models that are forecast; of more, the one that was asked for the longest ago goes."""

    @model_validator(mode="after")
    def _ordered(self) -> "ForecastSettings":
        if not self.cold_start_min_s <= self.cold_start_s <= self.cold_start_max_s:
            msg = (
                f"cold_start_min_s ({self.cold_start_min_s:g}) <= cold_start_s ({self.cold_start_s:g})"
                f" <= cold_start_max_s ({self.cold_start_max_s:g})"
            )
            raise ValueError(msg)
        return self
