"""What other routers may tell a balancer, in random lives of it."""

from typing import Any

from hypothesis import strategies as st

from extproc.core.balancer import Balancer
from extproc.core.peershares import NodeShare, PeerLeft, PeerTold, PromptPlaced, Word

ROUTERS = st.sampled_from(["p", "q"])
NODES = st.sampled_from(["a", "b", "c", "unknown"])
SHARES = st.builds(
    lambda node_id, age_s, *numbers: (node_id, age_s, numbers),
    NODES,
    st.sampled_from([None, 0.0, 0.05, 0.3, 1.0, 30.0]),
    *[st.integers(0, 9)] * 5,
    st.integers(-20, 20),
    *[st.integers(0, 9)] * 2,
    *[st.integers(0, 9000)] * 4,
)
"""A node, how old the sample is, and the numbers in the order of `NodeShare`."""
PEER_CALLS: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.one_of(
    st.tuples(
        st.just("peer"),
        st.fixed_dictionaries(
            {
                "router": ROUTERS,
                "sequence": st.integers(0, 5),
                "age_s": st.sampled_from([0.0, 0.2, 2.0, 3.0]),
                "everything": st.booleans(),
                "shares": st.lists(SHARES, max_size=3),
            }
        ),
    ),
    st.tuples(st.just("peer_left"), st.fixed_dictionaries({"router": ROUTERS})),
    st.tuples(
        st.just("placed"),
        st.fixed_dictionaries(
            {
                "node_id": NODES,
                "blocks": st.integers(0, 2).flatmap(
                    lambda chain: st.sampled_from([0, 3, 20]).map(
                        lambda count: tuple(2**64 - 1 - chain * 1000 - place for place in range(count))
                    )
                ),
                "computed": st.booleans(),
            }
        ),
    ),
    st.tuples(st.just("asked_by_peers"), st.just({})),
)
PEER_NAMES = ("peer", "peer_left", "placed", "asked_by_peers")


def hear(one: Balancer, call: str, values: dict[str, Any], now_s: float) -> None:
    """Make one of these calls."""
    match call:
        case "peer":
            made_at_s = now_s - values["age_s"]
            shares = tuple(
                NodeShare(node_id, None if age_s is None else made_at_s - age_s, *numbers)
                for node_id, age_s, numbers in values["shares"]
            )
            one.peer(
                PeerTold(values["router"], values["sequence"], made_at_s, Word(values["everything"], shares)), now_s
            )
        case "peer_left":
            one.peer(PeerLeft(values["router"]), now_s)
        case "placed":
            one.peer(PromptPlaced(**values), now_s)
        case _:
            one.word(now_s)
            one.placed()
