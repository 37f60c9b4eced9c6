"""Envoy's bootstraps for tests: those of envoy/ with other words in their descriptions."""

from pathlib import Path
from typing import Any

import yaml

from extproc.render import bootstrap
from extproc.render.description import Description, parse

SHIPPED = Path(__file__).parent.parent / "envoy"


def described(name: str = "demo", **changes: Any) -> Description:
    """The description that envoy/`name`.yaml is rendered from, with changes. Wrong ones fail the test."""
    found = parse(yaml.safe_load((SHIPPED / f"{name}.render.yaml").read_text()) | changes)
    assert isinstance(found, Description), found
    return found


def rendered(name: str = "demo", **changes: Any) -> str:
    """The bootstrap of that description."""
    text = bootstrap.render(described(name, **changes))
    assert isinstance(text, str), text
    return text


def first_tokens_shown(name: str = "demo") -> str:
    """The bootstrap with an option of the routes for /v1/: extproc is shown first tokens."""
    mapping = yaml.safe_load((SHIPPED / f"{name}.render.yaml").read_text())
    for route in mapping["routes"]:
        route["first_tokens"] = "policy" not in route
    return rendered(name, routes=mapping["routes"])
