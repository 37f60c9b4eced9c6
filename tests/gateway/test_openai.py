from typing import Any

import pytest
from msgspec import Raw

from extproc.core.request import Endpoint
from extproc.gateway.openai import (
    SEQUENCES_MAX,
    WHOLE_MAX,
    endpoint_of,
)
from extproc.prompt import NO_MEDIA, Media, Prompt, texts_of
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


IMAGE, AUDIO = {"type": "image_url", "image_url": {"url": "data:…"}}, {"type": "input_audio", "input_audio": {}}
VIDEO, FILE = {"type": "video_url", "video_url": {}}, {"type": "file", "file": {}}
SAID = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("endpoint", "fields", "prompt"),
    [
        (COMPLETION, {"prompt": "one"}, Prompt(("one",))),
        (COMPLETION, {"prompt": "one", "add_special_tokens": False}, Prompt(("one",), add_special_tokens=False)),
        (COMPLETION, {"prompt": "one", "add_special_tokens": "no"}, Prompt(("one",), as_usual=False)),
        (COMPLETION, {"prompt": ["one", "two"]}, Prompt(("one", "two"), prompts=2)),
        (COMPLETION, {"prompt": [1, 2, 3]}, Prompt(token_ids=3, ids=(1, 2, 3))),
        (COMPLETION, {"prompt": [[1, 2], [3]]}, Prompt(token_ids=3, prompts=2)),
        (COMPLETION, {"prompt": [[1, "x"], "y", 4]}, Prompt(("x", "y"), token_ids=2, prompts=3, as_usual=False)),
        (COMPLETION, {"prompt": [[1, "x"]]}, Prompt(("x",), token_ids=1, as_usual=False)),
        (COMPLETION, {"prompt": [1, "x"]}, Prompt(("x",), token_ids=1, prompts=2, as_usual=False)),
        (
            COMPLETION,
            {"prompt": [{"prompt_string": "x", "multimodal_data": []}]},
            Prompt(media=Media(files=1), as_usual=False),
        ),
        (COMPLETION, {"prompt": ""}, Prompt(("",))),
        (COMPLETION, {"prompt": ["", "a"]}, Prompt(("", "a"), prompts=2)),
        (COMPLETION, {"prompt": None}, Prompt(as_usual=False)),
        (COMPLETION, {}, Prompt(as_usual=False)),
        (EMBEDDING, {"input": ["one", "two"]}, Prompt(("one", "two"), prompts=2)),
        (
            EMBEDDING,
            {"input": [{"type": "text", "text": "a"}, IMAGE]},
            Prompt(("a",), media=Media(1), prompts=2, as_usual=False),
        ),
        (EMBEDDING, {"input": [[1], [2]]}, Prompt(token_ids=2, prompts=2)),
    ],
)
def test_every_shape_of_given_prompts_is_read(endpoint: Endpoint, fields: dict[str, Any], prompt: Prompt) -> None:
    assert parsed(endpoint, **fields).prompt == prompt


@pytest.mark.parametrize(
    ("endpoint", "fields", "texts", "messages", "media"),
    [
        (CHAT, {"messages": SAID}, ["hi"], 1, NO_MEDIA),
        (CHAT, {"messages": []}, [], 0, NO_MEDIA),
        (CHAT, {"messages": [{"content": None}, {}]}, [], 2, NO_MEDIA),
        (
            CHAT,
            {
                "messages": [
                    {
                        "content": [
                            {"type": "text", "text": "look"},
                            "plain",
                            IMAGE,
                            {"type": "refusal", "refusal": "no"},
                        ]
                    },
                    {"content": [{"type": "image"}, AUDIO, VIDEO, FILE, {"type": 7}, {}]},
                ]
            },
            ["look", "plain", "no"],
            2,
            Media(images=2, audios=1, files=4),
        ),
        (
            CHAT,
            {"messages": [{"content": "a", "reasoning": "why", "tool_calls": [{"id": "1"}]}], "tools": [{"name": "f"}]},
            ['[{"name": "f"}]', "a", "why", '[{"id": "1"}]'],
            1,
            NO_MEDIA,
        ),
        (CHAT, {"messages": [{"content": "a", "tool_calls": None}], "tools": None}, ["a"], 1, NO_MEDIA),
        (EMBEDDING, {"messages": [{"content": "hi"}]}, ["hi"], 1, NO_MEDIA),
        (RESPONSE, {"input": "hi", "instructions": "be brief"}, ["be brief", "hi"], 2, NO_MEDIA),
        (RESPONSE, {}, [], 0, NO_MEDIA),
        (
            RESPONSE,
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}]},
                    "plain",
                    {"type": "function_call", "arguments": '{"x": 1}'},
                    {"type": "function_call_output", "output": 'a "quoted" word'},
                    {"type": "reasoning"},
                ],
                "tools": [{"type": "function"}],
            },
            ['[{"type": "function"}]', "a", "plain", '{"x": 1}', 'a "quoted" word'],
            5,
            Media(images=1),
        ),
    ],
)
def test_every_shape_of_conversation_is_read(
    endpoint: Endpoint, fields: dict[str, Any], texts: list[str], messages: int, media: Media
) -> None:
    prompt = parsed(endpoint, **fields).prompt
    assert prompt.chat is not None
    assert list(texts_of(prompt)) == texts
    assert (len(prompt.chat.messages), prompt.media, prompt.prompts) == (messages, media, 1)


