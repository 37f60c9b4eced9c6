"""envoy/kubernetes.yaml: nothing runs it here, so what it says of our program is held against that."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from extproc import cli
from extproc.address import TcpAddress
from extproc.config import Config, parse
from extproc.core.balancer import Balancer
from extproc.core.settings import BalancerSettings
from extproc.ops import admin
from extproc.ops.metrics import Metrics
from extproc.render.description import Description, is_name
from extproc.render.description import read as read_description
from tests.rendered import SHIPPED

PAGE = SHIPPED / "kubernetes.yaml"
OURS = "registry.example/extproc:"


def resource(kind: str, name: str) -> Any:
    (found,) = (
        one
        for one in yaml.safe_load_all(PAGE.read_text())
        if (one["kind"], one["metadata"]) == (kind, {"name": name, "namespace": "llm"})
    )
    return found


def container(deployment: str, name: str) -> Any:
    pod = resource("Deployment", deployment)["spec"]["template"]["spec"]
    (found,) = (one for one in pod["containers"] if one["name"] == name)
    return found


def settings() -> Config:
    found = parse(yaml.safe_load(resource("ConfigMap", "extproc")["data"]["extproc.yaml"]))
    assert isinstance(found, Config), found
    return found


def port(address: object) -> int:
    assert isinstance(address, TcpAddress)
    return address.port


def test_serve_takes_its_configuration_from_where_it_is_mounted(tmp_path: Path) -> None:
    serve = container("extproc", "serve")
    command, option, file = serve["args"]
    assert serve["image"].startswith(OURS)
    assert option in {text for parameter in cli.main.commands[command].params for text in parameter.opts}
    (mounted,) = serve["volumeMounts"]
    (volume,) = resource("Deployment", "extproc")["spec"]["template"]["spec"]["volumes"]
    assert (volume["name"], volume["configMap"]) == (mounted["name"], {"name": "extproc"})
    (name, text), *others = resource("ConfigMap", "extproc")["data"].items()
    assert (f"{mounted['mountPath']}/{name}", others) == (file, [])
    (tmp_path / name).write_text(text)
    checked = CliRunner().invoke(cli.main, ["check", str(tmp_path / name)])
    assert (checked.exit_code, checked.stdout.strip()) == (0, "OK"), checked.output


def test_ports_are_those_at_which_serve_listens_and_the_admin_page_is_no_service() -> None:
    listen = settings().listen
    wanted = {"grpc-extproc": port(listen.extproc), "grpc-agents": port(listen.agents), "admin": port(listen.admin)}
    serve = container("extproc", "serve")
    assert {one["name"]: one["containerPort"] for one in serve["ports"]} == wanted
    for service, name in (("extproc", "grpc-extproc"), ("extproc-agents", "grpc-agents")):
        offered = resource("Service", service)["spec"]
        assert offered["selector"] == resource("Deployment", "extproc")["spec"]["template"]["metadata"]["labels"]
        assert offered["ports"] == [
            {"name": name, "port": wanted[name], "targetPort": name, "appProtocol": "grpc"},
        ]
    let_in = [one["port"] for rule in resource("NetworkPolicy", "extproc")["spec"]["ingress"] for one in rule["ports"]]
    assert let_in == [wanted["grpc-extproc"], wanted["grpc-agents"]]
    app = admin.build(Balancer(BalancerSettings(), started_s=0.0), Metrics(), lambda: 0.0, lambda: False, list)
    pages = {route.resource.canonical for route in app.router.routes() if route.resource is not None}
    for probe in ("readinessProbe", "livenessProbe"):
        asked = serve[probe]["httpGet"]
        assert asked["port"] == "admin"
        assert asked["path"] in pages


def test_agents_reach_every_pod_and_one_that_is_not_ready_yet() -> None:
    """Else it never is: it becomes ready by their reports. So a new one can come before the old one goes."""
    deployed = resource("Deployment", "extproc")["spec"]
    assert container("extproc", "serve")["readinessProbe"]["httpGet"]["path"] == "/readyz"
    agents = resource("Service", "extproc-agents")["spec"]
    assert (agents["clusterIP"], agents["publishNotReadyAddresses"]) == ("None", True)
    assert "publishNotReadyAddresses" not in resource("Service", "extproc")["spec"]
    rolling = {"maxUnavailable": 0, "maxSurge": 1}
    assert (deployed["replicas"], deployed["strategy"]) == (1, {"type": "RollingUpdate", "rollingUpdate": rolling})
    assert deployed["template"]["spec"]["terminationGracePeriodSeconds"] > settings().drain_s


def test_the_page_shows_of_it_what_stands_there() -> None:
    page = (SHIPPED.parent / "docs" / "meshes.md").read_text()
    (shown,), config = (yaml.safe_load(block.partition("```")[0]) for block in page.split("```yaml\n")[1:3])
    agent = container("engines", "agent")
    assert shown == {key: agent[key] for key in ("name", "args", "env")}
    assert config == yaml.safe_load(resource("ConfigMap", "extproc")["data"]["extproc.yaml"])


@pytest.mark.parametrize("name", ["istio", "envoy-gateway"])
def test_what_is_rendered_for_a_gateway_names_these_services(name: str) -> None:
    d = read_description(SHIPPED / f"{name}.render.yaml")
    assert isinstance(d, Description)
    for asked, kind in ((d.processor, "extproc"), (d.nodes, "engines")):
        (at,) = asked
        assert isinstance(at, TcpAddress)
        assert is_name(at)
        assert at.host in (kind, f"{kind}.llm.svc.cluster.local")
        assert at.port in [one["port"] for one in resource("Service", kind)["spec"]["ports"]]
