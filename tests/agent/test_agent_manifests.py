"""Manifests with an agent in them: nothing runs them here, so what they say of our program is held against that."""

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from click.testing import CliRunner

from extproc import address, cli
from extproc.address import TcpAddress
from extproc.agent import admin, agent
from extproc.agent.routername import RouterName
from extproc.agent.settings import AgentConfig
from extproc.cli.draining import drain
from extproc.config import Config
from extproc.config import parse as parse_serve
from tests.rendered import SHIPPED

WORKLOADS = [("kubernetes.yaml", "Deployment", "engines"), ("kubernetes-daemonset.yaml", "DaemonSet", "extproc-agent")]
FIELDS = {"status.podIP": "10.1.2.3", "status.hostIP": "10.1.2.3"} | {
    "metadata.name": "engines-6f-abc",
    "spec.nodeName": "gpu-box-1",
}
OURS = "registry.example/extproc:"
PODS = pytest.mark.parametrize(("file", "kind", "name"), WORKLOADS)


def resources(file: str) -> list[Any]:
    return list(yaml.safe_load_all((SHIPPED / file).read_text()))


def found(file: str, kind: str, name: str) -> Any:
    (one,) = (one for one in resources(file) if (one["kind"], one["metadata"]["name"]) == (kind, name))
    assert one["metadata"]["namespace"] == "llm"
    return one


def pod(file: str, kind: str, name: str) -> Any:
    workload = found(file, kind, name)["spec"]
    assert workload["selector"]["matchLabels"] == workload["template"]["metadata"]["labels"]
    return workload["template"]["spec"]


def container(spec: Any, name: str) -> Any:
    (one,) = (one for one in spec["containers"] if one["name"] == name)
    return one


def environment(file: str, of: Any) -> dict[str, str]:
    """What the container is told, as Kubernetes puts it together: a value may name what stands before it."""
    told: dict[str, str] = {}
    for source in of.get("envFrom", []):
        told |= found(file, "ConfigMap", source["configMapRef"]["name"])["data"]
    for one in of["env"]:
        text = FIELDS[one["valueFrom"]["fieldRef"]["fieldPath"]] if "valueFrom" in one else one["value"]
        for name, value in told.items():
            text = text.replace(f"$({name})", value)
        told[one["name"]] = text
    return told


@contextlib.contextmanager
def started(arguments: list[str], told: dict[str, str]) -> Iterator[AgentConfig]:
    """The settings with which the real command would start the agent."""
    given: list[AgentConfig] = []

    async def keep(config: AgentConfig) -> None:
        given.append(config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "run", keep)
        result = CliRunner().invoke(cli.main, arguments, env=told)
        assert result.exit_code == 0, result.output
        (config,) = given
        yield config


def serve_settings() -> Config:
    config = parse_serve(yaml.safe_load(found("kubernetes.yaml", "ConfigMap", "extproc")["data"]["extproc.yaml"]))
    assert isinstance(config, Config), config
    return config


@PODS
def test_the_agent_is_told_who_and_where_its_engine_and_the_routers_are(file: str, kind: str, name: str) -> None:
    spec = pod(file, kind, name)
    of = container(spec, "agent")
    assert of["image"].startswith(OURS)
    told = environment(file, of)
    known = {parameter.envvar for parameter in cli.main.commands["agent"].params}
    assert {one for one in told if one.startswith("EXTPROC_")} == set(told) - {"POD_IP", "HOST_IP"} <= known
    (engine_port,) = (one["containerPort"] for one in container(spec, "engine")["ports"])
    with started(of["args"], told) as config:
        (engine,) = config.engines
        assert engine.engine == f"http://127.0.0.1:{engine_port}"
        assert engine.host == TcpAddress("10.1.2.3", engine_port)
        assert engine.node_id in FIELDS.values()
        (router,) = config.routers
        service = found("kubernetes.yaml", "Service", "extproc-agents")
        listens = serve_settings().listen.agents
        assert isinstance(listens, TcpAddress)
        assert router == RouterName("extproc-agents.llm", listens.port)
        assert service["spec"]["clusterIP"] == "None", "else the name has one address, behind which one pod hears it"


@PODS
def test_what_is_asked_of_the_agent_it_answers(file: str, kind: str, name: str) -> None:
    spec = pod(file, kind, name)
    of, engine = container(spec, "agent"), container(spec, "engine")
    with started(of["args"], environment(file, of)) as config:
        listens = config.admin
    assert isinstance(listens, TcpAddress)
    routes = {
        (route.method, route.resource.canonical)
        for route in admin.build([], list, remote=False).router.routes()
        if route.resource is not None
    }
    (port,) = of["ports"]
    assert port["containerPort"] == listens.port
    probe = of["livenessProbe"]["httpGet"]
    assert probe["port"] == port["name"]
    assert ("GET", probe["path"]) in routes
    # The probe comes to the pod's address, unless it names another, and calls to drain from the pod itself.
    assert listens.host in ("0.0.0.0", probe.get("host"))
    curl = engine["lifecycle"]["preStop"]["exec"]["command"]
    url = urlsplit(curl[-1])
    assert curl[0] == "curl"
    assert (curl[curl.index("-X") + 1], url.path) in {one for one in routes if one[0] == "POST"}
    assert (url.hostname, url.port) == ("127.0.0.1", listens.port)
    (wait,) = parse_qs(url.query)["wait"]
    assert float(curl[curl.index("-m") + 1]) > float(wait), "curl ends after the answer"


@PODS
def test_a_pod_that_ends_drains_in_the_time_it_has(file: str, kind: str, name: str) -> None:
    spec = pod(file, kind, name)
    of = container(spec, "agent")
    program, *arguments = of["lifecycle"]["preStop"]["exec"]["command"]
    assert (program, arguments[0]) == ("extproc", "drain")
    told = drain.make_context("drain", list(arguments[1:])).params
    with started(of["args"], environment(file, of)) as config:
        assert isinstance(config.admin, TcpAddress)
        assert address.parse(told["admin"]) == TcpAddress("127.0.0.1", config.admin.port)
        longest_s = told["wait"] + config.drain_s + config.goodbye_s
    (curl_max,) = (
        float(one)
        for before, one in pairwise(container(spec, "engine")["lifecycle"]["preStop"]["exec"]["command"])
        if before == "-m"
    )
    assert spec["terminationGracePeriodSeconds"] > max(longest_s, curl_max)


def test_serves_default_ports_are_those_of_the_manifest() -> None:
    assert [getattr(serve_settings().listen, port).port for port in ("extproc", "agents", "admin")] == [
        getattr(Config().listen, port).port for port in ("extproc", "agents", "admin")
    ]
    (default,) = (one.default for one in drain.params if one.name == "admin")
    assert default == "127.0.0.1:9005"


def test_the_machines_network_needs_the_clusters_names() -> None:
    spec = pod("kubernetes-daemonset.yaml", "DaemonSet", "extproc-agent")
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_every_kind_of_resource_has_the_version_that_kubernetes_gives_it() -> None:
    versions = {"Service": "v1", "ConfigMap": "v1", "Deployment": "apps/v1", "DaemonSet": "apps/v1"}
    versions["NetworkPolicy"] = "networking.k8s.io/v1"
    for file in {file for file, _, _ in WORKLOADS}:
        for one in resources(file):
            assert one["apiVersion"] == versions[one["kind"]]
