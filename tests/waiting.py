"""Waiting for a condition instead of sleeping for a guess."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable


async def until(predicate: Callable[[], object | Awaitable[object]], within_s: float = 10.0) -> object:
    """Return the predicate's first true value; fail when none came in time."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if loop.time() > deadline_s:
            msg = f"{predicate} was not true within {within_s} s"
            raise AssertionError(msg)
        await asyncio.sleep(0.01)
