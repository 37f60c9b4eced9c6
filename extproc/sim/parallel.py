"""The same work on many items, by the processes of a pool or by this one."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(
    work: Callable[[_Item], _Result],
    items: Sequence[_Item],
    pool: ProcessPoolExecutor | None,
    progress: Callable[[int, int], None],
) -> list[_Result]:
    """What the work makes of each item, in their order. `progress` is told how many are done, and of how many.

    With a pool, work and items are sent to its processes: both must be what can be pickled.
    """
    progress(0, len(items))
    if pool is None:
        results: list[_Result] = []
        for item in items:
            results.append(work(item))
            progress(len(results), len(items))
        return results
    futures = [pool.submit(work, item) for item in items]
    for done, future in enumerate(as_completed(futures), 1):
        future.result()
        progress(done, len(items))
    return [future.result() for future in futures]
