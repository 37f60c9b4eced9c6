"""Prompts that others sent somewhere, off the bus: checked, then given one by one.

A message within all bounds takes 0.1 s, so whoever reads it gives others a turn whenever it says so.
"""

from collections.abc import Iterator, Sequence

from extproc.bus.bus import MESSAGE_BYTES_MAX
from extproc.core.peershares import PromptPlaced
from extproc.exchange import chains, wire
from extproc.exchange.chains import BLOCK_BYTES, BLOCKS_MAX, CHAIN_BLOCKS_MAX, NODES_MAX
from extproc.pb import exchange_pb2

PLACES_MAX = MESSAGE_BYTES_MAX // chains.PLACED_BYTES
"""Of one message: its placements, and the nodes that they name; whoever writes it counts so many bytes for each."""
CHECKED_AT_ONCE = 500
"""Placements and their nodes; then others have a turn: 1 ms."""

_Checked = tuple[int, bytes, Sequence[int], Sequence[int]]


class WrongPlacementsError(Exception):
    """Why a message is refused."""


def placements_of(message: bytes) -> exchange_pb2.Placements | str:
    """The message, of which the router alone is checked, or why it is refused. Raises for no content."""
    found = wire.parsed(exchange_pb2.Placements, message)
    return found if isinstance(found, str) else wire.router_refusal(found.router) or found


def prompts_of(message: exchange_pb2.Placements) -> Iterator[PromptPlaced | None]:
    """What is told; `None`: a turn for others. Raises `WrongPlacementsError`, and then before it gives the first.

    A placement without blocks, or without a node, may be of a kind to come: it is passed over.
    """
    node_ids = _names(message)
    yield None
    checked = []
    for one in _checked(message, len(node_ids)):
        if one is None:
            yield None
        else:
            checked.append(one)
    chain: tuple[int, ...] = ()
    for number, (shared, rest, sent, computed) in enumerate(checked):
        chain = chain[:shared] + chains.unpacked(rest)
        for places, is_computed in ((sent, False), (computed, True)) if chain else ():
            for place in places:
                yield PromptPlaced(node_ids[place], chain, is_computed)
        if number % CHECKED_AT_ONCE == 0:
            yield None


def _names(message: exchange_pb2.Placements) -> list[str]:
    if len(message.node_ids) > NODES_MAX:
        raise _wrong("node_ids", f"at most {NODES_MAX}", len(message.node_ids))
    node_ids = list(message.node_ids)
    for place, node_id in enumerate(node_ids):
        if (reason := wire.node_refusal(f"node_ids.{place}", node_id)) is not None:
            raise WrongPlacementsError(reason)
    return node_ids


def _checked(message: exchange_pb2.Placements, names: int) -> Iterator[_Checked | None]:
    """Each placement; `None`: a turn for others."""
    if len(message.placements) > PLACES_MAX:
        raise _wrong("placements", f"at most {PLACES_MAX}", len(message.placements))
    turn = named = written = count = 0
    for number, one in enumerate(message.placements):
        shared, rest, sent, computed = one.shared, one.blocks, one.sent, one.computed
        told = len(sent) + len(computed)
        named += told
        if named > PLACES_MAX:
            raise _wrong("placements", f"at most {PLACES_MAX} nodes, all together", named)
        if shared > count:
            raise _wrong(f"placements.{number}.shared", f"at most {count}", shared)
        if len(rest) % BLOCK_BYTES:
            raise _wrong(f"placements.{number}.blocks", f"{BLOCK_BYTES} bytes each", f"{len(rest)} bytes")
        count = shared + len(rest) // BLOCK_BYTES
        if count > CHAIN_BLOCKS_MAX:
            raise _wrong(f"placements.{number}", f"at most {CHAIN_BLOCKS_MAX} blocks", count)
        written += count * max(1, told)
        if written > BLOCKS_MAX:
            raise _wrong("placements", f"at most {BLOCKS_MAX} blocks, at all nodes together", written)
        if told:
            places = {*sent, *computed}
            if len(places) < told:
                raise _wrong(f"placements.{number}", "each node once", f"{told} of {len(places)} nodes")
            if max(places) >= names:
                raise _wrong(f"placements.{number}", f"places of {names} nodes", max(places))
        yield shared, rest, tuple(sent), tuple(computed)
        turn += 1 + told
        if turn >= CHECKED_AT_ONCE:
            turn = 0
            yield None


def _wrong(field: str, wanted: str, got: object) -> WrongPlacementsError:
    return WrongPlacementsError(wire.refused(field, wanted, got))
