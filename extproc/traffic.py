"""Requests as an OpenAI client makes them, and what came back: a client for the demo and the end-to-end tests."""

import io
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

_LAST_EVENT = re.compile(r"^(data: \[DONE\]|event: response\.completed)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    label: str
    """For people."""
    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request, and what the demo's Envoy tells about the choice in its response headers."""

    status: int
    """0: the connection broke."""
    text: str
    """The body; of a stream every line of it."""
    whole: bool
    """A stream ended with its last event, anything else as long as it said; False: it was cut."""
    engine: str | None
    """Who answered, by its own word."""
    chosen: str | None
    """Whom extproc chose; `None`: it chose nobody, and Envoy's cluster over the known nodes served."""
    reason: str | None
    phase: str | None
    tokens: str | None
    policy: str | None
    first_byte_s: float | None
    """Of a stream: until the first event, which carries the first token."""
    seconds: float

    @property
    def served(self) -> bool:
        """An engine answered well and to the end."""
        return self.status == 200 and self.whole and self.engine is not None

    @property
    def as_chosen(self) -> bool:
        """Besides, it was the engine that extproc chose."""
        return self.served and self.chosen == self.engine


async def ask(
    session: aiohttp.ClientSession, base_url: str, request: Ask, headers: Mapping[str, str] | None = None
) -> Answer:
    """Send one request and read its answer to the end. Raises for nothing that a server does."""
    started_s = time.monotonic()
    first_byte_s: float | None = None
    streams = bool(request.body.get("stream"))
    status, body, ended = 0, bytearray(), False
    told: Mapping[str, str] = {}
    sent = io.BytesIO(msgspec.json.encode(request.body))  # bytes of over 1 MiB would hold up the event loop
    try:
        async with session.post(
            base_url + request.path, data=sent, headers={"content-type": "application/json", **(headers or {})}
        ) as response:
            status, told = response.status, response.headers
            async for part in response.content.iter_any():
                if streams and first_byte_s is None:
                    first_byte_s = time.monotonic() - started_s
                body += part
            ended = True
    except aiohttp.ClientError as error:
        body += f"({type(error).__name__}: {error})".encode()
    text = body.decode(errors="replace")
    done = not streams or status != 200 or _LAST_EVENT.search(text) is not None
    return Answer(
        status=status,
        text=text,
        whole=ended and done,
        engine=told.get("x-engine"),
        chosen=told.get("x-extproc-node"),
        reason=told.get("x-extproc-reason"),
        phase=told.get("x-extproc-phase"),
        tokens=told.get("x-extproc-tokens"),
        policy=told.get("x-extproc-policy"),
        first_byte_s=first_byte_s,
        seconds=time.monotonic() - started_s,
    )


def chat(model: str, text: str, *, output_tokens: int, stream: bool, system: str = "") -> dict[str, Any]:
    """The body of a chat."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    return {"model": model, "messages": messages, "max_tokens": output_tokens, "stream": stream}


def completion(model: str, prompt: str | list[int], *, output_tokens: int, stream: bool) -> dict[str, Any]:
    """The body of a completion."""
    return {"model": model, "prompt": prompt, "max_tokens": output_tokens, "stream": stream}


def mixed(model: str, count: int) -> list[Ask]:
    """So many requests of every kind: short and long prompts and answers, streams, batches, prompts that are shared."""
    handbook = "Company handbook. " + " ".join(f"Rule {n}: be kind to node {n}." for n in range(300))
    kinds = (
        lambda n: Ask("chat", "/v1/chat/completions", chat(model, f"Hello {n}", output_tokens=24, stream=True)),
        lambda n: Ask("chat once", "/v1/chat/completions", chat(model, f"Hi {n}", output_tokens=16, stream=False)),
        lambda n: Ask(
            "handbook",
            "/v1/chat/completions",
            chat(model, f"What is rule {n}?", output_tokens=16, stream=True, system=handbook),
        ),
        lambda n: Ask(
            "summary",
            "/v1/completions",
            completion(
                model,
                f"Report {n}. " + "The node was busy and the queue was long. " * 300,
                output_tokens=8,
                stream=True,
            ),
        ),
        lambda n: Ask("story", "/v1/completions", completion(model, f"Once upon {n}", output_tokens=60, stream=True)),
        lambda n: Ask("embedding", "/v1/embeddings", {"model": model, "input": [f"query {n}", f"passage {n}"]}),
        lambda n: Ask(
            "batch", "/batch/v1/completions", completion(model, f"Label {n}:", output_tokens=8, stream=False)
        ),
    )
    return [kinds[n % len(kinds)](n) for n in range(count)]
