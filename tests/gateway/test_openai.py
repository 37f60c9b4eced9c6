from typing import Any

import pytest

from extproc.core.request import Endpoint, Prompt
from extproc.gateway.openai import (
    SEQUENCES_MAX,
    WHOLE_MAX,
    endpoint_of,
)
from tests.gateway.bodies import CHAT, COMPLETION, EMBEDDING, RESPONSE, parsed


@pytest.mark.parametrize(
    ("method", "path", "endpoint"),
    [
        ("POST", "/v1/chat/completions", CHAT),
        ("POST", "/v1/completions", COMPLETION),
        ("POST", "/v1/embeddings", EMBEDDING),
        ("POST", "/v1/responses", RESPONSE),
        ("POST", "/batch/v1/chat/completions", CHAT),
        ("POST", "/v1/chat/completions?api-version=1", CHAT),
        ("POST", "/v1/models?next=/v1/completions", None),
        ("GET", "/v1/chat/completions", None),
        ("post", "/v1/completions", None),
        ("POST", "/v1/chat/completions/", None),
        ("POST", "/v1/responses/resp_1/cancel", None),
        ("POST", "/chat/completions", None),
        ("POST", "completions", None),
        ("POST", "/tokenize", None),
        ("POST", "", None),
        ("", "", None),
    ],
)
def test_the_endpoint_is_told_by_method_and_end_of_path(method: str, path: str, endpoint: Endpoint | None) -> None:
    assert endpoint_of(method, path) is endpoint


@pytest.mark.parametrize(
    ("endpoint", "fields", "prompt"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}, Prompt(("hi",), messages=1)),
        (CHAT, {"messages": []}, Prompt()),
        (CHAT, {"messages": [{"content": None}, {}]}, Prompt(messages=2)),
        (
            CHAT,
            {
                "messages": [
                    {
                        "content": [
                            {"type": "text", "text": "look"},
                            "plain",
                            {"type": "image_url", "image_url": {"url": "data:…"}},
                            {"type": "input_audio", "input_audio": {}},
                            {"type": "file", "file": {}},
                            {"type": "refusal", "refusal": "no"},
                        ]
                    }
                ]
            },
            Prompt(("look", "plain", "no"), messages=1, media_parts=3),
        ),
        (
            CHAT,
            {"messages": [{"content": None, "tool_calls": [{"id": "1"}]}], "tools": [{"name": "f"}]},
            Prompt(('[{"id": "1"}]', '[{"name": "f"}]'), messages=1),
        ),
        (CHAT, {"messages": [{"content": "a", "tool_calls": None}], "tools": None}, Prompt(("a",), messages=1)),
        (COMPLETION, {"prompt": "one"}, Prompt(("one",))),
        (COMPLETION, {"prompt": ["one", "two"]}, Prompt(("one", "two"))),
        (COMPLETION, {"prompt": [1, 2, 3]}, Prompt(token_ids=3)),
        (COMPLETION, {"prompt": [[1, 2], [3]]}, Prompt(token_ids=3)),
        (COMPLETION, {"prompt": [[1, "x"], "y", 4]}, Prompt(("x", "y"), token_ids=2)),
        (COMPLETION, {"prompt": [{"prompt_string": "x", "multimodal_data": []}]}, Prompt(media_parts=1)),
        (COMPLETION, {"prompt": None}, Prompt()),
        (COMPLETION, {}, Prompt()),
        (EMBEDDING, {"input": ["one", "two"]}, Prompt(("one", "two"))),
        (EMBEDDING, {"input": [[1], [2]]}, Prompt(token_ids=2)),
        (EMBEDDING, {"messages": [{"content": "hi"}]}, Prompt(("hi",), messages=1)),
        (RESPONSE, {"input": "hi", "instructions": "be brief"}, Prompt(("be brief", "hi"), messages=1)),
        (
            RESPONSE,
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}]},
                    {"type": "function_call", "arguments": '{"x": 1}'},
                    {"type": "function_call_output", "output": 'a "quoted" word'},
                ],
                "tools": [{"type": "function"}],
            },
            Prompt(("a", '{"x": 1}', 'a "quoted" word', '[{"type": "function"}]'), messages=3, media_parts=1),
        ),
    ],
)
def test_every_shape_of_prompt_is_gathered(endpoint: Endpoint, fields: dict[str, Any], prompt: Prompt) -> None:
    assert parsed(endpoint, **fields).prompt == prompt


