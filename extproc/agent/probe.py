"""Asking an engine for one token, to know that it can serve before anybody is sent there."""

import asyncio
from collections.abc import Mapping

import msgspec

from extproc.agent.scrape import Answer, EnginePages, Unanswered

PAUSE_S = 1.0
"""Between the end of a probe that failed and the next."""
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_NO_SUCH_PAGE = (404, 405, 501)


class _Answered(msgspec.Struct):
    choices: list[msgspec.Raw]


_ANSWERED = msgspec.json.Decoder(_Answered)


class Probe:
    """Asks until one answer is right; then no more, until `begin_anew`.

    It goes on beside the looks, for as long as it may take: the first token of an engine that has just come up can
    take longer than a look.
    """

    def __init__(self, pages: EnginePages, timeout_s: float) -> None:
        self._pages = pages
        self._timeout_s = timeout_s
        self._asking: asyncio.Task[str | None] | None = None
        self._passed = False
        self._reason = "the one-token probe is not answered yet"
        self._due_s = 0.0

    async def reason(self, model: str, deadline_s: float) -> str | None:
        """Why the model is not known to answer, told before the deadline; `None`: it answers."""
        loop = asyncio.get_running_loop()
        if self._passed:
            return None
        if self._asking is None:
            if loop.time() < self._due_s:
                return self._reason
            self._asking = asyncio.create_task(self._ask(model))
        await asyncio.wait((self._asking,), timeout=max(0.0, deadline_s - loop.time()))
        if not self._asking.done():
            return self._reason
        failure, self._asking = self._asking.result(), None
        if failure is None:
            self._passed = True
        else:
            self._reason = f"the one-token probe failed: {failure}"
            self._due_s = loop.time() + PAUSE_S
        return self._reason if failure else None

    def begin_anew(self) -> None:
        """The engine went away or began anew: what it answered counts no more."""
        self._passed, self._due_s = False, 0.0
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def _ask(self, model: str) -> str | None:
        """What is wrong with the answer; `None`: nothing."""
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        path = COMPLETIONS
        answer = await self._pages.post(path, _body(model, {"prompt": "a"}), deadline_s)
        if isinstance(answer, Answer) and answer.status in _NO_SUCH_PAGE:
            path = CHAT
            messages = {"messages": [{"role": "user", "content": "a"}]}
            answer = await self._pages.post(path, _body(model, messages), deadline_s)
        if isinstance(answer, Unanswered):
            return answer.reason
        if answer.status != 200:
            return f"{path} answers {answer.status}"
        try:
            answered = bool(_ANSWERED.decode(answer.text).choices)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            answered = False
        return None if answered else f"{path} answers without choices"


def _body(model: str, prompt: Mapping[str, object]) -> bytes:
    return msgspec.json.encode({"model": model, "max_tokens": 1, "temperature": 0, "stream": False, **prompt})
