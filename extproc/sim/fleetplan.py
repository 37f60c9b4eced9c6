"""Which nodes a simulation has, and what happens to them: from a file, a name or a number.

A fleet file is YAML or JSON; every key of a node can be left out:

    nodes:
      - {name: old, count: 2, speed: 0.33, kv_blocks: 12500}
      - count: 6
        faults: [{kind: slow, at_s: 60, for_s: 20, factor: 5}]
      - {joins_at_s: 300, ready_after_s: 40}

This only describes: the simulation carries it out.
"""

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Self, assert_never

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from extproc import yamlfile
from extproc.core.settings import GOT_CHARS_MAX, Fault, faults_of
from extproc.settingtypes import SETTINGS
from extproc.sim.enginesettings import EngineSettings
from extproc.sim.kv import BLOCK_SIZE_TOKENS

NODES_MAX: Final = 1024
KV_BLOCKS_TOTAL_MAX: Final = 32_000_000
"""Of all nodes together, since the simulation holds each block: `NODES_MAX` nodes of the default size and more."""
CONTEXT_TOKENS_MAX: Final = 131_072
"""Of the default model; less where a node's blocks hold less."""
TIME_S_MAX: Final = 1_000_000.0
NODES_DEFAULT: Final = 8

_STRICT: Final = ConfigDict(strict=True, **SETTINGS)
"""Numbers are numbers, not texts or booleans."""
_Time = Annotated[float, Field(ge=0, le=TIME_S_MAX)]
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FAILURES_MAX: Final = 100


def _name(name: object) -> object:
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        msg = "a name of 1 to 64 letters, digits, dots, dashes and underscores that begins with a letter or digit"
        raise ValueError(msg)
    return name


def _list(what: str, most: int) -> BeforeValidator:
    def checked(value: object) -> object:
        if not isinstance(value, list | tuple):
            msg = f"a list of {what}"
            raise ValueError(msg)
        if len(value) > most:
            msg = f"at most {most} {what}"
            raise ValueError(msg)
        return value

    return BeforeValidator(checked)


class FailureKind(enum.Enum):
    """How a node fails."""

    ERROR = "error"
    """It answers every new request with a status over 500 at once; what it already serves goes on."""
    HANG = "hang"
    """It takes requests and computes nothing; afterwards it goes on where it stood."""
    SLOW = "slow"
    """Each of its steps lasts `factor` times as long."""


class NodeFailure(BaseModel):
    """A time in which a node does not do what it should. Its agent goes on reporting."""

    model_config = _STRICT

    kind: Annotated[FailureKind, Field(strict=False)]
    at_s: _Time
    """Since the simulation's start."""
    for_s: float = Field(gt=0, le=TIME_S_MAX)
    factor: float | None = Field(None, gt=1, le=1000)
    """Of `slow` alone, which needs it."""

    @model_validator(mode="after")
    def _factor_where_slow(self) -> Self:
        if (self.factor is not None) != (self.kind is FailureKind.SLOW):
            msg = "a factor with slow, and none with error and hang"
            raise ValueError(msg)
        return self


class NodeGroup(BaseModel):
    """One entry of a fleet file: a node, or several that are alike."""

    model_config = _STRICT

    name: Annotated[str | None, BeforeValidator(_name)] = None
    """Of one node; several get `name-1`, `name-2` and so on. Absent: `node-` and the node's place in the fleet."""
    count: int = Field(1, ge=1, le=NODES_MAX)
    speed: float = Field(1.0, ge=0.01, le=100)
    """Of the default engine: 2 halves the time of every step."""
    kv_blocks: int = Field(25_000, ge=64, le=1_000_000)
    """Of 16 tokens."""
    sequences_max: int = Field(256, ge=1, le=65_536)
    step_tokens_max: int = Field(8192, ge=1, le=1_000_000, validate_default=True)
    joins_at_s: _Time = 0.0
    """When its agent first reports it."""
    leaves_at_s: _Time | None = None
    """When it begins to drain: it finishes what it has, takes nothing new and is gone."""
    ready_after_s: _Time = 0.0
    """How long after it has joined it is loading."""
    faults: Annotated[tuple[NodeFailure, ...], Field(strict=False), _list("faults", _FAILURES_MAX)] = ()
    """In any order; no two at one time."""

    @field_validator("step_tokens_max")
    @classmethod
    def _one_for_each_sequence(cls, step_tokens_max: int, info: ValidationInfo) -> int:
        if step_tokens_max < info.data.get("sequences_max", 1):
            msg = "at least sequences_max"
            raise ValueError(msg)
        return step_tokens_max

    @field_validator("leaves_at_s")
    @classmethod
    def _after_it_joins(cls, leaves_at_s: float | None, info: ValidationInfo) -> float | None:
        if leaves_at_s is not None and leaves_at_s <= info.data.get("joins_at_s", -1.0):
            msg = "later than joins_at_s"
            raise ValueError(msg)
        return leaves_at_s

    @field_validator("faults")
    @classmethod
    def _one_at_a_time(cls, faults: tuple[NodeFailure, ...]) -> tuple[NodeFailure, ...]:
        ordered = tuple(sorted(faults, key=lambda fault: fault.at_s))
        if any(before.at_s + before.for_s > after.at_s for before, after in pairwise(ordered)):
            msg = "faults that do not overlap"
            raise ValueError(msg)
        return ordered


