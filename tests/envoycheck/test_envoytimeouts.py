"""What `extproc check --envoy` finds in a bootstrap."""

import copy
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc import cli
from extproc.address import Address, TcpAddress, UnixAddress
from extproc.config import Config
from extproc.core.admissionsettings import PriorityClass
from extproc.envoycheck.timeouts import Hold, faults_in_bootstrap, faults_in_file, longest_hold
from tests.bootstraps import (
    DURATION,
    FILTER,
    HOLD,
    LISTEN,
    LONGEST,
    MANAGER,
    OPTIONS,
    PER_ROUTE,
    ROUTE,
    TYPE,
    bootstrap,
    cluster,
    complete,
    complete_clusters,
    manager,
    put,
    without,
)

ENVOY = Path(__file__).parent.parent.parent / "envoy"


def found(document: object, processor: Address = LISTEN) -> list[str]:
    return [str(fault) for fault in faults_in_bootstrap(document, HOLD, processor)]


def test_long_timeouts_and_those_that_are_off_are_no_faults() -> None:
    assert found(bootstrap(manager())) == []
    assert found(bootstrap(put(manager(), "stream_idle_timeout", "0s"))) == []


@pytest.mark.parametrize(
    ("path", "off"),
    [
        (f"{FILTER}message_timeout", False),
        ("stream_idle_timeout", True),
        (DURATION, True),
        (f"{ROUTE}route.idle_timeout", True),
        (f"{ROUTE}route.max_stream_duration.max_stream_duration", True),
    ],
)
def test_each_timeout_may_be_as_long_as_the_longest_wait_and_no_shorter(path: str, off: bool) -> None:
    for long in ("31.1s", "31.100000001s", {"seconds": 32}, {"seconds": 31, "nanos": 100_000_000}):
        assert found(bootstrap(put(manager(), path, long))) == []
    wanted = f"at least 31.1s{' or 0s' if off else ''} (class batch waits up to 30 s)"
    for short, got in (("31.099999s", "31.1s"), ("10s", "10s"), ({"seconds": 31}, "31s")):
        assert found(bootstrap(put(manager(), path, short))) == [f"{MANAGER}{path}: wanted {wanted}, got {got}"]
    assert bool(found(bootstrap(put(manager(), path, "0s")))) is not off
    wrong: object
    for wrong in ("10", 10, "5m", "-1s", "1.s", ".5s", "1e3s", "10 s", "٣s", [], {"second": 1}, {"seconds": -1}, True):
        (fault,) = faults_in_bootstrap(bootstrap(put(manager(), path, wrong)), HOLD, LISTEN)
        assert (fault.path, fault.wanted) == (MANAGER + path, "a duration as 10s or 0.5s")


def test_what_is_absent_has_envoys_default() -> None:
    short = without(without(manager(), "stream_idle_timeout"), f"{FILTER}message_timeout")
    hold = Hold(300.1, "so")
    assert [str(one) for one in faults_in_bootstrap(bootstrap(short), hold, LISTEN)] == [
        f"{MANAGER}{FILTER}message_timeout: wanted at least 300.1s (so), got nothing, so 0.2s",
        f"{MANAGER}stream_idle_timeout: wanted at least 300.1s or 0s (so), got nothing, so 300s",
    ]
    assert len(faults_in_bootstrap(bootstrap(short), Hold(300.0, "so"), LISTEN)) == 1
    assert len(faults_in_bootstrap(bootstrap(put(short, "stream_idle_timeout", None)), hold, LISTEN)) == 2


def test_a_route_with_an_own_value_does_not_mind_that_of_the_manager() -> None:
    short = put(put(manager(), "stream_idle_timeout", "1s"), DURATION, "1s")
    own = put(put(short, f"{ROUTE}route.idle_timeout", LONGEST), f"{ROUTE}route.max_stream_duration", {})
    assert [one.partition(":")[0] for one in found(bootstrap(own))] == [MANAGER + DURATION]
    own = put(own, f"{ROUTE}route.max_stream_duration.max_stream_duration", "0s")
    assert found(bootstrap(own)) == []
    another = {"match": {"prefix": "/v2"}, "route": {"cluster": "engines"}}
    two = copy.deepcopy(own)
    two["route_config"]["virtual_hosts"][0]["routes"].insert(0, another)
    assert len(found(bootstrap(two))) == 2
    del own["route_config"]
    assert len(found(bootstrap(put(own, "rds", {})))) == 2, "routes that the file does not tell"


