"""What is read of an access log's entry, whatever it says."""

import math
from typing import Any

import pytest
from envoy.data.accesslog.v3.accesslog_pb2 import AccessLogType, HTTPAccessLogEntry
from hypothesis import given
from hypothesis import strategies as st

from extproc.gateway.accesslog import COUNT_MAX, SECONDS_MAX, AnswerEnded, read
from tests.gateway.entries import ENDED, OURS, entry


def test_an_entry_is_read() -> None:
    assert read(entry()) == ENDED


def test_a_client_that_left_and_a_request_that_no_node_saw_leave_fields_empty() -> None:
    made = HTTPAccessLogEntry()
    made.common_properties.metadata.filter_metadata["extproc"].update({"request_id": "a-1"})
    assert read(made) == AnswerEnded("a-1", 0, "", (), None, None, None, None, None, False, None, None)


def test_an_ipv6_upstream_stands_in_brackets() -> None:
    made = entry()
    made.common_properties.upstream_remote_address.socket_address.address = "fd00::7"
    assert read(made).upstream_host == "[fd00::7]:8000"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "ours",
    [None, {}, {"node": "gpu-1"}, {"request_id": ""}, {"request_id": 7}, {"request_id": "x" * 65}],
    ids=["no metadata", "empty", "no id", "an empty id", "a number for an id", "an id too long"],
)
def test_what_is_not_of_a_request_of_ours_is_not_read(ours: dict[str, Any] | None) -> None:
    assert read(entry(ours)) is None


@pytest.mark.parametrize("kind", sorted(set(AccessLogType.values()) - {AccessLogType.NotSet}))
def test_only_the_end_of_a_request_is_read(kind: int) -> None:
    made = entry()
    made.common_properties.access_log_type = kind
    assert (read(made) is not None) == (kind == AccessLogType.DownstreamEnd)


def test_an_envoy_that_does_not_name_its_entries_is_read() -> None:
    made = entry()
    made.common_properties.access_log_type = AccessLogType.NotSet
    assert read(made) == ENDED


@pytest.mark.parametrize(
    "told", [-1, -0.5, 1.5, 1e300, math.inf, -math.inf, math.nan, COUNT_MAX + 1, "7", True, None, {}, []]
)
def test_a_count_that_cannot_be_true_is_not_known(told: Any) -> None:
    ended = read(entry(OURS | {"tokens": told}, {"prompt_tokens": told, "completion_tokens": told}))
    assert ended is not None
    assert (ended.counted_tokens, ended.prompt_tokens, ended.completion_tokens) == (None, None, None)


@pytest.mark.parametrize("told", [0, 1, COUNT_MAX])
def test_every_count_that_can_be_true_is_taken(told: int) -> None:
    ended = read(entry(OURS | {"tokens": told}, {"prompt_tokens": told, "completion_tokens": told}))
    assert ended is not None
    assert (ended.counted_tokens, ended.prompt_tokens, ended.completion_tokens) == (told, told, told)


@pytest.mark.parametrize("told", [0, -4, 1.5, 1e300, math.inf, math.nan, COUNT_MAX + 1, "4", True, None, {}, []])
def test_a_number_of_answers_that_cannot_be_true_is_one(told: Any) -> None:
    assert read(entry(OURS | {"sequences": told})).sequences == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("told", [1, 4, COUNT_MAX])
def test_every_number_of_answers_that_can_be_true_is_taken(told: int) -> None:
    assert read(entry(OURS | {"sequences": told})).sequences == told  # type: ignore[union-attr]


def test_an_entry_that_tells_no_number_of_answers_is_of_one() -> None:
    ours = {key: value for key, value in OURS.items() if key != "sequences"}
    assert read(entry(ours)).sequences == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("told", [False, "true", 1, None])
def test_only_what_is_said_to_be_exact_was_counted_exactly(told: Any) -> None:
    assert read(entry(OURS | {"tokens_exact": told})).counted_exactly is False  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("told", "model"),
    [("m" * 256, "m" * 256), ("m" * 257, None), ("", None), (7, None), (None, None), ({"a": "b"}, None)],
)
def test_a_models_name_is_taken_whole_or_not_at_all(told: Any, model: str | None) -> None:
    assert read(entry(OURS | {"model": told})).model == model  # type: ignore[union-attr]


