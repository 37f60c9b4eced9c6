"""A real Envoy and a real serve, Envoy with what Envoy Gateway makes of the resources."""

from pathlib import Path

from tests.render import gatewaymesh
from tests.render.listedhosts import KNOWN, ROUTES, assert_listed_nodes_serve
from tests.render.test_envoygateway import rendered


async def test_listed_nodes_serve_under_the_policy_of_the_annotation(tmp_path: Path) -> None:
    await assert_listed_nodes_serve(
        tmp_path,
        lambda nodes: gatewaymesh.bootstrap(rendered(nodes=[str(one) for one in nodes], routes=ROUTES), nodes=KNOWN),
    )
