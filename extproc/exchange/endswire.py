"""Ends of answers, onto the bus and off it: checked as all that others say."""

from collections.abc import Iterable, Iterator
from itertools import islice

from extproc.bus.bus import MESSAGE_BYTES_MAX
from extproc.core.outcome import Answered, Ending
from extproc.core.request import HOST_CHARS_MAX
from extproc.core.snapshot import COUNTER_MAX
from extproc.exchange import wire
from extproc.pb import exchange_pb2

ENDS_MAX = 1000
"""Of one message, which has 150 bytes for each at most."""
REQUEST_ID_CHARS_MAX = 64

assert ENDS_MAX * 2 * (REQUEST_ID_CHARS_MAX + HOST_CHARS_MAX) < MESSAGE_BYTES_MAX + 1

_ENDINGS = {
    Ending.SERVED: exchange_pb2.AnswerEnd.ENDING_SERVED,
    Ending.ERROR: exchange_pb2.AnswerEnd.ENDING_ERROR,
    Ending.UNREACHABLE: exchange_pb2.AnswerEnd.ENDING_UNREACHABLE,
    Ending.UNTOLD: exchange_pb2.AnswerEnd.ENDING_UNSPECIFIED,
}
_ENDING_OF = {number: ending for ending, number in _ENDINGS.items()}


def router_of(request_id: str) -> str | None:
    """Whose request it is, by its id; `None`: it is no router's."""
    router, dash, _ = request_id.partition("-")
    return router if dash and wire.router_refusal(router) is None else None


def ends_bytes(router: str, ends: Iterable[Answered], now_s: float) -> Iterator[bytes]:
    """The messages that tell a router of its answers' ends."""
    left = iter(ends)
    while several := list(islice(left, ENDS_MAX)):
        message = exchange_pb2.AnswerEnds(router=router)
        message.ends.extend(_end(one, now_s) for one in several)
        yield message.SerializeToString()


def ends_of(message: bytes, router: str, now_s: float) -> list[Answered] | str | None:
    """Ends of this router's answers, on its clock, or why they are refused; `None`: it is for another router.

    Raises for no content.
    """
    found = wire.parsed(exchange_pb2.AnswerEnds, message)
    if isinstance(found, str):
        return found
    if found.router != router:
        return wire.router_refusal(found.router)
    if len(found.ends) > ENDS_MAX:
        return wire.refused("ends", f"at most {ENDS_MAX}", len(found.ends))
    ends = []
    for place, one in enumerate(found.ends):
        end = _end_of(one, router, now_s)
        if isinstance(end, str):
            return f"ends.{place}.{end}"
        ends.append(end)
    return ends


def _end(answered: Answered, now_s: float) -> exchange_pb2.AnswerEnd:
    return exchange_pb2.AnswerEnd(
        request_id=answered.request_id,
        ending=_ENDINGS[answered.ending],
        host=answered.host or "",
        used_tokens=answered.used_tokens,
        goes_on=not answered.over,
        ago_ms=0 if answered.at_s is None else wire.milliseconds(now_s - answered.at_s, wire.AGE_MS_MAX),
    )


def _end_of(message: exchange_pb2.AnswerEnd, router: str, now_s: float) -> Answered | str:
    request_id, host = message.request_id, message.host
    if len(request_id) > REQUEST_ID_CHARS_MAX or router_of(request_id) != router or not request_id.isprintable():
        return wire.refused("request_id", f"{router}- and a number", request_id)
    if len(host) > HOST_CHARS_MAX or not host.isprintable():
        return wire.refused("host", f"at most {HOST_CHARS_MAX} printable characters", host)
    if message.used_tokens > COUNTER_MAX:
        return wire.refused("used_tokens", f"at most {COUNTER_MAX}", message.used_tokens)
    if message.ago_ms > wire.AGE_MS_MAX:
        return wire.refused("ago_ms", f"at most {wire.AGE_MS_MAX}", message.ago_ms)
    return Answered(
        request_id,
        _ENDING_OF.get(message.ending, Ending.UNTOLD),
        host=host or None,
        over=not message.goes_on,
        used_tokens=message.used_tokens if message.HasField("used_tokens") else None,
        at_s=now_s - message.ago_ms / 1000 if message.ago_ms else None,
    )
