"""What routers of a later release say is understood as far as it is known here; what is not said has a meaning too."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from extproc.core.outcome import Answered, Ending
from extproc.core.peershares import NodeShare, PeerTold, PromptPlaced, Word
from extproc.exchange import chains, endswire, wire
from extproc.pb import exchange_pb2, nodes_pb2
from tests.compat.grown import grown
from tests.exchange.reading import read as read_placements

ROUTER = "a1"
SHARE = NodeShare("gpu-1", 99.0, 1, 2, 3, 4, 5, -6, 7, 8, 9, 10, 11, 12)
PLACED = [PromptPlaced("gpu-1", (1, 2, 3), computed=True), PromptPlaced("gpu-2", (1, 2, 9), computed=False)]
ENDED = [Answered("a1-7", Ending.ERROR, host="10.0.0.1:80", used_tokens=9), Answered("a1-8", Ending.SERVED)]


def loads() -> bytes:
    (message,) = wire.loads_bytes(Word(True, (SHARE,)), ROUTER, lambda: 7, 0.001, 100.0, hears_ends=True)
    return message


def placements() -> bytes:
    told = [one for one in map(chains.placed_of, PLACED) if one is not None]
    (message,) = chains.messages(ROUTER, told)
    return message


def ends() -> bytes:
    (message,) = endswire.ends_bytes(ROUTER, ENDED, 0.0)
    return message


Read = Callable[[bytes], Any]
SAID: dict[str, tuple[type[Message], bytes, Read]] = {
    "here": (
        exchange_pb2.RouterHere,
        wire.here_bytes(wire.Here(ROUTER, is_new=True, leaves=True)),
        wire.here_of,
    ),
    "loads": (exchange_pb2.RouterLoads, loads(), lambda message: wire.loads_of(message, 0.0, 100.0)),
    "placements": (exchange_pb2.Placements, placements(), read_placements),
    "ends": (exchange_pb2.AnswerEnds, ends(), lambda message: endswire.ends_of(message, ROUTER, 0.0)),
}


@pytest.mark.parametrize("name", SAID)
def test_fields_of_a_later_release_change_nothing(name: str) -> None:
    kind, message, read = SAID[name]
    understood = read(message)
    assert not isinstance(understood, str), understood
    assert read(grown(kind, message)) == understood


@pytest.mark.parametrize(
    ("kind", "fields", "understood"),
    [
        (exchange_pb2.RouterHere, {}, wire.Here(ROUTER)),
        (exchange_pb2.RouterLoads, {}, wire.Loads(PeerTold(ROUTER, 0, 100.0, Word(False, ())), False)),
        (
            exchange_pb2.RouterLoads,
            {"shares": [exchange_pb2.NodeShare(node_id="gpu-1")]},
            wire.Loads(PeerTold(ROUTER, 0, 100.0, Word(False, (NodeShare("gpu-1"),))), False),
        ),
        (exchange_pb2.Placements, {}, (ROUTER, [])),
        (exchange_pb2.Placements, {"placements": [{"blocks": bytes(8)}]}, (ROUTER, [])),
        (exchange_pb2.AnswerEnds, {}, []),
        (exchange_pb2.AnswerEnds, {"ends": [{"request_id": "a1-7"}]}, [Answered("a1-7", Ending.UNTOLD)]),
        (exchange_pb2.AnswerEnds, {"ends": [{"request_id": "a1-7", "ending": 9}]}, [Answered("a1-7", Ending.UNTOLD)]),
    ],
)
def test_what_is_not_said_is_nothing_or_unknown(kind: type[Message], fields: dict[str, Any], understood: Any) -> None:
    read = next(read for one, _, read in SAID.values() if one is kind)
    assert read(kind(router=ROUTER, **fields).SerializeToString()) == understood


def test_who_does_not_say_who_he_is_is_not_heard() -> None:
    for name, (_, _, read) in SAID.items():
        assert isinstance(read(b""), str), name


def test_agents_read_who_answered_and_nothing_of_what_may_come() -> None:
    answer = nodes_pb2.RouterMessage(acknowledgement=nodes_pb2.Acknowledgement(node_id="n", router=ROUTER))
    later = nodes_pb2.RouterMessage.FromString(grown(nodes_pb2.RouterMessage, answer.SerializeToString()))
    assert (later.acknowledgement.node_id, later.acknowledgement.router) == ("n", ROUTER)
