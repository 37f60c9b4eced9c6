"""What `extproc check --envoy` finds of bodies: those that are not seen, refused, or waited for in vain."""

from typing import Any

import pytest

from extproc.config import Config
from extproc.envoycheck.bodies import faults_in
from extproc.envoycheck.file import Warned
from extproc.envoycheck.processors import Processors, processors_of
from tests.bootstraps import (
    EVERYTHING,
    FILTER,
    HOST,
    LISTEN,
    MANAGER,
    MODE,
    ROUTE,
    bootstrap,
    complete,
    complete_clusters,
    configured,
    put,
    without,
)

Json = Any

PLAIN = Config()
BODY, UPGRADES = f"{MODE}.request_body_mode", "upgrade_configs"
LIMIT, OLD_LIMIT = "request_body_buffer_limit", "per_request_buffer_limit_bytes"
SECOND = f"{HOST}routes.1."


def faults(document: Json, settings: Config = PLAIN) -> list[str]:
    processors = processors_of(document, LISTEN)
    assert isinstance(processors, Processors)
    found = dict.fromkeys(faults_in(processors, settings))
    return [f"{'warning: ' * isinstance(one, Warned)}{one}".replace(MANAGER, "") for one in found]


def found(manager: Json, settings: Config = PLAIN) -> list[str]:
    return faults(bootstrap(manager, clusters=complete_clusters()), settings)


def test_what_has_all_that_is_needed_has_no_faults() -> None:
    assert found(complete()) == []
    assert found(complete(), EVERYTHING) == []


@pytest.mark.parametrize(
    ("mode", "plain", "rewriting"),
    [
        ("BUFFERED", None, None),
        (2, None, None),
        ("FULL_DUPLEX_STREAMED", None, None),
        ("BUFFERED_PARTIAL", "BUFFERED, or one route (else Envoy stays on the first one", "'BUFFERED_PARTIAL'"),
        ("STREAMED", "BUFFERED (else the head alone decides: x-model must name the model", "'STREAMED'"),
        (1, "BUFFERED (else the head alone decides: x-model must name the model", "1"),
        ("NONE", "BUFFERED (else the head alone decides: x-model must name the model", "'NONE'"),
        (None, "BUFFERED (else the head alone decides: x-model must name the model", "nothing, so NONE"),
        ([], None, "[]"),
    ],
)
def test_bodies_are_sent_and_whole_where_another_model_is_put_in(
    mode: Json, plain: str | None, rewriting: str | None
) -> None:
    made = put(complete(), BODY, mode)
    told = [one.partition(" wanted ")[2] for one in found(made)]
    assert (told == []) if plain is None else (len(told) == 1 and told[0].startswith(plain))
    alias = f"{BODY}: wanted BUFFERED or FULL_DUPLEX_STREAMED (aliases of policy default), got {rewriting}"
    assert found(made, EVERYTHING) == ([] if rewriting is None else [alias])


def test_a_body_shown_in_part_takes_one_route() -> None:
    """With two the choice is counted and not heard; with one all that is left to say is that it rests on a part."""
    two = put(complete(), BODY, "BUFFERED_PARTIAL")
    warning = "BUFFERED or FULL_DUPLEX_STREAMED (else longer bodies than Envoy's buffer decide by their beginning)"
    part = [f"warning: {BODY}: wanted {warning}, got 'BUFFERED_PARTIAL'"]
    (fault,) = found(two)
    assert fault.startswith(f"{BODY}: wanted BUFFERED, or one route (")
    assert found(put(two, f"{HOST}routes", [{"match": {"prefix": "/"}, "route": {"cluster": "chosen"}}])) == part
    assert found(put(two, f"{SECOND}match.prefix", "/v2/")) == [fault]
    assert found(put(two, f"{ROUTE}match.prefix", "/v2/")) == part, "of other paths"
    for policy in ({"mode": "observe"}, {"destination": "override-host"}):
        assert found(two, configured(policies={"default": policy})) == part


def test_where_the_head_decides_a_header_names_the_model_or_nothing_does() -> None:
    made = put(complete(), BODY, "STREAMED")
    (fault,) = found(made, configured(policies={"default": {"model_header": None}}))
    assert "no model is known" in fault
    assert found(made, configured(policies={"default": {"mode": "off"}})) == []


@pytest.mark.parametrize("skip", ["SKIP", 2])
def test_heads_are_sent(skip: Json) -> None:
    path = f"{MODE}.request_header_mode"
    wanted = "wanted SEND (else a node is chosen before the body is there)"
    assert found(put(complete(), path, skip)) == [f"{path}: {wanted}, got {skip!r}"]
    assert found(put(complete(), path, "DEFAULT")) == []


