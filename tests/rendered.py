"""Envoy's bootstraps for tests: those of envoy/ with other words in their descriptions."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from extproc.render import bootstrap
from extproc.render.description import Description, parse

SHIPPED = Path(__file__).parent.parent / "envoy"


def described(name: str = "demo", **changes: Any) -> Description:
    """The description that envoy/`name`.yaml is rendered from, with changes. Wrong ones fail the test."""
    found = parse(mapping_of((SHIPPED / f"{name}.render.yaml").read_text()) | changes)
    assert isinstance(found, Description), found
    return found


def rendered(name: str = "demo", **changes: Any) -> str:
    """The bootstrap of that description. Rendering takes half a second, and tests ask for the same again and again."""
    return _rendered(name, json.dumps(changes))


@cache
def _rendered(name: str, changes: str) -> str:
    text = bootstrap.render(described(name, **json.loads(changes)))
    assert isinstance(text, str), text
    return text


def mapping_of(text: str) -> Any:
    """A bootstrap as a mapping: by libyaml, ten times as fast as PyYAML's own loader."""
    return yaml.load(text, yaml.CSafeLoader)


def first_tokens_shown(name: str = "demo") -> str:
    """The bootstrap with an option of the routes for /v1/: extproc is shown first tokens."""
    mapping = mapping_of((SHIPPED / f"{name}.render.yaml").read_text())
    for route in mapping["routes"]:
        route["first_tokens"] = "policy" not in route
    return rendered(name, routes=mapping["routes"])
