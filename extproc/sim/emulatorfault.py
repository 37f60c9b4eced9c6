"""Faults of an emulated engine, to order: what a router does about a node that fails can then be seen.

    PUT /fault {"kind": "slow", "for_s": 20, "factor": 5}

One at a time, over after `for_s`. `/health` and `/metrics` answer as ever: only who sends requests can notice.
"""

import asyncio
from typing import Annotated, Self, assert_never

from pydantic import BaseModel, Field, ValidationError, model_validator

from extproc.core.settings import Fault, faults_of
from extproc.settingtypes import SETTINGS
from extproc.sim.driver import Driver
from extproc.sim.fleetplan import FailureKind


class EngineFault(BaseModel):
    """One order."""

    model_config = SETTINGS

    kind: Annotated[FailureKind, Field(strict=False)]
    for_s: float = Field(gt=0, le=600)
    """Since the order came."""
    factor: float | None = Field(None, gt=1, le=1000)
    """Of `slow` alone, which needs it."""

    @model_validator(mode="after")
    def _factor_where_slow(self) -> Self:
        if (self.factor is not None) != (self.kind is FailureKind.SLOW):
            msg = "a factor with slow, and none with error and hang"
            raise ValueError(msg)
        return self


def ordered(body: bytes) -> EngineFault | list[Fault]:
    """The order in a JSON body, or every fault of it. Never raises."""
    try:
        return EngineFault.model_validate_json(body)
    except ValidationError as error:
        return faults_of(error)


class Faults:
    """The fault that an engine has now, if any."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._speed = driver.engine.settings.speed
        self._clock = asyncio.get_running_loop().time
        self._kind = FailureKind.ERROR
        self._until_s = float("-inf")

    @property
    def errors(self) -> bool:
        """Whether new requests are answered with an error now."""
        return self._kind is FailureKind.ERROR and self.left_s > 0

    @property
    def left_s(self) -> float:
        """For how much longer the latest fault lasts; 0 if it is over, or there was none."""
        return max(0.0, self._until_s - self._clock())

    def begin(self, fault: EngineFault) -> None:
        """Have this fault from now on; the one before must be over."""
        assert not self.left_s
        self._kind = fault.kind
        self._until_s = self._clock() + fault.for_s
        match fault.kind:
            case FailureKind.ERROR:
                pass
            case FailureKind.HANG:
                self._driver.hold(fault.for_s)
            case FailureKind.SLOW:
                assert fault.factor is not None
                self._driver.set_speed(self._speed / fault.factor)
                asyncio.get_running_loop().call_at(self._until_s, self._driver.set_speed, self._speed)
            case _:
                assert_never(fault.kind)
