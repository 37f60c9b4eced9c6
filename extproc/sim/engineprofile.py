"""What an engine's steps cost, from a profile file: a mapping of seconds to each term of `StepCost`."""

from pathlib import Path
from typing import Annotated, Final, assert_never

from pydantic import BaseModel, Field, ValidationError

from extproc import yamlfile
from extproc.core.settings import Fault, faults_of
from extproc.settingtypes import SETTINGS
from extproc.sim.steptime import StepCost

DEFAULT: Final = Path(__file__).parent / "engines" / "llama-3.3-70b-fp8-2xh100.yaml"
"""The engine that `StepCost` has by default, with its sources."""

_Seconds = Annotated[float, Field(ge=0, le=1)]


class EngineProfile(BaseModel):
    """All that a profile says; each key is needed. Sources stand in comments."""

    model_config = SETTINGS

    step_s: float = Field(gt=0, le=60)
    """Of every step, whatever it computes."""
    prefill_token_s: _Seconds
    decoding_sequence_s: _Seconds
    kv_token_s: _Seconds
    """For each token of context of the decoding sequences."""
    attention_pair_s: _Seconds
    """For each pair of a prompt's token and one before it."""


def read(path: Path) -> StepCost | list[Fault]:
    """The costs in a profile file, or its faults."""
    match yamlfile.load(path):
        case Fault() as fault:
            return [fault]
        case yamlfile.Document(content):
            pass
        case other:
            assert_never(other)
    try:
        profile = EngineProfile.model_validate(content, strict=True)
    except ValidationError as error:
        return yamlfile.faults_in(path, faults_of(error))
    return StepCost(**profile.model_dump())