@pytest.mark.parametrize("at", [ROUTE, "route_config.virtual_hosts.0.", "route_config."])
@pytest.mark.parametrize("kind", [PER_ROUTE, f"{TYPE}config.route.v3.FilterConfig"])
def test_routes_on_which_the_processor_is_not_asked_may_be_short(at: str, kind: str) -> None:
    short = put(manager(), f"{ROUTE}route.idle_timeout", "1s")
    off = put(short, f"{at}typed_per_filter_config", {"ours": {"@type": kind, "disabled": True}})
    assert found(bootstrap(off)) == []
    wrapped = {"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": kind, "value": {"disabled": True}}
    assert found(bootstrap(put(short, f"{at}typed_per_filter_config", {"ours": wrapped}))) == []
    assert len(found(bootstrap(put(short, f"{at}typed_per_filter_config", {"other": {"disabled": True}})))) == 1
    if at != ROUTE:
        nearer = put(off, f"{ROUTE}typed_per_filter_config", {"ours": {"@type": kind}})
        assert len(found(bootstrap(nearer))) == 1
    else:
        answered = put(without(short, f"{ROUTE}route"), f"{ROUTE}direct_response", {"status": 404})
        assert found(bootstrap(put(answered, "stream_idle_timeout", "1s"))) == []


def test_a_filter_that_is_off_counts_where_a_route_turns_it_on() -> None:
    off = put(put(manager(), f"{ROUTE}route.idle_timeout", "1s"), "http_filters.0.disabled", True)
    assert found(bootstrap(off)) == []
    on = put(off, f"{ROUTE}typed_per_filter_config", {"ours": {"@type": PER_ROUTE, "overrides": {}}})
    assert len(found(bootstrap(on))) == 1


def test_routes_stand_in_scopes_and_matchers_too() -> None:
    short = put(manager(), f"{ROUTE}route.idle_timeout", "1s")
    scoped = {"scoped_route_configurations_list": {"scoped_route_configurations": [{"route_configuration": None}]}}
    inner = "scoped_route_configurations_list.scoped_route_configurations.0.route_configuration"
    scoped = put(scoped, inner, short.pop("route_config"))
    (fault,) = found(bootstrap(put(short, "scoped_routes", scoped)))
    assert fault.startswith(f"{MANAGER}scoped_routes.{inner}.virtual_hosts.0.routes.0.route.idle_timeout: ")
    route = {"@type": f"{TYPE}config.route.v3.Route", "route": {"idle_timeout": "1s"}}
    matcher = {"on_no_match": {"action": {"name": "route", "typed_config": route}}}
    (fault,) = found(bootstrap(put(manager(), "route_config.virtual_hosts.0.matcher", matcher)))
    assert ".matcher.on_no_match.action.typed_config.route.idle_timeout: " in fault


def test_names_as_json_has_them_and_typed_structs_are_read() -> None:
    text = json.dumps(bootstrap(put(put(manager(), "stream_idle_timeout", "1s"), f"{FILTER}message_timeout", "1s")))
    for name in (
        "static_resources",
        "filter_chains",
        "typed_config",
        "http_filters",
        "message_timeout",
        "route_config",
    ):
        text = text.replace(name, name.replace("_r", "R").replace("_c", "C").replace("_f", "F").replace("_t", "T"))
    text = text.replace("stream_idle_timeout", "streamIdleTimeout")
    assert [one.partition(":")[0].rpartition(".")[2] for one in found(json.loads(text))] == [
        "messageTimeout",
        "streamIdleTimeout",
    ]
    one = put(manager(), "stream_idle_timeout", "1s")
    struct = {"@type": "type.googleapis.com/udpa.type.v1.TypedStruct", "type_url": one.pop("@type"), "value": one}
    (fault,) = found(bootstrap(struct))
    assert fault.startswith(f"{MANAGER}value.stream_idle_timeout: ")


def test_filters_inside_filters_are_found() -> None:
    inner = manager()["http_filters"][0]["typed_config"]
    composite = {"@type": "x/some.Matcher", "chain": [{"typed_config": put(inner, "message_timeout", "1s")}]}
    nested = put(put(manager(), "http_filters.0.typed_config", composite), "stream_idle_timeout", "1s")
    assert [one.partition(":")[0] for one in found(bootstrap(nested))] == [
        f"{MANAGER}{FILTER}chain.0.typed_config.message_timeout",
        f"{MANAGER}stream_idle_timeout",
    ]