def test_every_flag_of_envoys_is_told_by_its_name() -> None:
    made = entry()
    flags = made.common_properties.response_flags
    flags.unauthorized_details.reason = 1  # the one that is no flag
    names = [field.name for field in flags.DESCRIPTOR.fields if field.name != "unauthorized_details"]
    for name in names:
        setattr(flags, name, True)
    assert sorted(read(made).flags) == sorted(names)  # type: ignore[union-attr]


@pytest.mark.parametrize(("told", "status"), [(99, 0), (100, 100), (599, 599), (600, 0)])
def test_a_status_that_http_does_not_have_is_none(told: int, status: int) -> None:
    made = entry()
    made.response.response_code.value = told
    assert read(made).status == status  # type: ignore[union-attr]


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(
    ours=st.fixed_dictionaries(
        {"request_id": st.just("a-1") | VALUES},
        optional=dict.fromkeys(("model", "tokens", "tokens_exact", "sequences"), VALUES),
    ),
    usage=st.fixed_dictionaries({}, optional={"prompt_tokens": VALUES, "completion_tokens": VALUES}),
    seconds=st.integers(-(2**63), 2**63 - 1),
    nanos=st.integers(-(2**31), 2**31 - 1),
    status=st.integers(0, 2**32 - 1),
    port=st.integers(0, 2**32 - 1),
    text=st.text(max_size=300) | st.just("x" * 300),
)
def test_whatever_an_entry_says_its_value_is_within_bounds(
    ours: dict[str, Any], usage: dict[str, Any], seconds: int, nanos: int, status: int, port: int, text: str
) -> None:
    made = entry(ours, usage)
    common = made.common_properties
    common.duration.seconds, common.duration.nanos = seconds, nanos
    common.time_to_first_upstream_rx_byte.seconds, common.time_to_first_upstream_rx_byte.nanos = seconds, nanos
    common.upstream_remote_address.socket_address.address = text
    common.upstream_remote_address.socket_address.port_value = port
    made.response.response_code.value = status
    made.response.response_code_details = text
    ended = read(made)
    if ended is None:
        return
    assert 0 < len(ended.request_id) <= 64
    assert ended.status == 0 or 100 <= ended.status <= 599
    assert len(ended.details) <= 128
    assert ended.upstream_host is None or len(ended.upstream_host) <= 150
    assert ended.model is None or 0 < len(ended.model) <= 256
    for seconds_told in (ended.first_byte_s, ended.duration_s):
        assert seconds_told is None or 0 <= seconds_told <= SECONDS_MAX
    for tokens in (ended.counted_tokens, ended.prompt_tokens, ended.completion_tokens):
        assert tokens is None or (type(tokens) is int and 0 <= tokens <= COUNT_MAX)
    assert type(ended.sequences) is int
    assert 1 <= ended.sequences <= COUNT_MAX


@pytest.mark.parametrize(
    ("attempts", "chosen", "failed"),
    [
        (0, "10.0.0.9:80", None),
        (1, "10.0.0.9:80", None),
        (2, "10.0.0.9:80", "10.0.0.9:80"),
        (3, "10.0.0.9:80", "10.0.0.9:80"),
        (2, "10.0.0.1:8000", None),
        (2, "", None),
        (2, "x" * 129, None),
    ],
)
def test_the_chosen_host_failed_where_envoy_tried_again_and_came_to_another(
    attempts: int, chosen: str, failed: str | None
) -> None:
    told = entry(OURS | {"host": chosen})
    told.common_properties.upstream_request_attempt_count = attempts
    ended = read(told)
    assert ended is not None
    assert ended.failed_host == failed
    assert ended.unheeded == (attempts < 2 and chosen == "10.0.0.9:80")
    told.common_properties.metadata.filter_metadata["extproc"].update({"outcome": "observed"})
    watched = read(told)
    assert watched is not None
    assert not watched.unheeded, "nothing was asked of Envoy"
    told.common_properties.upstream_remote_address.Clear()
    nobody = read(told)
    assert nobody is not None
    assert nobody.failed_host is None, "nobody else was reached"