def test_tools_count_as_characters_and_not_as_escapes() -> None:
    body = parsed(CHAT, messages=[], tools=[{"description": "天気予報"}])
    assert body.prompt.texts == ('[{"description": "天気予報"}]',)


@pytest.mark.parametrize(
    ("endpoint", "fields", "output_tokens_max"),
    [
        (CHAT, {}, None),
        (CHAT, {"max_tokens": 7}, 7),
        (CHAT, {"max_tokens": None}, None),
        (CHAT, {"max_tokens": 7, "max_completion_tokens": 5}, 5),
        (CHAT, {"max_tokens": 7, "max_completion_tokens": None}, 7),
        (CHAT, {"max_tokens": 7.0}, 7),
        (CHAT, {"max_tokens": "7"}, 7),
        (CHAT, {"max_tokens": 0}, 0),
        (CHAT, {"max_tokens": -1}, None),
        (CHAT, {"max_tokens": WHOLE_MAX}, WHOLE_MAX),
        (CHAT, {"max_tokens": WHOLE_MAX + 1}, WHOLE_MAX),
        (CHAT, {"max_tokens": 10**60}, WHOLE_MAX),
        (CHAT, {"max_tokens": -(10**60)}, None),
        (CHAT, {"max_output_tokens": "no field of this endpoint"}, None),
        (RESPONSE, {"max_output_tokens": 9}, 9),
        (EMBEDDING, {"max_tokens": 9}, 0),
    ],
)
def test_the_limit_on_the_answer_is_read(
    endpoint: Endpoint, fields: dict[str, Any], output_tokens_max: int | None
) -> None:
    messages: dict[str, Any] = {"messages": []} if endpoint is CHAT else {}
    assert parsed(endpoint, **messages, **fields).output_tokens_max == output_tokens_max


@pytest.mark.parametrize(
    ("n", "sequences"),
    [(None, 1), (1, 1), (4, 4), (0, 1), (-3, 1), ("2", 2), (128, 128), (129, SEQUENCES_MAX), (1e12, SEQUENCES_MAX)],
)
def test_n_is_the_number_of_sequences(n: object, sequences: int) -> None:
    assert parsed(CHAT, messages=[], n=n).sequences == sequences


@pytest.mark.parametrize(
    ("endpoint", "fields", "sequences"),
    [
        (COMPLETION, {"prompt": "one", "n": 3}, 3),
        (COMPLETION, {"prompt": [1, 2], "n": 3}, 3),
        (COMPLETION, {"prompt": ["one", "two"]}, 2),
        (COMPLETION, {"prompt": ["one", "two"], "n": 3}, 6),
        (COMPLETION, {"prompt": [[1], [2]], "n": 3}, 6),
        (COMPLETION, {"prompt": [], "n": 3}, 3),
        (COMPLETION, {"prompt": ["one"] * 64, "n": 2}, SEQUENCES_MAX),
        (COMPLETION, {"prompt": ["one"] * 43, "n": 3}, SEQUENCES_MAX),
        (EMBEDDING, {"input": ["one", "two"]}, 2),
    ],
)
def test_each_prompt_of_a_batch_is_n_sequences(endpoint: Endpoint, fields: dict[str, Any], sequences: int) -> None:
    assert parsed(endpoint, **fields).sequences == sequences


@pytest.mark.parametrize(
    ("endpoint", "fields", "binds"),
    [
        (COMPLETION, {"prompt": "one"}, True),
        (COMPLETION, {"prompt": ["one"]}, True),
        (COMPLETION, {"prompt": ["one", "two"]}, False),
        (COMPLETION, {"prompt": [1, 2, 3]}, True),
        (COMPLETION, {"prompt": [[1, 2, 3]]}, True),
        (COMPLETION, {"prompt": [[1], [2]]}, False),
        (EMBEDDING, {"input": ["one", "two"]}, False),
        (EMBEDDING, {"input": "one", "truncate_prompt_tokens": 512}, False),
        (RESPONSE, {"input": "one", "truncation": "auto"}, False),
        (RESPONSE, {"input": "one", "truncation": None}, True),
    ],
)
def test_a_batch_or_a_truncated_prompt_is_bound_by_no_context_length(
    endpoint: Endpoint, fields: dict[str, Any], binds: bool
) -> None:
    assert parsed(endpoint, **fields).length_binds is binds
