"""What `extproc check --envoy` says of workers and endpoints."""

import re
from typing import Any

import pytest

from extproc.config import Config, parse
from extproc.envoycheck.file import Warned
from extproc.envoycheck.processors import Processors, processors_of
from extproc.envoycheck.workers import faults_in
from tests.bootstraps import LISTEN
from tests.rendered import mapping_of, rendered


def faults(rendered_for: dict[str, Any], **config: Any) -> list[str]:
    settings = parse(config)
    assert isinstance(settings, Config), settings
    found = processors_of(mapping_of(rendered(**rendered_for)), settings.listen.extproc)
    assert isinstance(found, Processors)
    told = [f"{'warning: ' * isinstance(one, Warned)}{one}" for one in faults_in(found, settings)]
    return [re.sub(r"static_resources\.clusters\.\d+\.", "", one) for one in told]


def endpoints(workers: int, *processor: str) -> dict[str, Any]:
    return {"processor": list(processor or [str(LISTEN)]), "workers": workers}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_as_many_endpoints_as_workers_have_no_fault(workers: int) -> None:
    assert faults(endpoints(workers), workers=workers) == []


def test_workers_without_an_endpoint_are_named() -> None:
    (said,) = faults(endpoints(1), workers=3)
    assert said == (
        "load_assignment: wanted 127.0.0.1:9012, 127.0.0.1:9022 as well "
        "(workers is 3: who has no endpoint gets no request), got 127.0.0.1:9002 and not these"
    )


def test_endpoints_without_a_worker_are_named() -> None:
    (said,) = faults(endpoints(2), workers=1)
    assert said.startswith("warning: load_assignment.endpoints.0.lb_endpoints.1.endpoint.address: wanted no endpoint ")
    assert said.endswith("(workers is 1), got 127.0.0.1:9012")


def test_every_host_of_a_serve_counts_by_itself() -> None:
    only_one = {"processor": ["a:9002", "a:9012", "b:9002"]}
    (said,) = faults(only_one, workers=2)
    assert "wanted b:9012 as well" in said
    assert faults(endpoints(2, "a:9002", "b:9002"), workers=2) == []


def test_paths_are_known_too_and_any_port_says_nothing() -> None:
    unix = {"listen": {"extproc": "unix:/run/e"}}
    assert faults(endpoints(2, "unix:/run/e"), workers=2, **unix) == []
    assert "wanted /run/e.1 as well" in faults(endpoints(1, "unix:/run/e"), workers=2, **unix)[0]
    assert faults(endpoints(1), workers=2, listen={"extproc": "127.0.0.1:0"}) == []


def test_a_host_that_has_only_another_worker_lacks_the_first() -> None:
    (said,) = faults({"processor": ["127.0.0.1:9012"]}, workers=2)
    assert "wanted 127.0.0.1:9002 as well" in said
    assert said.endswith("got 127.0.0.1:9012 and not these")


@pytest.mark.parametrize(
    "processor", [["127.0.0.1:26000"], ["[::1]:26000"], ["unix:/run/other"], ["127.0.0.1:26000", "unix:/run/other"]]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_an_envoy_that_asks_only_others_on_its_own_machine_is_a_fault(processor: list[str], workers: int) -> None:
    (said,) = faults({"processor": processor}, workers=workers)
    assert said.startswith("load_assignment: wanted 127.0.0.1:9002 among them (listen.extproc: else nobody asks serve)")
    assert said.endswith("got " + ", ".join(processor).replace("unix:", "").replace("[::1]", "::1"))


def test_it_is_a_warning_where_serve_listens_for_other_machines_too() -> None:
    anywhere = {"listen": {"extproc": "0.0.0.0:9002", "insecure": True}}
    (said,) = faults({"processor": ["127.0.0.1:26000"]}, **anywhere)  # as by a container's published port
    assert said.startswith("warning: load_assignment: wanted 0.0.0.0:9002 among them")


@pytest.mark.parametrize("processor", [["extproc:26000"], ["10.0.0.1:26000"], ["127.0.0.1:26000", "10.0.0.1:9002"]])
def test_ports_of_other_machines_may_be_told_otherwise(processor: list[str]) -> None:
    assert faults({"processor": processor}) == []
