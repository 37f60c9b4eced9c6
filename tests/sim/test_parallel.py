import math

import pytest

from extproc.sim import parallel, processpool


@pytest.mark.parametrize("processes", [0, 2])
def test_results_are_in_the_order_of_the_items_and_progress_is_told(processes: int) -> None:
    told: list[tuple[int, int]] = []

    def tell(done: int, of: int) -> None:
        told.append((done, of))

    items = [9.0, 4.0, 1.0]
    if processes:
        with processpool.of(processes) as pool:
            found = parallel.each(math.sqrt, items, pool, tell)
    else:
        found = parallel.each(math.sqrt, items, None, tell)
    assert found == [3.0, 2.0, 1.0]
    assert told == [(done, 3) for done in range(4)]


def test_an_error_is_raised() -> None:
    with pytest.raises(ValueError, match=r"math|expected"):
        parallel.each(math.sqrt, [-1.0], None, lambda _, __: None)