class FleetFile(BaseModel):
    """All that a fleet file can say."""

    model_config = _STRICT

    nodes: Annotated[tuple[NodeGroup, ...], Field(strict=False), _list("nodes", NODES_MAX)]

    @field_validator("nodes")
    @classmethod
    def _bounded(cls, nodes: tuple[NodeGroup, ...]) -> tuple[NodeGroup, ...]:
        if not 1 <= sum(group.count for group in nodes) <= NODES_MAX:
            msg = f"1 to {NODES_MAX} nodes, counts included"
            raise ValueError(msg)
        if sum(group.count * group.kv_blocks for group in nodes) > KV_BLOCKS_TOTAL_MAX:
            msg = f"at most {KV_BLOCKS_TOTAL_MAX} kv_blocks of all nodes together"
            raise ValueError(msg)
        names = _names(nodes)
        if len(set(names)) != len(names):
            msg = (
                f"a name of its own for each node, not {next(name for name in names if names.count(name) > 1)!r} twice"
            )
            raise ValueError(msg)
        return nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """One node of a simulation; times since its start, see `NodeGroup`."""

    name: str
    engine: EngineSettings
    joins_at_s: float = 0.0
    leaves_at_s: float | None = None
    ready_after_s: float = 0.0
    faults: tuple[NodeFailure, ...] = ()
    """In order of time, without overlap."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The nodes of a simulation, at least one; their names are distinct."""

    nodes: tuple[PlannedNode, ...]


def plan(fleet: str) -> FleetPlan | list[Fault]:
    """What `--nodes` means: `8` equal nodes; `even` or `unequal`, or with a number `unequal:16`; or a fleet file."""
    name, _, number = fleet.partition(":")
    if fleet.isascii() and fleet.isdecimal():
        name, number = "even", fleet
    if name not in PLANS:
        return read(Path(fleet))
    nodes_min, planned = PLANS[name]
    number = number or str(NODES_DEFAULT)
    # Not longer than any sound number, leading zeros included: Python refuses to read thousands of digits.
    if not (number.isascii() and number.isdecimal() and len(number) <= 9 and nodes_min <= int(number) <= NODES_MAX):
        return [Fault("--nodes", f"{nodes_min} to {NODES_MAX} nodes", repr(fleet)[:GOT_CHARS_MAX])]
    return planned(int(number))


def read(path: Path) -> FleetPlan | list[Fault]:
    """The plan in a fleet file, or its faults."""
    match yamlfile.load(path):
        case Fault() as fault:
            return [fault]
        case yamlfile.Document(content):
            planned = parse(content)
            return yamlfile.faults_in(path, planned) if isinstance(planned, list) else planned
        case other:
            assert_never(other)


def parse(mapping: object) -> FleetPlan | list[Fault]:
    """A plan, or every fault of the mapping. Never raises."""
    try:
        file = FleetFile.model_validate(mapping)
    except ValidationError as error:
        return faults_of(error)
    return _expanded(file.nodes)


def even(nodes: int = NODES_DEFAULT) -> FleetPlan:
    """So many default nodes."""
    return _expanded((NodeGroup(count=nodes),))


def unequal(nodes: int = NODES_DEFAULT) -> FleetPlan:
    """The first of every four nodes is three times slower, the second has half the KV blocks; at least 4 nodes."""
    assert nodes >= 4
    groups = (NodeGroup(speed=1 / 3), NodeGroup(kv_blocks=12_500), NodeGroup(), NodeGroup())
    return _expanded(tuple(groups[index % len(groups)] for index in range(nodes)))


PLANS: Final[Mapping[str, tuple[int, Callable[[int], FleetPlan]]]] = MappingProxyType(
    {"even": (1, even), "unequal": (4, unequal)}
)
"""Ready plans by name: how many nodes they need at least, and how they are made."""


def _names(groups: tuple[NodeGroup, ...]) -> list[str]:
    names: list[str] = []
    for group in groups:
        for index in range(1, group.count + 1):
            if group.name is None:
                names.append(f"node-{len(names) + 1}")
            else:
                names.append(group.name if group.count == 1 else f"{group.name}-{index}")
    return names


def _expanded(groups: tuple[NodeGroup, ...]) -> FleetPlan:
    each = (group for group in groups for _ in range(group.count))
    return FleetPlan(tuple(_planned(name, group) for name, group in zip(_names(groups), each, strict=True)))


def _planned(name: str, group: NodeGroup) -> PlannedNode:
    engine = EngineSettings(
        kv_blocks=group.kv_blocks,
        # As an operator would set it: an engine does not start with more than its blocks hold.
        context_length_tokens=min(CONTEXT_TOKENS_MAX, (group.kv_blocks - 1) * BLOCK_SIZE_TOKENS),
        sequences_max=group.sequences_max,
        step_tokens_max=group.step_tokens_max,
        speed=group.speed,
    )
    return PlannedNode(
        name=name,
        engine=engine,
        joins_at_s=group.joins_at_s,
        leaves_at_s=group.leaves_at_s,
        ready_after_s=group.ready_after_s,
        faults=group.faults,
    )