@pytest.mark.parametrize(
    ("mode", "answers", "is_early"),
    [
        ("NONE", {}, True),
        ("NONE", {"response_header_mode": "SEND"}, True),
        ("FULL_DUPLEX_STREAMED", {"response_trailer_mode": "SKIP"}, True),
        ("NONE", {"response_body_mode": "STREAMED"}, False),
        ("NONE", {"response_trailer_mode": 1}, False),
        ("BUFFERED", {"response_header_mode": "SKIP"}, False),
        ("STREAMED", {}, False),
    ],
)
def test_streams_last_as_long_as_answers(mode: str, answers: Json, is_early: bool) -> None:
    told = [one for one in found(put(complete(), MODE, {"request_body_mode": mode} | answers)) if "trailer" in one]
    assert [one.partition(" (")[0] for one in told] == [f"{MODE}.response_trailer_mode: wanted SEND"] * is_early


def test_bodies_may_be_as_long_as_serve_takes_them() -> None:
    none = without(complete(), f"{HOST}{LIMIT}")
    wanted = "wanted at least 33554432 (limits.body_bytes_max; Envoy answers longer bodies 413)"
    assert found(none) == [f"{HOST}{LIMIT}: {wanted}, got nothing, so 1048576"]
    assert found(none, configured(limits={"body_bytes_max": 1048576})) == []
    for at in (f"{HOST}{LIMIT}", f"{HOST}{OLD_LIMIT}"):
        assert found(put(none, at, 33554432)) == []
        assert found(put(none, at, "33554431")) == [f"{at}: {wanted}, got '33554431'"]
    assert found(put(none, f"{ROUTE}{LIMIT}", 2**30)) == found(none), "of the route that is not the first"
    assert found(put(none, f"{HOST}{LIMIT}", "a lot")) == [], "Envoy refuses it"
    long = bootstrap(none, clusters=complete_clusters())
    assert faults(put(long, "static_resources.listeners.0.per_connection_buffer_limit_bytes", 33554432)) == []
    small = put(long, "static_resources.listeners.0.per_connection_buffer_limit_bytes", 65536)
    assert faults(small) == [f"{HOST}{LIMIT}: {wanted}, got nothing, so 65536"]
    assert found(put(none, BODY, "FULL_DUPLEX_STREAMED")) == []


def test_the_limit_of_a_route_comes_before_the_hosts_and_the_newer_name_before_the_older() -> None:
    none, long, short = without(complete(), f"{HOST}{LIMIT}"), 2**30, 1000
    for first, then in (
        (f"{SECOND}{LIMIT}", f"{HOST}{LIMIT}"),
        (f"{HOST}{LIMIT}", f"{SECOND}{OLD_LIMIT}"),
        (f"{SECOND}{OLD_LIMIT}", f"{HOST}{OLD_LIMIT}"),
    ):
        assert found(put(put(none, first, long), then, short)) == []
        (fault,) = found(put(put(none, then, long), first, short))
        assert fault.startswith(f"{first}: ")


def test_upgrades_need_a_mode_of_their_own() -> None:
    upgrading = put(
        complete(), UPGRADES, [{"upgrade_type": "websocket"}, {"upgrade_type": "CONNECT", "enabled": False}]
    )
    wanted = "wanted true (else upgrades wait in vain for the end of their bodies: websocket), got nothing"
    warning = [f"warning: {FILTER}allow_mode_override: {wanted}"]
    assert found(upgrading) == warning
    assert found(put(upgrading, f"{FILTER}allow_mode_override", True)) == []
    assert found(put(upgrading, BODY, "STREAMED"))[1:] == []
    off = [{"upgrade_type": "WebSocket", "enabled": False}]
    assert found(put(put(upgrading, f"{ROUTE}route.{UPGRADES}", off), f"{SECOND}route.{UPGRADES}", off)) == []
    assert found(put(complete(), f"{SECOND}route.{UPGRADES}", [{"upgrade_type": "websocket"}])) == warning
    router = complete()["http_filters"][1:]
    assert found(put(upgrading, f"{UPGRADES}.0.filters", router)) == []
    ours = put(upgrading, f"{UPGRADES}.0.filters", complete()["http_filters"])
    assert [one.partition(":")[2] for one in found(ours)][:1] == [warning[0].partition(":")[2]]
