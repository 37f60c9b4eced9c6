"""What `extproc check --envoy` finds of answers that are cut or held, and of ends that `serve` does not hear of."""

from typing import Any

import pytest

from extproc.config import Config
from extproc.envoycheck.answers import faults_in
from extproc.envoycheck.file import Warned
from extproc.envoycheck.processors import Processors, processors_of
from tests.bootstraps import (
    FILTER,
    HOST,
    LISTEN,
    MANAGER,
    MODE,
    PER_ROUTE,
    ROUTE,
    bootstrap,
    cluster,
    complete,
    complete_clusters,
    configured,
    grpc_log,
    own,
    put,
    without,
)

Json = Any

SECOND = f"{HOST}routes.1."
IDLE, LOG, TRAILERS = "stream_idle_timeout", "access_log", f"{MODE}.response_trailer_mode"
OFF = configured(policies={"default": {"mode": "off"}})
OTHERS = [*complete_clusters(), cluster("otel", LISTEN.__class__("127.0.0.1", 4317)), cluster("alias", LISTEN)]


def found(manager: Json, settings: Config = Config(), clusters: Json = OTHERS) -> list[str]:  # noqa: B008 - frozen
    processors = processors_of(bootstrap(manager, clusters=clusters), LISTEN)
    assert isinstance(processors, Processors)
    faults = dict.fromkeys(faults_in(processors, settings))
    return [f"{'warning: ' * isinstance(one, Warned)}{one}".replace(MANAGER, "") for one in faults]


def test_what_is_complete_has_no_faults() -> None:
    assert found(complete()) == []


CUT = "0s, or more than answers take (longer ones are cut, and count against nodes that are well), got nothing, so 15s"
SILENT = "more, as 3600s (answers are cut that an engine's queue or a long prompt keeps silent for so long)"
SHORT = "SEND (else streams of requests without a body end before answers do: they count too short)"
HELD = "NONE, or STREAMED (else answers are held until they are whole)"
UNTOLD = "a HttpGrpcAccessLogConfig to serve (else a node that fails is noticed by {}, answers not measured)"
REPORTS = UNTOLD.format("its agents' reports alone")


@pytest.mark.parametrize(
    ("made", "faults"),
    [
        (without(complete(), f"{ROUTE}route.timeout"), [f"warning: {ROUTE}route.timeout: wanted {CUT}"]),
        (without(complete(), f"{SECOND}route.timeout"), [f"warning: {SECOND}route.timeout: wanted {CUT}"]),
        (put(complete(), f"{ROUTE}route.timeout", "5s"), []),
        (without(complete(), IDLE), [f"warning: {IDLE}: wanted {SILENT}, got nothing, so 300s"]),
        (put(complete(), IDLE, "0s"), []),
        (without(complete(), TRAILERS), [f"warning: {TRAILERS}: wanted {SHORT}, got nothing, so SKIP"]),
        (put(complete(), TRAILERS, "DEFAULT"), [f"warning: {TRAILERS}: wanted {SHORT}, got 'DEFAULT'"]),
        (put(complete(), TRAILERS, 1), []),
        (put(without(complete(), TRAILERS), f"{MODE}.response_body_mode", "STREAMED"), []),
        (put(without(complete(), TRAILERS), f"{MODE}.request_body_mode", "NONE"), []),
        (put(complete(), f"{MODE}.response_body_mode", "BUFFERED"), [f"{MODE}.response_body_mode: wanted {HELD}"]),
        (put(complete(), f"{MODE}.response_body_mode", 3), [f"{MODE}.response_body_mode: wanted {HELD}, got 3"]),
        (without(complete(), LOG), [f"warning: {LOG}: wanted {REPORTS}, got nothing"]),
        (put(complete(), LOG, grpc_log("otel")), [f"warning: {LOG}: wanted {REPORTS}, got others"]),
        (put(complete(), LOG, [{"name": "stdout"}]), [f"warning: {LOG}: wanted {REPORTS}, got others"]),
        (put(complete(), LOG, [*grpc_log("otel"), *grpc_log()]), []),
        (put(complete(), LOG, grpc_log("alias")), []),
        (put(complete(), LOG, grpc_log("not told")), []),
        (
            put(without(complete(), LOG), f"{MODE}.response_header_mode", "SEND"),
            [f"warning: {LOG}: wanted {UNTOLD.format('by heads of answers alone').replace('by by', 'by')}"],
        ),
    ],
)
def test_each_is_told(made: Json, faults: list[str]) -> None:
    told = found(made)
    assert len(told) == len(faults)
    assert all(one.startswith(wanted) for one, wanted in zip(told, faults, strict=True)), told
    assert found(made, OFF) == []


def test_a_routes_own_idle_timeout_stands_for_the_managers() -> None:
    one = put(without(complete(), IDLE), f"{ROUTE}route.idle_timeout", "0s")
    assert len(found(one)) == 1
    assert found(put(one, f"{SECOND}route.idle_timeout", "600s")) == []


def test_routes_without_the_filter_are_let_be() -> None:
    bare = without(without(complete(), f"{ROUTE}route.timeout"), f"{SECOND}route.timeout")
    assert len(found(bare)) == 2
    assert found(put(bare, f"{HOST}typed_per_filter_config.ours", {"@type": PER_ROUTE, "disabled": True})) == []


def test_modes_of_a_route_hold_there() -> None:
    at = f"{SECOND}typed_per_filter_config.ours"
    mode = {"request_body_mode": "BUFFERED", "response_trailer_mode": "SKIP"}
    (fault,) = found(put(complete(), at, own(processing_mode=mode)))
    assert fault.startswith(f"warning: {at}.overrides.processing_mode.response_trailer_mode: ")
    assert found(put(complete(), at.replace("routes.1", "routes.0"), own(processing_mode=mode))) == [], "nobody asks"


def test_a_log_goes_where_the_filter_goes() -> None:
    service = f"{FILTER}grpc_service"
    for target, count in (("extproc:9002", 0), ("dns:///other:9003", 1)):
        google = put(complete(), service, {"google_grpc": {"target_uri": target}})
        assert len(found(google)) == count, target
