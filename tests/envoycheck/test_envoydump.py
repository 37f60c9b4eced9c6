"""Dumps of Envoy's configuration as bootstraps: what belongs together comes together, whatever a dump holds."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from extproc.config import Config
from extproc.core.settings import Fault
from extproc.envoycheck import checks
from extproc.envoycheck import dump as envoydump
from extproc.envoycheck.dump import bootstrap_of, is_dump
from extproc.envoycheck.processors import processors_of
from tests.bootstraps import FILTER, LISTEN, MANAGER, bootstrap, complete, complete_clusters, listener, put

Json = Any

ADMIN = "type.googleapis.com/envoy.admin.v3."
CHAIN = MANAGER.partition("static_resources.listeners.0.")[2]


def dump(**sections: Json) -> Json:
    return {"configs": [{"@type": f"{ADMIN}{name}ConfigDump"} | section for name, section in sections.items()]}


def found(document: Json) -> list[str]:
    processors = processors_of(document, LISTEN)
    if isinstance(processors, Fault):
        return [str(processors)]
    return list(map(str, checks.faults_in(processors, Config())))


WHOLE = bootstrap(put(complete(), f"{FILTER}message_timeout", "1s"), clusters=complete_clusters())
CLUSTERS = {"static_clusters": [{"cluster": one} for one in complete_clusters()]}


def test_static_ones_stand_where_the_bootstrap_has_them() -> None:
    assert found(dump(Bootstrap={"bootstrap": WHOLE})) == found(WHOLE)
    listeners = {"static_listeners": [{"listener": one} for one in WHOLE["static_resources"]["listeners"]]}
    both = dump(Bootstrap={"bootstrap": WHOLE}, Listeners=listeners, Clusters=CLUSTERS)
    assert found(both) == found(dump(Listeners=listeners, Clusters=CLUSTERS)) == found(WHOLE)
    assert len(found(WHOLE)) == 1


def test_of_a_dynamic_listener_the_active_state_counts_and_before_it_the_warming_one() -> None:
    good, bad = listener(complete()), WHOLE["static_resources"]["listeners"][0]
    states = {"active": {"listener": good}, "warming": {"listener": bad}}
    for have, faults in ((["active", "warming"], 0), (["warming"], 1)):
        one = {"name": "a.b"} | {f"{state}_state": states[state] for state in have}
        told = found(dump(Listeners={"dynamic_listeners": [one]}, Clusters=CLUSTERS))
        assert [fault.partition(":")[0] for fault in told] == [
            f"dynamic_resources.listeners.a.b.{CHAIN}{FILTER}message_timeout"
        ] * faults
    (fault,) = found(dump(Listeners={"dynamic_listeners": [{"name": "a", "error_state": {}}]}, Clusters=CLUSTERS))
    assert "wanted a filter of type ExternalProcessor" in fault


def test_tables_are_those_of_their_names() -> None:
    made = complete()
    table = {"name": "table"} | made.pop("route_config")
    made["rds"] = {"route_config_name": "table"}
    listeners = {"static_listeners": [{"listener": listener(made)}]}
    lost = put(table, "virtual_hosts.0.routes.1.route.idle_timeout", "1s")
    for tables, faults in (
        ({"dynamic_route_configs": [{"route_config": lost}]}, 1),
        ({"static_route_configs": [{"route_config": lost}]}, 1),
        ({"dynamic_route_configs": [{"route_config": lost | {"name": "other"}}]}, 0),
        ({}, 0),
    ):
        told = found(dump(Listeners=listeners, Clusters=CLUSTERS, Routes=tables))
        assert len([one for one in told if "routes.1.route.idle_timeout" in one]) == faults


def test_endpoints_are_those_of_their_clusters() -> None:
    cluster, *others = complete_clusters()
    assignment = cluster.pop("load_assignment")
    cluster |= {"eds_cluster_config": {"service_name": "elsewhere"}}
    active = {"dynamic_active_clusters": [{"cluster": one} for one in (cluster, *others)]}
    endpoints = {"dynamic_endpoint_configs": [{"endpoint_config": assignment | {"cluster_name": "elsewhere"}}]}
    made = bootstrap_of(dump(Clusters=active, Endpoints=endpoints))
    joined = made["dynamic_resources"]["clusters"]["extproc"]["load_assignment"]
    assert joined["endpoints"] == assignment["endpoints"]
    assert "load_assignment" not in bootstrap_of(dump(Clusters=active))["dynamic_resources"]["clusters"]["extproc"]


def test_a_table_counts_for_each_manager_that_has_it() -> None:
    made = complete() | {"rds": {"route_config_name": "table"}}
    del made["route_config"]
    table = {"name": "table", "virtual_hosts": [{"name": str(number)} for number in range(5000)]}
    listeners = {"static_listeners": [{"listener": listener(made)}] * 120}
    (fault,) = found(dump(Listeners=listeners, Routes={"dynamic_route_configs": [{"route_config": table}]}))
    assert f"at most {envoydump.VALUES_MAX} values" in fault


NAMES = ["@type", "listener", "cluster", "name", "route_config", "rds", "route_config_name", "static_listeners"]
SECTIONS = ["Bootstrap", "Listeners", "Clusters", "Routes", "Endpoints", "Other"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([*NAMES, "table"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*NAMES, "dynamic_listeners", "active_state", "static_clusters", "static_route_configs"]),
            inner,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(SECTIONS), st.dictionaries(st.sampled_from(NAMES), VALUES)), VALUES)
def test_no_dump_makes_it_fail(sections: dict[str, Json], value: Json) -> None:
    found(dump(**sections))
    found({"configs": [value, {"@type": f"{ADMIN}ListenersConfigDump", "dynamic_listeners": value}]})
    found({"configs": value})


def test_what_has_configs_of_others_is_no_dump() -> None:
    assert is_dump(dump(Bootstrap={}))
    others: list[Json] = [{}, [], None, {"configs": {}}, {"configs": [{"@type": "x/other"}]}, {"configs": [1]}]
    for other in others:
        assert not is_dump(other)
