"""The commands for meshes, and the files in envoy/ that are their output."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from extproc import cli
from tests.render.istiomesh import documents

SHIPPED = Path(__file__).parent.parent.parent / "envoy"
COMMANDS = ["istio", "envoy-gateway"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["render", *arguments])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_shipped_files_are_fresh(name: str) -> None:
    made = run(name, "--description", str(SHIPPED / f"{name}.render.yaml"))
    assert made.exit_code == 0, made.output
    assert made.output == (SHIPPED / f"{name}.yaml").read_text(), f"extproc render {name} > envoy/{name}.yaml"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_resource_says_for_which_version_it_was_written_and_that_the_mesh_was_not_run(name: str) -> None:
    head = (SHIPPED / f"{name}.yaml").read_text().partition("\n\n")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert "Written for" in head
    assert "itself was not run" in head.replace("\n# ", " ")


@pytest.mark.parametrize("name", COMMANDS)
def test_what_stands_in_about_stands_on_top(name: str, tmp_path: Path) -> None:
    given = yaml.safe_load((SHIPPED / f"{name}.render.yaml").read_text())
    path = tmp_path / "description.yaml"
    path.write_text(yaml.safe_dump(given | {"about": "Ours.\nNot yours."}))
    assert run(name, "--description", str(path)).output.startswith("# Ours.\n# Not yours.\n# extproc for ")


def test_options_say_where_in_the_cluster_it_belongs() -> None:
    description = ("--description", str(SHIPPED / "istio.render.yaml"))
    options = ("--context", "sidecar", "--namespace", "chat", "--label", "app=chat", "--label", "tier=")
    found = documents(run("istio", *description, *options, "--mesh-tls", "spiffe://mesh/ns/llm/").output)
    spec = found["EnvoyFilter"]["spec"]
    assert spec["workloadSelector"]["labels"] == {"app": "chat", "tier": ""}
    assert {one["match"]["context"] for one in spec["configPatches"]} == {"SIDECAR_OUTBOUND"}
    assert {one["metadata"]["namespace"] for one in found.values()} == {"chat"}
    assert "spiffe://mesh/ns/llm/" in str(spec)
    made = run(
        *("envoy-gateway", "--description", str(SHIPPED / "envoy-gateway.render.yaml")),
        *("--namespace", "engines", "--gateway", "edge"),
    )
    resources = list(yaml.safe_load_all(made.output))
    assert {one["metadata"]["namespace"] for one in resources} == {"engines"}
    (route, *_) = (one for one in resources if one["kind"] == "HTTPRoute")
    assert route["spec"]["parentRefs"] == [{"name": "edge"}]


@pytest.mark.parametrize(
    "options",
    [
        ("--namespace", "No_Name"),
        ("--gateway", "a: b"),
        ("--label", "app"),
        ("--label", "app=a\nb: c"),
        ("--mesh-tls", "https://llm"),
        ("--mesh-tls", "spiffe://llm\n"),
    ],
)
def test_what_kubernetes_would_not_take_is_refused(options: tuple[str, str]) -> None:
    made = run("istio", "--description", str(SHIPPED / "istio.render.yaml"), *options)
    assert made.exit_code == 2
    assert f"Invalid value for '{options[0]}'" in made.output


@pytest.mark.parametrize(
    ("name", "given", "line"),
    [
        ("istio", {"nodes": ["10.0.0.1:8000"]}, "nodes: wanted one, the engines' Service by its full name"),
        ("envoy-gateway", {"destination": "original-dst"}, "destination: wanted override-host"),
        ("istio", {"body_mode": "all"}, "body_mode: wanted "),
    ],
)
def test_faults_are_told_a_line_each(name: str, given: dict[str, Any], line: str, tmp_path: Path) -> None:
    path = tmp_path / "description.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load((SHIPPED / f"{name}.render.yaml").read_text()) | given))
    made = run(name, "--description", str(path))
    assert (made.exit_code, made.stdout) == (1, "")
    assert made.stderr.startswith(line)
    assert made.stderr.count("\n") == 1
