"""Lives in which requests wait for room."""

from extproc.core.policy import RoutingPolicy
from tests.core.fleet import MODEL
from tests.journaled import FULL, NODES, OTHER_FREE, Call, asks

ADMIT: Call = ("admit", {"calls": 1})
HOUR: list[Call] = [("wait", {"seconds": 600.0}), *FULL, ADMIT]
"""The time of all is up, at nodes that are full to the end."""
CROWD: list[Call] = [*FULL, *asks(3, tenant="bob"), *asks(2, tenant="carol", sequences=2), *asks(2, priority="high")]
"""Seven wait."""
FALLBACK = RoutingPolicy(name="fallback", fallback_models={MODEL: "adapter"})
SESSION: list[Call] = [
    *CROWD,
    *asks(1, priority="at-once"),
    *asks(5, priority="standard"),  # four of them may wait
    ADMIT,  # in vain
    ("recount", {"which": 5, "tokens": 4000}),
    ("finish", {"which": 3}),
    ("answered", {"which": 2, "ending": "untold", "host": None, "model": None, "output_tokens": None, "over": True}),
    *FULL[:2],
    ("report", {"node": NODES[2]}),
    ADMIT,
    *asks(1, tenant="", tokens=5100),  # more than its quota
    *OTHER_FREE,
    *asks(1, policy=FALLBACK),
    *asks(1, policy=FALLBACK, model_fixed=True, tenant="bob"),
    *asks(1, policy=FALLBACK),
    ADMIT,
    *HOUR,
    *asks(2, tenant="carol"),
    ("drain", {}),
]
