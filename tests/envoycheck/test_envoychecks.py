"""What `extproc check --envoy` prints, and ends with."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from extproc import cli
from extproc.config import Config
from extproc.core.settings import Fault
from extproc.envoycheck import checks
from extproc.envoycheck.file import Warned
from extproc.envoycheck.processors import Processors, processors_of
from tests.bootstraps import (
    EVERYTHING,
    FILTER,
    HOST,
    LISTEN,
    MANAGER,
    METADATA,
    MODE,
    ROUTE,
    asking,
    bootstrap,
    complete,
    complete_clusters,
    put,
)

Json = Any

ENVOY = Path(__file__).parent.parent.parent / "envoy"
ALLOW, BODY = f"{FILTER}failure_mode_allow", f"{MODE}.request_body_mode"


def found(document: Json, settings: Config) -> list[Fault]:
    processors = processors_of(document, LISTEN)
    assert isinstance(processors, Processors)
    return checks.faults_in(processors, settings)


def check(folder: Path, manager: Json, *options: str, ours: str = "{}") -> Result:
    (folder / "ours.yaml").write_text(ours)
    (folder / "envoy.json").write_text(json.dumps(bootstrap(manager, clusters=complete_clusters())))
    command = ["check", str(folder / "ours.yaml"), "--envoy", str(folder / "envoy.json"), *options]
    return CliRunner().invoke(cli.main, command)


@pytest.mark.parametrize("name", ["bootstrap.yaml", "demo.yaml"])
def test_the_shipped_bootstraps_have_nothing_that_is_worth_a_word(name: str) -> None:
    assert checks.faults_in_file(ENVOY / name, Config()) == []


def test_it_says_ok(tmp_path: Path) -> None:
    result = check(tmp_path, complete())
    assert (result.exit_code, result.stdout, result.stderr) == (0, "OK\n", "")
    assert json.loads(check(tmp_path, complete(), "--json").stdout) == []


def test_warnings_are_told_and_are_no_reason_to_fail(tmp_path: Path) -> None:
    result = check(tmp_path, put(complete(), ALLOW, False))
    wanted = "wanted true (else 500 while serve is away, and its crash cuts running answers), got False"
    warning = f"warning: {tmp_path}/envoy.json: {MANAGER}{ALLOW}: {wanted}\n"
    assert (result.exit_code, result.stdout, result.stderr) == (0, "OK\n", warning)


def test_faults_are_told_and_are_one(tmp_path: Path) -> None:
    both = put(put(complete(), ALLOW, False), METADATA, asking("absent"))
    result = check(tmp_path, both)
    assert (result.exit_code, result.stdout) == (1, "")
    wanted = "wanted a policy of the configuration, or one as a JSON object, got 'absent'"
    fault = f"{tmp_path}/envoy.json: {MANAGER}{METADATA}.1.value: {wanted}"
    assert result.stderr.splitlines()[1:] == [fault]
    assert result.stderr.startswith("warning: ")


def test_json_has_each_part_of_a_finding(tmp_path: Path) -> None:
    both = put(put(complete(), ALLOW, False), METADATA, asking("absent"))
    result = check(tmp_path, both, "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    fault, warning = json.loads(result.stdout)
    assert fault == {
        "file": f"{tmp_path}/envoy.json",
        "path": f"{MANAGER}{METADATA}.1.value",
        "severity": "fault",
        "wanted": "a policy of the configuration, or one as a JSON object",
        "got": "'absent'",
    }
    assert (warning["severity"], warning["path"]) == ("warning", f"{MANAGER}{ALLOW}")
    assert check(tmp_path, put(complete(), ALLOW, False), "--json").exit_code == 0


def test_what_cannot_be_read_is_a_fault_of_its_file(tmp_path: Path) -> None:
    result = check(tmp_path, complete(), "--json", ours="drain_s: -1")
    assert [(one["file"], one["path"]) for one in json.loads(result.stdout)] == [(f"{tmp_path}/ours.yaml", "drain_s")]
    (tmp_path / "wrong.json").write_text("[")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "ours.yaml").write_text("{}")
    names = ("wrong.json", "list.json", "none.json")
    files = [argument for name in names for argument in ("--envoy", str(tmp_path / name))]
    result = CliRunner().invoke(cli.main, ["check", str(tmp_path / "ours.yaml"), *files, "--json"])
    assert result.exit_code == 1
    rows = json.loads(result.stdout)
    assert [(one["file"].rpartition("/")[2], one["path"], one["wanted"]) for one in rows] == [
        ("wrong.json", "1:2", "YAML"),
        ("list.json", "", "a mapping, Envoy's bootstrap"),
        ("none.json", "", "a readable file"),
    ]
    result = CliRunner().invoke(cli.main, ["check", str(tmp_path / "ours.yaml"), *files])
    assert result.stderr.splitlines()[1] == f"{tmp_path}/list.json: (top): wanted a mapping, Envoy's bootstrap, got []"


def test_without_a_configuration_the_defaults_are_taken(tmp_path: Path) -> None:
    shipped = CliRunner().invoke(cli.main, ["check", "--envoy", str(ENVOY / "bootstrap.yaml")])
    assert (shipped.exit_code, shipped.stdout, shipped.stderr) == (0, "OK\n", "")
    (tmp_path / "envoy.json").write_text(json.dumps(bootstrap(complete())))
    result = CliRunner().invoke(cli.main, ["check", "--envoy", str(tmp_path / "envoy.json"), "--json"])
    assert result.exit_code == 1
    assert {one["file"] for one in json.loads(result.stdout)} == {f"{tmp_path}/envoy.json"}


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: ConfigMap\n",
        '{"kind": "List", "apiVersion": "v1"}',
        "# Written.\n---\nkind: EnvoyFilter\napiVersion: networking.istio.io/v1alpha3\n---\na: 1\n",
    ],
)
def test_what_is_for_kubernetes_is_told_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    result = CliRunner().invoke(cli.main, ["check", "--envoy", str(tmp_path / "a.yaml")])
    assert result.exit_code == 1
    assert "this is for Kubernetes: give the proxy's, as of `istioctl proxy-config all POD -o json`" in result.stderr
    (tmp_path / "a.yaml").write_text(text.replace("kind", "sort"))
    result = CliRunner().invoke(cli.main, ["check", "--envoy", str(tmp_path / "a.yaml")])
    assert (result.exit_code, "Kubernetes" in result.stderr) == (1, False)


def test_of_a_filter_that_only_tells_nothing_else_is_said() -> None:
    watching = put(
        put(complete(), f"{FILTER}observability_mode", True), f"{FILTER}mutation_rules", {"disallow_all": True}
    )
    watching = put(put(watching, "stream_idle_timeout", "1s"), ALLOW, False)
    watching = put(watching, BODY, "STREAMED")
    (fault,) = found(bootstrap(watching, clusters=complete_clusters()), Config())
    assert str(fault).startswith(f"{MANAGER}{FILTER}observability_mode: wanted false (nothing that serve answers")
    both = bootstrap(watching, put(complete(), f"{FILTER}message_timeout", "1s"), clusters=complete_clusters())
    assert [one.path.rpartition(".")[2] for one in found(both, Config())] == ["observability_mode", "message_timeout"]
    for mode in ("BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED", "NONE", None):
        _, blind = found(bootstrap(put(watching, BODY, mode), clusters=complete_clusters()), Config())
        assert isinstance(blind, Warned)
        assert str(blind).startswith(f"{MANAGER}{BODY}: wanted STREAMED (with observability_mode no other one shows")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["x-a", "chosen", "BUFFERED", "1s", "%REQ(a)%", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "key", "header", "headers", "match", "cluster", "type", "remove"]), inner
        )
    ),
    max_leaves=8,
)


IN_MANAGER = [
    *(HOST[:-1], f"{HOST}routes", f"{HOST}request_body_buffer_limit", "route_config.request_headers_to_remove"),
    *(ROUTE[:-1], f"{ROUTE}match", f"{ROUTE}match.headers", f"{ROUTE}route"),
    *(MODE, BODY, ALLOW, METADATA, f"{FILTER}metadata_options"),
    *("access_log", "stream_idle_timeout", f"{ROUTE}metadata.filter_metadata", f"{ROUTE}route.retry_policy"),
    *("http_filters.1", "upgrade_configs", "early_header_mutation_extensions"),
]
BESIDE = [
    *("clusters.0.circuit_breakers", "clusters.2.type", "clusters.2.original_dst_lb_config"),
    *("clusters.0.typed_extension_protocol_options", "clusters.0.cluster_type"),
    *("clusters.1.load_balancing_policy", "listeners.0.per_connection_buffer_limit_bytes"),
]


@given(
    st.sampled_from([*(MANAGER + path for path in IN_MANAGER), *(f"static_resources.{path}" for path in BESIDE)]), JSON
)
def test_nothing_in_a_file_makes_it_fail(path: str, value: Json) -> None:
    for settings in (Config(), EVERYTHING):
        for fault in found(put(bootstrap(complete(), clusters=complete_clusters()), path, value), settings):
            assert "\n" not in str(fault)


def test_a_header_that_a_policy_reads_must_be_added_to_the_shipped_ones() -> None:
    document = yaml.safe_load((ENVOY / "bootstrap.yaml").read_text())
    assert {one.wanted.partition(" ")[0] for one in found(document, EVERYTHING)} == {"x-priority", "x-tenant"}
