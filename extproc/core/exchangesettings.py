"""How routers of a fleet tell each other what they sent."""

from pydantic import BaseModel, ConfigDict, Field, model_validator

from extproc.sizes import KIB, MIB, Size


class ExchangeSettings(BaseModel):
    """What is told, how often, and how long others' word counts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    interval_s: float = Field(0.5, ge=0.05, le=10)
    """How often a router tells all that it has at the nodes; of large changes it tells at once."""
    silence_s: float = Field(3.0, gt=0, le=60)
    """What another router told counts no longer than this: then it is gone, or cannot reach us."""
    peers_max: int = Field(64, ge=1, le=1000)
    """Other routers whose word is kept; further ones are not heard."""
    placements: bool = True
    """Whether routers tell each other which prompts they sent where, as chains of hashes."""
    placement_bytes_per_s: Size = Field(256 * KIB, ge=KIB, le=1024 * MIB)
    """Of those, so much each router tells; where there is more the newest are told."""

    @model_validator(mode="after")
    def _outlives_a_word(self) -> "ExchangeSettings":
        if self.silence_s < 2 * self.interval_s:
            msg = f"silence_s ({self.silence_s:g}) at least twice interval_s ({self.interval_s:g})"
            raise ValueError(msg)
        return self
