"""What `extproc check --envoy` finds of bodies whose parts reach nodes twice: seen in e2e/test_modes_*.py."""

from typing import Any

import pytest
import yaml

from extproc.config import Config
from extproc.envoycheck import checks
from extproc.envoycheck.file import Warned
from extproc.envoycheck.processors import Processors, processors_of
from extproc.envoycheck.twice import faults_in
from tests.bootstraps import (
    FILTER,
    HOST,
    LISTEN,
    MANAGER,
    MODE,
    ROUTE,
    bootstrap,
    complete,
    complete_clusters,
    own,
    put,
)
from tests.rendered import rendered

Json = Any

BODY, SECOND = f"{MODE}.request_body_mode", f"{HOST}routes.1."
RETRIES = {"retry_on": "reset", "num_retries": 1}
MODES = ("BUFFERED", "BUFFERED_PARTIAL", "STREAMED", "FULL_DUPLEX_STREAMED", "NONE")
ON_FAILURE = ("BUFFERED_PARTIAL", "STREAMED")


def found(manager: Json) -> list[str]:
    processors = processors_of(bootstrap(manager, clusters=complete_clusters()), LISTEN)
    assert isinstance(processors, Processors)
    faults = list(faults_in(processors))
    assert all(isinstance(one, Warned) for one in faults)
    return [str(one).replace(MANAGER, "").partition(", got ")[0] for one in faults]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("trailers", [True, False])
def test_retries_are_told_where_they_break_bodies(mode: str, trailers: bool) -> None:
    made = put(put(complete(), BODY, mode), "http_protocol_options", {"enable_trailers": trailers})
    assert found(made) == []
    told = found(put(made, f"{ROUTE}route.retry_policy", RETRIES))
    if mode in ON_FAILURE:
        why = f"with {mode} what has gone on of a body reaches the node twice when serve fails during an upload"
        assert told == [f"{ROUTE}route.retry_policy: wanted nothing ({why})"]
    elif mode == "FULL_DUPLEX_STREAMED" and trailers:
        why = "with FULL_DUPLEX_STREAMED and enable_trailers Envoy sends bodies twice that have trailers"
        assert told == [f"{ROUTE}route.retry_policy: wanted nothing ({why})"]
    else:
        assert told == []


def test_the_retries_that_count_are_the_routes_or_else_the_hosts() -> None:
    streamed = put(complete(), BODY, "STREAMED")
    host = put(streamed, f"{HOST}retry_policy", RETRIES)
    assert [one.partition(":")[0] for one in found(host)] == [f"{HOST}retry_policy"] * 2
    off = put(host, f"{ROUTE}route.retry_policy", {"num_retries": 1})
    assert len(found(off)) == 1, "no reason to retry"
    typed = put(streamed, f"{SECOND}route.retry_policy_typed_config", {"@type": "x/y"})
    assert [one.partition(":")[0] for one in found(typed)] == [f"{SECOND}route.retry_policy_typed_config"]


def test_where_nothing_goes_on_without_serve_nothing_goes_on_twice() -> None:
    retried = put(put(complete(), BODY, "STREAMED"), f"{SECOND}route.retry_policy", RETRIES)
    assert found(put(retried, f"{FILTER}failure_mode_allow", False)) == []
    ours = own(processing_mode={"request_body_mode": "BUFFERED"})
    assert found(put(retried, f"{SECOND}typed_per_filter_config.ours", ours)) == []


@pytest.mark.parametrize("mode", ["buffered", "full-duplex", "streamed", "buffered-partial", "none"])
def test_of_what_is_rendered_only_a_failover_that_was_asked_for_is_told(mode: str) -> None:
    def told(**changes: Json) -> list[str]:
        processors = processors_of(yaml.safe_load(rendered(body_mode=mode, **changes)), LISTEN)
        assert isinstance(processors, Processors)
        return [str(one) for one in checks.faults_in(processors, Config()) if " twice" in str(one)]

    assert told(fail_open=mode != "buffered-partial") == []
    if mode != "buffered-partial":
        assert bool(told(failover=True)) == (mode == "streamed")
