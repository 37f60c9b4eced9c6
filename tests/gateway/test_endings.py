import pytest
from envoy.data.accesslog.v3.accesslog_pb2 import ResponseFlags
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from extproc.core.outcome import Answered, Ending
from extproc.gateway import endings
from extproc.gateway.accesslog import COUNT_MAX, AnswerEnded

HOST = "10.0.0.1:8000"
FLAGS = [field.name for field in ResponseFlags.DESCRIPTOR.fields if field.name != "unauthorized_details"]
LEFT = "downstream_connection_termination"
REFUSED = "upstream_connection_failure"
CUT = "upstream_connection_termination"


def ended(
    status: int = 200, details: str = "via_upstream", *flags: str, model: str | None = "llama", host: str | None = HOST
) -> AnswerEnded:
    return AnswerEnded("3fa9c1-7", status, details, flags, host, 0.1, 2.0, model, 10, True, 10, 5)


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        (0, Ending.UNTOLD),
        (100, Ending.SERVED),
        (200, Ending.SERVED),
        (404, Ending.SERVED),
        (429, Ending.SERVED),
        (499, Ending.SERVED),
        (500, Ending.ERROR),
        (501, Ending.SERVED),
        (502, Ending.UNREACHABLE),
        (503, Ending.UNREACHABLE),
        (504, Ending.ERROR),
        (505, Ending.ERROR),
        (599, Ending.ERROR),
    ],
)
def test_a_nodes_own_status_tells_how_it_fares(status: int, ending: Ending) -> None:
    assert endings.of_status(status) is ending
    assert endings.of_entry(ended(status)).ending is ending


@pytest.mark.parametrize(
    ("entry", "ending"),
    [
        pytest.param(ended(503, "upstream_reset_before_response_started{}", REFUSED), Ending.UNREACHABLE, id="refused"),
        pytest.param(ended(503, "upstream_reset_before_response_started{}", CUT), Ending.UNREACHABLE, id="broken off"),
        pytest.param(ended(200, "upstream_reset_after_response_started{}", CUT), Ending.UNREACHABLE, id="cut"),
        pytest.param(
            ended(503, "upstream_reset_before_response_started{}", "upstream_remote_reset"),
            Ending.UNREACHABLE,
            id="reset",
        ),
        pytest.param(
            ended(503, "upstream_reset_before_response_started{}", "upstream_retry_limit_exceeded", REFUSED),
            Ending.UNREACHABLE,
            id="refused twice",
        ),
        pytest.param(ended(504, "upstream_response_timeout", "upstream_request_timeout"), Ending.ERROR, id="timed out"),
        pytest.param(ended(503, "no_healthy_upstream", "no_healthy_upstream"), Ending.UNREACHABLE, id="no such host"),
        pytest.param(ended(502, "x", "upstream_protocol_error"), Ending.UNREACHABLE, id="no HTTP"),
        pytest.param(ended(504, "stream_idle_timeout", "stream_idle_timeout"), Ending.ERROR, id="silent"),
        pytest.param(ended(200, "stream_idle_timeout", "stream_idle_timeout"), Ending.UNTOLD, id="silent after a head"),
        pytest.param(ended(0, "downstream_remote_disconnect", LEFT), Ending.UNTOLD, id="the client left"),
        pytest.param(ended(200, "downstream_remote_disconnect", LEFT), Ending.UNTOLD, id="it left later"),
        pytest.param(ended(0, "downstream_remote_disconnect", LEFT, REFUSED), Ending.UNTOLD, id="it left and more"),
        pytest.param(ended(503, "upstream_overflow", "upstream_overflow"), Ending.UNTOLD, id="Envoy's own limit"),
        pytest.param(ended(503, "overload", "overload_manager"), Ending.UNTOLD, id="Envoy's memory"),
        pytest.param(ended(404, "route_not_found", "no_route_found"), Ending.UNTOLD, id="no route"),
        pytest.param(ended(503, "extproc_no_ready_node"), Ending.UNTOLD, id="ours"),
        pytest.param(ended(503, "extproc_no_ready_node", REFUSED), Ending.UNTOLD, id="ours, and a flag"),
        pytest.param(ended(500, "ext_proc_error"), Ending.UNTOLD, id="of the filter"),
        pytest.param(ended(503, "of an Envoy to come"), Ending.UNTOLD, id="unknown"),
        pytest.param(ended(200, "via_upstream", model=None), Ending.UNTOLD, id="good, but no inference"),
        pytest.param(ended(500, "via_upstream", model=None), Ending.UNTOLD, id="an error, but no inference"),
        pytest.param(
            ended(504, "upstream_response_timeout", "upstream_request_timeout", model=None),
            Ending.UNTOLD,
            id="timed out, but no inference",
        ),
        pytest.param(
            ended(504, "stream_idle_timeout", "stream_idle_timeout", model=None),
            Ending.UNTOLD,
            id="silent, but no inference",
        ),
        pytest.param(ended(503, "via_upstream", model=None), Ending.UNREACHABLE, id="bad, and no inference"),
        pytest.param(
            ended(503, "upstream_reset_before_response_started{}", REFUSED, model=None),
            Ending.UNREACHABLE,
            id="refused, and no inference",
        ),
        pytest.param(
            ended(0, "downstream_remote_disconnect", LEFT, model=None), Ending.UNTOLD, id="a poller that left"
        ),
        pytest.param(
            ended(0, "downstream_remote_disconnect", LEFT, REFUSED, model=None),
            Ending.UNTOLD,
            id="a poller that left while nobody could be reached",
        ),
    ],
)
def test_an_entry_tells_how_the_node_fares_or_nothing(entry: AnswerEnded, ending: Ending) -> None:
    assert endings.of_entry(entry).ending is ending


