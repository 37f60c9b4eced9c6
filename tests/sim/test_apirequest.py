import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.request import Endpoint
from extproc.sim import pseudotokens
from extproc.sim.apirequest import SEQUENCES_MAX, ApiFault, ApiRequest, parse
from extproc.sim.counters import FinishReason
from extproc.sim.sequences import sequences_of

CONTEXT_TOKENS = 1000


def read(endpoint: Endpoint, body: Any) -> ApiRequest | ApiFault:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse(endpoint, raw, "tiny", CONTEXT_TOKENS)


def served(endpoint: Endpoint, **body: Any) -> ApiRequest:
    asked = read(endpoint, body)
    assert isinstance(asked, ApiRequest), asked
    return asked


def refused(endpoint: Endpoint, body: Any) -> ApiFault:
    fault = read(endpoint, body)
    assert isinstance(fault, ApiFault), fault
    return fault


def tokens(asked: ApiRequest) -> list[int]:
    return [pseudotokens.count(prompt) for prompt in asked.prompts]


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("prompt", "counts"),
    [
        ("four" * 10, [10]),
        ("", [1]),
        (["four", "eight by"], [1, 2]),
        ([5, 6, 7], [3]),
        ([[5, 6], [7]], [2, 1]),
        (["four", 5, [6, 7]], [1, 1, 2]),
    ],
)
def test_a_prompt_comes_as_text_texts_or_token_ids(prompt: Any, counts: list[int]) -> None:
    assert tokens(served(Endpoint.COMPLETION, prompt=prompt)) == counts
    assert tokens(served(Endpoint.EMBEDDING, input=prompt)) == counts


def test_content_parts_count_like_plain_content() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    assert served(Endpoint.CHAT, messages=[parts]).prompts == served(Endpoint.CHAT, messages=[said("hello")]).prompts


def test_images_and_tools_count() -> None:
    plain = tokens(served(Endpoint.CHAT, messages=[said("x")]))[0]
    image = {"type": "image_url", "image_url": {"url": "data:" + "A" * 100_000}}
    with_image = {"role": "user", "content": [{"type": "text", "text": "x"}, image]}
    assert tokens(served(Endpoint.CHAT, messages=[with_image]))[0] == plain + 16
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert tokens(served(Endpoint.CHAT, messages=[said("x")], tools=tools))[0] > plain + 5


def test_responses_take_text_or_items_and_instructions() -> None:
    text = served(Endpoint.RESPONSE, input="hello")
    items = served(Endpoint.RESPONSE, input=[{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}])
    assert text.prompts == items.prompts == served(Endpoint.CHAT, messages=[said("hello")]).prompts
    instructed = served(Endpoint.RESPONSE, input="hello", instructions="be kind!", max_output_tokens=5)
    assert tokens(instructed)[0] == tokens(text)[0] + 2
    assert instructed.output_tokens_max == 5


def test_limits_and_switches_are_read() -> None:
    chat = {"messages": [said("x")], "model": "tiny"}
    assert served(Endpoint.CHAT, **chat).output_tokens_max is None
    assert served(Endpoint.CHAT, **chat, max_tokens=7).output_tokens_max == 7
    assert served(Endpoint.CHAT, **chat, max_tokens=7, max_completion_tokens=8).output_tokens_max == 8
    assert served(Endpoint.COMPLETION, prompt="x").output_tokens_max == 16
    assert served(Endpoint.CHAT, **chat, n=3).sequences == 3
    streamed = served(Endpoint.CHAT, **chat, stream=True, stream_options={"include_usage": True}, temperature=0.5)
    assert (streamed.stream, streamed.usage_in_stream) == (True, True)
    assert not served(Endpoint.CHAT, **chat, stream=None, stream_options=None).stream
    assert served(Endpoint.EMBEDDING, input="x", encoding_format="base64").base64


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "body"),
        ([], "body"),
        (b'{"messages": [], "x": ' + b"[" * 100_000, "body.0"),
        ({"messages": "hi"}, "body.messages"),
        ({"messages": [{"content": "hi"}]}, "body.messages[0]"),
        ({"messages": [said("hi")], "max_tokens": 0}, "body.max_tokens"),
        ({"messages": [said("hi")], "max_tokens": "5"}, "body.max_tokens"),
        ({"messages": [said("hi")], "max_tokens": True}, "body.max_tokens"),
        ({"messages": [said("hi")], "n": 0}, "body.n"),
        ({"messages": [said("hi")], "n": SEQUENCES_MAX + 1}, "body.n"),
        ({"messages": [said("hi")], "model": 5}, "body.model"),
        (b"{bad", "body.1"),
        (b"", "body.0"),
        (b'{"messages": [', "body.0"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "body.0"),
    ],
)
def test_a_body_that_cannot_be_read_is_400_naming_the_place(body: Any, param: str) -> None:
    fault = refused(Endpoint.CHAT, body)
    assert (fault.status, fault.kind, fault.param) == (400, "Bad Request", param)
    assert fault.message.startswith("1 validation error:\n  ")


