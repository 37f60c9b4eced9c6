"""How much Python a call runs: what is cheap or dear on every machine alike."""

import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def calls_of(run: Callable[[], T]) -> tuple[int, T]:
    """Calls and returns of functions while it runs, and what it gives."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        found = run()
    finally:
        sys.setprofile(None)
    return calls, found
