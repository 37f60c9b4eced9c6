"""What replies change of a request: its headers, its body, and whether the body is wanted at all."""

import re
from pathlib import Path

import pytest
import yaml
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingResponse

from extproc.gateway import answers
from extproc.gateway.codec import reply_of
from extproc.gateway.conversation import Continue, SetDestination


def headers_set(reply: ProcessingResponse) -> dict[str, bytes]:
    kind = str(reply.WhichOneof("response"))
    mutation = (
        reply.immediate_response.headers
        if kind == "immediate_response"
        else getattr(reply, kind).response.header_mutation
    )
    return {one.header.key: one.header.raw_value for one in mutation.set_headers}


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff" * 3])
def test_another_body_goes_with_its_length_for_envoy_keeps_the_old_one(body: bytes) -> None:
    chosen = reply_of(SetDestination(("10.0.0.1:80",), "original-dst", {"node": "a"}, body), "request_body")
    length = str(len(body)).encode()
    assert headers_set(chosen) == {"x-envoy-original-dst-host": b"10.0.0.1:80", "content-length": length}
    assert chosen.request_body.response.clear_route_cache
    continued = reply_of(Continue({}, body), "request_body")
    assert headers_set(continued) == {"content-length": length}
    for reply in (chosen, continued):
        mutation = ProcessingResponse.FromString(reply.SerializeToString()).request_body.response.body_mutation
        assert (mutation.WhichOneof("mutation"), mutation.body) == ("body", body)


def test_the_body_that_came_goes_on_untouched() -> None:
    for action in (SetDestination(("10.0.0.1:80",), "original-dst", {}), Continue()):
        reply = reply_of(action, "request_body")
        assert not reply.request_body.response.HasField("body_mutation")
        assert "content-length" not in headers_set(reply)


@pytest.mark.parametrize("name", ["bootstrap", "demo"])
def test_the_shipped_rules_let_every_header_of_ours_pass(name: str) -> None:
    shipped = yaml.safe_load((Path(__file__).parent.parent.parent / "envoy" / f"{name}.yaml").read_text())
    (filters,) = shipped["static_resources"]["listeners"][0]["filter_chains"]
    *_, ext_proc, _ = filters["filters"][0]["typed_config"]["http_filters"]
    allowed = ext_proc["typed_config"]["mutation_rules"]["allow_expression"]["regex"]
    quota = tuple((f"x-ratelimit-{what}-tokens", "1") for what in ("limit", "remaining", "reset"))
    refused = answers.error(answers.RATE_LIMITED, "", None, 1, {}, quota)
    ours = {
        **headers_set(reply_of(SetDestination(("10.0.0.1:80",), "original-dst", {}, b"{}"), "request_body")),
        **headers_set(reply_of(refused, "request_body")),
    }
    assert len(ours) == 7
    for header in ours:
        assert re.fullmatch(allowed, header), header
    assert not re.fullmatch(allowed, "authorization")


@pytest.mark.parametrize(
    "action", [SetDestination(("10.0.0.1:80",), "original-dst", {}, body_wanted=False), Continue(body_wanted=False)]
)
def test_a_body_that_nobody_wants_is_not_shown_nor_is_the_answer(action: Continue | SetDestination) -> None:
    mode = reply_of(action, "request_headers").mode_override
    assert (mode.request_header_mode, mode.request_body_mode) == (ProcessingMode.SEND, ProcessingMode.NONE)
    assert (mode.response_header_mode, mode.response_body_mode) == (ProcessingMode.SKIP, ProcessingMode.NONE)
    assert (mode.request_trailer_mode, mode.response_trailer_mode) == (ProcessingMode.DEFAULT, ProcessingMode.SKIP)
    assert not reply_of(action, "request_body").HasField("mode_override"), "it is there already"


@pytest.mark.parametrize("action", [SetDestination(("10.0.0.1:80",), "original-dst", {}), Continue()])
def test_else_the_mode_stays_as_it_is(action: Continue | SetDestination) -> None:
    assert not reply_of(action, "request_headers").HasField("mode_override")