def test_an_entry_goes_on_with_its_node_model_and_tokens_as_a_request_that_is_over() -> None:
    assert endings.of_entry(ended()) == Answered(
        "3fa9c1-7", Ending.SERVED, host=HOST, model="llama", output_tokens=5, over=True, used_tokens=15
    )


@pytest.mark.parametrize(
    ("completion_tokens", "sequences", "output_tokens"),
    [
        (None, 1, None),
        (None, 4, None),
        (0, 1, None),
        (0, 4, None),
        (7, 1, 7),
        (400, 4, 100),
        (7, 4, 2),
        (1, 4, 0),
        (9, 9, 1),
        (COUNT_MAX, 1, COUNT_MAX),
        (COUNT_MAX, COUNT_MAX, 1),
        (5, COUNT_MAX, 0),
    ],
)
def test_of_several_answers_the_length_of_one_is_learned(
    completion_tokens: int | None, sequences: int, output_tokens: int | None
) -> None:
    entry = replace(ended(), completion_tokens=completion_tokens, sequences=sequences)
    assert endings.of_entry(entry).output_tokens == output_tokens


def test_every_flag_that_is_looked_for_is_one_of_envoys() -> None:
    assert endings._BROKEN | endings._SLOW | endings._CLIENT_LEFT | {endings._IDLE} <= set(FLAGS)


@given(
    status=st.just(0) | st.integers(100, 599),
    details=st.sampled_from(["via_upstream", "extproc_overloaded", "stream_idle_timeout", ""]) | st.text(max_size=10),
    flags=st.sets(st.sampled_from(FLAGS), max_size=4),
    model=st.none() | st.text(min_size=1, max_size=3),
)
def test_only_what_a_node_did_counts_against_it(status: int, details: str, flags: set[str], model: str | None) -> None:
    ending = endings.of_entry(ended(status, details, *sorted(flags), model=model)).ending
    if ending in (Ending.ERROR, Ending.UNREACHABLE):
        assert status > 0
        assert not details.startswith("extproc_")
        assert not flags & endings._CLIENT_LEFT
        assert details == "via_upstream" or flags & (endings._BROKEN | endings._SLOW | {endings._IDLE})
        assert model is not None or ending is Ending.UNREACHABLE
    if ending is Ending.SERVED:
        assert (details, model is None) == ("via_upstream", False)
        assert not flags & (endings._BROKEN | endings._SLOW)
