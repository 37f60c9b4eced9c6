"""Answers of the OpenAI API, whole and as server-sent events, in the shapes vLLM 0.32 gives them."""

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec

from extproc.core.request import Endpoint
from extproc.sim.apirequest import ApiFault
from extproc.sim.counters import FinishReason

_DIMENSIONS = 8
_DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def fault_body(fault: ApiFault) -> bytes:
    """The error object of a fault."""
    error = {"message": fault.message, "type": fault.kind, "param": fault.param, "code": fault.status}
    return _encode({"error": error})


@dataclass(frozen=True, slots=True)
class Choice:
    """One sequence of an answer, known before it is computed."""

    seed: int
    """For embeddings: what the vector is made of."""
    pieces: Sequence[bytes]
    """Its tokens."""
    finish: FinishReason

    @property
    def text(self) -> str:
        """All of it."""
        return b"".join(self.pieces).decode()


@dataclass(slots=True)
class Answer:
    """What a client is told. As a stream: `opening`, then `token` for each token of each choice, then `closing`."""

    endpoint: Endpoint
    request_id: str
    created_s: int
    """Unix time."""
    model: str
    choices: Sequence[Choice]
    prompt_tokens: int
    """Over all prompts."""
    usage_in_stream: bool
    base64: bool
    _events: int = field(default=0, init=False)

    def whole(self) -> bytes:
        """The answer as one body."""
        match self.endpoint:
            case Endpoint.CHAT:
                choices = [
                    {
                        "index": index,
                        "message": {"role": "assistant", "content": choice.text, "tool_calls": []},
                        "logprobs": None,
                        "finish_reason": choice.finish.value,
                        "stop_reason": None,
                    }
                    for index, choice in enumerate(self.choices)
                ]
                return _encode(self._head("chat.completion") | {"choices": choices, "usage": self._usage()})
            case Endpoint.COMPLETION:
                texts = [
                    self._text_choice(index, choice.text, choice.finish) for index, choice in enumerate(self.choices)
                ]
                return _encode(self._head("text_completion") | {"choices": texts, "usage": self._usage()})
            case Endpoint.EMBEDDING:
                data = [
                    {"index": index, "object": "embedding", "embedding": self._vector(choice.seed)}
                    for index, choice in enumerate(self.choices)
                ]
                return _encode(self._head("list") | {"data": data, "usage": self._usage()})
            case Endpoint.RESPONSE:
                return _encode(self._response("completed"))
            case _:
                assert_never(self.endpoint)

    def opening(self) -> bytes:
        """What comes before any token."""
        if self.endpoint is not Endpoint.RESPONSE:
            return b""
        item = {"id": f"msg_{self.request_id}", "type": "message", "role": "assistant", "status": "in_progress"}
        return (
            self._event("response.created", {"response": self._response("in_progress")})
            + self._event("response.output_item.added", {"output_index": 0, "item": item | {"content": []}})
            + self._event("response.content_part.added", self._place() | {"part": self._part("")})
        )

    def token(self, index: int, position: int) -> bytes:
        """Token `position` of choice `index`."""
        choice = self.choices[index]
        text = choice.pieces[position].decode()
        finish = choice.finish if position == len(choice.pieces) - 1 else None
        match self.endpoint:
            case Endpoint.CHAT:
                delta = self._delta(index, {"content": text}, finish)
                return delta if position else self._delta(index, {"role": "assistant", "content": ""}, None) + delta
            case Endpoint.COMPLETION:
                return _data(self._head("text_completion") | {"choices": [self._text_choice(index, text, finish)]})
            case Endpoint.RESPONSE:
                return self._event("response.output_text.delta", self._place() | {"delta": text})
            case Endpoint.EMBEDDING:
                raise AssertionError
            case _:
                assert_never(self.endpoint)

    def closing(self) -> bytes:
        """What comes after the last token."""
        match self.endpoint:
            case Endpoint.CHAT | Endpoint.COMPLETION:
                if not self.usage_in_stream:
                    return _DONE
                kind = "chat.completion.chunk" if self.endpoint is Endpoint.CHAT else "text_completion"
                return _data(self._head(kind) | {"choices": [], "usage": self._usage()}) + _DONE
            case Endpoint.RESPONSE:
                text = self.choices[0].text
                response = self._response("completed")
                return (
                    self._event("response.output_text.done", self._place() | {"text": text})
                    + self._event("response.content_part.done", self._place() | {"part": self._part(text)})
                    + self._event("response.output_item.done", {"output_index": 0, "item": response["output"][0]})
                    + self._event("response.completed", {"response": response})
                )
            case Endpoint.EMBEDDING:
                raise AssertionError
            case _:
                assert_never(self.endpoint)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.request_id, "object": kind, "created": self.created_s, "model": self.model}

    def _usage(self) -> dict[str, int]:
        output_tokens = sum(len(choice.pieces) for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + output_tokens,
            "completion_tokens": output_tokens,
        }

    def _delta(self, index: int, delta: dict[str, str], finish: FinishReason | None) -> bytes:
        reason = finish.value if finish is not None else None
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return _data(self._head("chat.completion.chunk") | {"choices": [choice]})

    @staticmethod
    def _text_choice(index: int, text: str, finish: FinishReason | None) -> dict[str, Any]:
        reason = finish.value if finish is not None else None
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}

    def _vector(self, seed: int) -> list[float] | str:
        raw = seed.to_bytes(_DIMENSIONS, "little")
        floats = [byte / 127.5 - 1.0 for byte in raw]
        return base64.b64encode(struct.pack(f"<{_DIMENSIONS}f", *floats)).decode() if self.base64 else floats

    def _place(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self.request_id}", "output_index": 0, "content_index": 0}

    @staticmethod
    def _part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": []}

    def _response(self, status: str) -> dict[str, Any]:
        head = {"id": self.request_id, "object": "response", "created_at": self.created_s, "model": self.model}
        if status != "completed":
            return head | {"status": status, "output": [], "usage": None}
        (choice,) = self.choices
        complete = choice.finish is FinishReason.STOP
        item = {
            "id": f"msg_{self.request_id}",
            "type": "message",
            "role": "assistant",
            "status": "completed" if complete else "incomplete",
            "content": [self._part(choice.text)],
        }
        usage = self._usage()
        return head | {
            "status": "completed" if complete else "incomplete",
            "incomplete_details": None if complete else {"reason": "max_output_tokens"},
            "output": [item],
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "output_tokens": usage["completion_tokens"],
                "total_tokens": usage["total_tokens"],
            },
        }

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        body = {"type": kind, "sequence_number": self._events} | fields
        self._events += 1
        return b"event: " + kind.encode() + b"\n" + _data(body)


def _data(body: dict[str, Any]) -> bytes:
    return b"data: " + _encode(body) + b"\n\n"
