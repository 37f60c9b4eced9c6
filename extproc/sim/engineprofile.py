"""What an engine's steps cost, from a profile file: a mapping of seconds to each term of `StepCost`."""

import re
from pathlib import Path
from typing import Annotated, Final, assert_never

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from extproc import yamlfile
from extproc.core.settings import Fault, faults_of
from extproc.settingtypes import SETTINGS
from extproc.sim.steptime import StepCost

DEFAULT: Final = Path(__file__).parent / "engines" / "llama-3.3-70b-fp8-2xh100.yaml"
"""The engine that `StepCost` has by default, with its sources."""

_SCIENTIFIC: Final = re.compile(r"[0-9]{1,20}(?:\.[0-9]{0,20})?[eE][-+]?[0-9]{1,3}")


def _number(value: object) -> object:
    """`1e-9`: YAML 1.1 calls it a text, for want of a dot and of the exponent's sign; JSON and YAML 1.2 a number."""
    return float(value) if isinstance(value, str) and _SCIENTIFIC.fullmatch(value) else value


_Number = Annotated[float, BeforeValidator(_number)]
_Seconds = Annotated[_Number, Field(ge=0, le=1)]


class EngineProfile(BaseModel):
    """All that a profile says; each key is needed. Sources stand in comments."""

    model_config = SETTINGS

    step_s: _Number = Field(gt=0, le=60)
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