@pytest.mark.parametrize("ours", [LISTEN, UnixAddress("/run/extproc.sock")])
def test_other_external_processors_may_be_short(ours: Address) -> None:
    short = put(put(manager(), f"{FILTER}message_timeout", "1s"), "stream_idle_timeout", "1s")
    theirs = put(short, f"{FILTER}grpc_service.envoy_grpc.cluster_name", "theirs")
    clusters = [cluster("extproc", ours), cluster("theirs", TcpAddress("10.0.0.1", 9003))]
    both = bootstrap(short, theirs, clusters=clusters)
    assert [one.partition(":")[0].split(".")[2] for one in found(both, ours)] == ["0", "0"]
    # By another port, as behind a service, or by xDS: then it may be ours.
    assert len(found(both, TcpAddress("127.0.0.1", 1))) == 4
    assert len(found(bootstrap(short, theirs, clusters=clusters[:1]), ours)) == 4


@pytest.mark.parametrize(
    ("target", "faults"), [("dns:///extproc:9002", 2), ("10.0.0.1:9003", 0), ("ours", 0), ("x:" + "9" * 5000, 0)]
)
def test_googles_grpc_names_its_target(target: str, faults: int) -> None:
    short = put(put(manager(), f"{FILTER}message_timeout", "1s"), "stream_idle_timeout", "1s")
    google = put(
        put(without(short, "route_config"), "rds", {}), f"{FILTER}grpc_service", {"google_grpc": {"target_uri": target}}
    )
    assert len(found(bootstrap(manager(), google))) == faults


@pytest.mark.parametrize("path", [DURATION, f"{OPTIONS}.{DURATION}"])
def test_the_processors_cluster_may_not_end_its_streams(path: str) -> None:
    short = put(cluster("extproc", LISTEN), path, "31s")
    (fault,) = found(bootstrap(manager(), clusters=[cluster("other", LISTEN), short]))
    assert fault.startswith(f"static_resources.clusters.1.{path}: wanted at least 31.1s or 0s (")
    assert found(bootstrap(manager(), clusters=[put(short, path, "31.1s")])) == []
    short["name"] = "other"
    clusters = [cluster("extproc", LISTEN), short]
    assert found(bootstrap(manager(), clusters=clusters)) == []
    override = {"grpc_service": {"envoy_grpc": {"cluster_name": "other"}}}
    asked = put(manager(), f"{ROUTE}typed_per_filter_config", {"ours": {"@type": PER_ROUTE, "overrides": override}})
    assert len(found(bootstrap(asked, clusters=clusters))) == 1


def test_what_must_be_held_is_the_longest_wait_the_counting_and_a_margin() -> None:
    batch = PriorityClass(queue_ms_max=30_000)
    assert longest_hold({"a": PriorityClass(), "batch": batch, "c": PriorityClass(queue_ms_max=29_999)}, 100) == HOLD
    assert longest_hold({"batch": batch}, 100.1).seconds == 31.2
    assert longest_hold({"a": PriorityClass()}, 20) == Hold(1.1, "counting tokens takes up to 0.02 s")
    assert longest_hold({"a": PriorityClass(queue_ms_max=3_600_000)}, 10_000).seconds == 3611


@pytest.mark.parametrize("name", ["bootstrap.yaml", "demo.yaml"])
def test_the_shipped_bootstraps_let_requests_wait_as_long_as_the_default_classes_do(name: str) -> None:
    settings = Config()
    hold = longest_hold(settings.classes, settings.tokens.token_budget_ms)
    assert faults_in_file(ENVOY / name, hold, settings.listen.extproc) == []


def test_check_reads_bootstraps_beside_the_configuration(tmp_path: Path) -> None:
    ours, good, short = tmp_path / "ours.yaml", tmp_path / "good.json", tmp_path / "short.json"
    ours.write_text("classes: [{name: interactive}, {name: slow, queue_ms_max: 60000}]\ndefault_class: slow\n")
    good.write_text(json.dumps(bootstrap(complete(), clusters=complete_clusters())))
    held = put(complete(), "stream_idle_timeout", "61s")
    short.write_text(json.dumps(bootstrap(held, clusters=complete_clusters())))
    check = ["check", str(ours), "--envoy", str(good)]
    result = CliRunner().invoke(cli.main, check)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "OK\n", "")
    result = CliRunner().invoke(cli.main, [*check, "--envoy", str(short)])
    wanted = "wanted at least 61.1s or 0s (class slow waits up to 60 s), got 61s"
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"{short}: {MANAGER}stream_idle_timeout: {wanted}\n"