def test_another_model_is_404_in_the_words_of_vllm() -> None:
    fault = refused(Endpoint.CHAT, {"messages": [said("x")], "model": "nope"})
    assert fault == ApiFault(404, "NotFoundError", "The model `nope` does not exist. Valid aliases: tiny.", "model")


def test_a_prompt_must_leave_room_for_one_token() -> None:
    assert tokens(served(Endpoint.COMPLETION, prompt="x" * 4 * 999, max_tokens=1)) == [999]
    fault = refused(Endpoint.COMPLETION, {"prompt": "x" * 4 * 1000, "max_tokens": 1})
    assert (fault.status, fault.kind, fault.param) == (400, "BadRequestError", "input_tokens")
    assert "maximum context length is 1000 tokens" in fault.message
    assert "at least 1001 input tokens" in fault.message
    assert tokens(served(Endpoint.EMBEDDING, input="x" * 4 * 1000)) == [1000]
    assert refused(Endpoint.EMBEDDING, {"input": "x" * 4 * 1001}).param == "input_tokens"


def test_prompt_and_output_together_must_fit() -> None:
    assert served(Endpoint.COMPLETION, prompt="x" * 4 * 900, max_tokens=100).output_tokens_max == 100
    fault = refused(Endpoint.COMPLETION, {"prompt": "x" * 4 * 900, "max_tokens": 101})
    assert (fault.status, fault.param) == (400, "max_tokens")


def test_prompts_times_n_are_bounded() -> None:
    assert served(Endpoint.COMPLETION, prompt=["x"] * 64, n=2).sequences == 2
    assert refused(Endpoint.COMPLETION, {"prompt": ["x"] * 65, "n": 2}).param == "n"
    assert refused(Endpoint.COMPLETION, {"prompt": []}).param == "n"


@given(
    st.sampled_from(Endpoint),
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["messages", "prompt", "input", "role", "content", "text", "n", "max_tokens", "tools"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
)
def test_no_body_makes_parsing_fail(endpoint: Endpoint, body: Any) -> None:
    assert isinstance(read(endpoint, body), ApiRequest | ApiFault)


def test_an_allowed_length_is_the_answers_length_up_to_the_bound() -> None:
    def planned(output_tokens_max: int, **body: Any) -> tuple[int, FinishReason]:
        (sequence,) = sequences_of(served(Endpoint.COMPLETION, **body), "id", CONTEXT_TOKENS, output_tokens_max)
        assert len(sequence.choice.pieces) == sequence.request.output_tokens
        return sequence.request.output_tokens, sequence.request.finish

    assert planned(50, prompt="x", max_tokens=50) == (50, FinishReason.LENGTH)
    assert planned(49, prompt="x", max_tokens=50) == (49, FinishReason.STOP)


def test_without_a_limit_the_prompt_decides_the_length() -> None:
    lengths = set()
    for index in range(20):
        asked = served(Endpoint.CHAT, messages=[said(f"question {index}")])
        first, again = (sequences_of(asked, "id", CONTEXT_TOKENS, 4096) for _ in range(2))
        assert first == again
        assert first[0].request.finish is FinishReason.STOP
        lengths.add(first[0].request.output_tokens)
    assert len(lengths) > 10
    assert min(lengths) >= 32
    nearly_full = served(Endpoint.CHAT, messages=[said("x" * 4 * 980)])
    (cut,) = sequences_of(nearly_full, "id", CONTEXT_TOKENS, 4096)
    assert cut.request.finish is FinishReason.LENGTH
    assert cut.request.prompt_tokens + cut.request.output_tokens == CONTEXT_TOKENS


def test_the_next_turn_of_a_conversation_begins_with_the_blocks_of_the_last() -> None:
    question = said("tell me something " * 8)
    (turn,) = sequences_of(served(Endpoint.CHAT, messages=[question], max_tokens=100), "a", CONTEXT_TOKENS, 4096)
    answer = {"role": "assistant", "content": turn.choice.text}
    follow_up = served(Endpoint.CHAT, messages=[question, answer, said("more")], max_tokens=1)
    (next_turn,) = sequences_of(follow_up, "b", CONTEXT_TOKENS, 4096)
    assert len(turn.request.block_keys) == (turn.request.prompt_tokens + 100) // 16
    assert list(next_turn.request.block_keys)[: len(turn.request.block_keys)] == list(turn.request.block_keys)


def test_several_answers_are_sequences_of_their_own_over_one_prompt() -> None:
    asked = served(Endpoint.COMPLETION, prompt=["first prompt " * 8, "second"], n=2, max_tokens=20)
    sequences = sequences_of(asked, "id", CONTEXT_TOKENS, 4096)
    assert [sequence.request.request_id for sequence in sequences] == ["id-0", "id-1", "id-2", "id-3"]
    assert len({sequence.choice.text for sequence in sequences}) == 4
    assert sequences[0].request.block_keys == sequences[1].request.block_keys
    assert len(sequences[0].request.block_keys) == 1
