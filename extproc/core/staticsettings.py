"""Nodes that stand in the configuration, so that there is somebody to go to before any agent speaks."""

import re
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
)

from extproc import nodehosts

STATIC_NODES_MAX: Final = 1024
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")
_ID_WANTED: Final = "1..128 letters, digits and ._:/@-, beginning with a letter or digit"


def _host(value: str) -> str:
    wanted = nodehosts.refusal(value, None)
    if wanted is not None:
        raise ValueError(wanted)
    return value


def _listed(value: object) -> object:
    """YAML and JSON have lists, and settings never change."""
    return tuple(value) if isinstance(value, list) else value


def _printable(value: str) -> str:
    if not value.isprintable():
        msg = "printable characters"
        raise ValueError(msg)
    return value


class StaticModel(BaseModel):
    """A model that a static node serves."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_printable)]
    """As clients write it in `model`."""
    context_length_tokens: int | None = Field(None, ge=1, le=1_000_000_000)
    """Prompt and output together. `None`: not known."""


def _by_name(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


def _shortly(model: StaticModel) -> object:
    """The journal's first line holds all of them."""
    if model.context_length_tokens is None:
        return model.name
    return {"name": model.name, "context_length_tokens": model.context_length_tokens}


_Model = Annotated[StaticModel, BeforeValidator(_by_name), PlainSerializer(_shortly)]


def _some(models: tuple[StaticModel, ...]) -> tuple[StaticModel, ...]:
    # `min_length` would also complain about a list whose entries are all wrong.
    if not models:
        msg = "at least one, or null"
        raise ValueError(msg)
    return models


class StaticNode(BaseModel):
    """A node that is known without an agent: ready as far as anybody knows, and served by the fallback."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: Annotated[str, AfterValidator(_host)]
    """`ip:port` or `[ipv6]:port` in canonical spelling, as agents tell it; no name: nobody here would resolve it."""
    weight: float = Field(1.0, gt=0, le=1000)
    """Share in the fallback's round robin."""
    models: (
        Annotated[tuple[_Model, ...], Field(max_length=256), BeforeValidator(_listed), AfterValidator(_some)] | None
    ) = None
    """What it serves, each by its name or as `{name: m, context_length_tokens: 4096}`. `None`: not known, and then
    no model is ever "not found"."""
    node_id: str = Field(default_factory=lambda settings: settings["host"])
    """The same as its agent's, should it get one. By default its host."""

    @field_validator("node_id")
    @classmethod
    def _as_agents_have(cls, node_id: str, info: ValidationInfo) -> str:
        if node_id != info.data.get("host") and not _ID.fullmatch(node_id):
            raise ValueError(_ID_WANTED)
        return node_id


def _distinct(nodes: tuple[StaticNode, ...]) -> tuple[StaticNode, ...]:
    for name, values in (("host", [one.host for one in nodes]), ("node_id", [one.node_id for one in nodes])):
        if len(set(values)) < len(values):
            twice = next(value for place, value in enumerate(values) if value in values[:place])
            msg = f"nodes with a {name} of their own each; {twice} stands there twice"
            raise ValueError(msg)
    return nodes


StaticNodeList = Annotated[
    tuple[StaticNode, ...],
    Field(max_length=STATIC_NODES_MAX),
    BeforeValidator(_listed),
    AfterValidator(_distinct),
]