def test_items_of_a_response_become_messages_of_roles() -> None:
    items = [{"role": "developer", "content": "a"}, "b", {"arguments": "{}"}, {"output": "d"}]
    chat = parsed(RESPONSE, instructions="be brief", input=items).prompt.chat
    assert chat is not None
    assert [message.role for message in chat.messages] == ["system", "developer", "user", "assistant", "tool"]
    assert not chat.as_usual


@pytest.mark.parametrize(
    ("endpoint", "fields", "expected"),
    [
        (CHAT, {}, {"add_generation_prompt": True, "continue_final_message": False, "add_special_tokens": False}),
        (EMBEDDING, {}, {"add_generation_prompt": False, "as_usual": True}),
        (EMBEDDING, {"add_generation_prompt": True}, {"add_generation_prompt": True}),
        (CHAT, {"add_generation_prompt": False}, {"add_generation_prompt": False}),
        (CHAT, {"add_generation_prompt": "no"}, {"add_generation_prompt": True, "as_usual": False}),
        (CHAT, {"add_special_tokens": 0}, {"add_special_tokens": False, "as_usual": False}),
        (CHAT, {"continue_final_message": 1}, {"continue_final_message": False, "as_usual": False}),
        (CHAT, {"add_generation_prompt": None}, {"add_generation_prompt": True, "as_usual": True}),
        (CHAT, {"continue_final_message": True, "add_special_tokens": True}, {"continue_final_message": True}),
        (CHAT, {"add_special_tokens": True}, {"add_special_tokens": True}),
        (CHAT, {"chat_template_kwargs": {"a": 1}}, {"template_kwargs": Raw(b'{"a": 1}'), "as_usual": True}),
        (CHAT, {"documents": [1]}, {"documents": Raw(b"[1]"), "as_usual": False}),
        (CHAT, {"chat_template": "{{ 1 }}"}, {"as_usual": False}),
        (CHAT, {"chat_template": None, "reasoning_effort": None}, {"as_usual": True}),
        (CHAT, {"reasoning_effort": "high"}, {"as_usual": False}),
        (CHAT, {"tool_choice": "none", "tools": [{}]}, {"as_usual": False}),
        (CHAT, {"tool_choice": "none"}, {"as_usual": True}),
        (CHAT, {"tool_choice": "auto", "tools": [{}]}, {"as_usual": True}),
        (CHAT, {"tool_choice": "required", "tools": [{}]}, {"as_usual": True}),
        (CHAT, {"tool_choice": {"type": "function"}, "tools": [{}]}, {"as_usual": False}),
    ],
)
def test_what_changes_a_template_is_read(endpoint: Endpoint, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    chat = parsed(endpoint, messages=SAID, **fields).prompt.chat
    assert chat is not None
    assert {name: getattr(chat, name) for name in expected} == expected


@pytest.mark.parametrize("value", [7, {"a": [1]}, [None], "x", True, 1e400, "\ud800"])
@pytest.mark.parametrize("name", ["name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "unheard_of"])
def test_fields_that_only_templates_read_may_hold_anything(name: str, value: object) -> None:
    """Engines judge them; texts can be had of whatever they take."""
    prompt = parsed(CHAT, messages=[{"role": "assistant", "content": "a", name: value}]).prompt
    assert next(texts_of(prompt)) == "a"
    assert all(isinstance(text, str) for text in texts_of(prompt))


def test_tools_count_as_characters_and_not_as_escapes() -> None:
    body = parsed(CHAT, messages=[], tools=[{"description": "天気予報"}])
    assert list(texts_of(body.prompt)) == ['[{"description":"天気予報"}]']


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
