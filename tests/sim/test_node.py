import pytest

from extproc.sim.enginesettings import EngineSettings
from extproc.sim.events import Finished, FirstToken, Request
from extproc.sim.node import Node, in_arrivals_blocks, within_context
from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival
from tests.sim.fleets import fleet

COST = StepCost(1.0, 0.0, 0.0, 0.0, 0.0)
"""Every step lasts a second."""


def happens(node: Node) -> list[tuple[str, float]]:
    told = []
    while (at_s := node.next_event_s) is not None:
        told += [(type(event).__name__, when_s) for event, when_s in node.advance(at_s)]
    return told


@pytest.mark.parametrize(
    ("fault", "first_s", "finished_s"),
    [
        ([], 1.0, 3.0),
        ([{"kind": "slow", "at_s": 1, "for_s": 10, "factor": 3}], 1.0, 7.0),
        ([{"kind": "slow", "at_s": 0, "for_s": 6, "factor": 3}], 3.0, 7.0),
        ([{"kind": "hang", "at_s": 1.5, "for_s": 4}], 1.0, 7.0),
        ([{"kind": "hang", "at_s": 0, "for_s": 4}], 5.0, 7.0),
        ([{"kind": "error", "at_s": 0.5, "for_s": 4}], 1.0, 3.0),
    ],
)
def test_steps_last_longer_where_the_engine_is_slow_or_hangs(
    fault: list[dict[str, object]], first_s: float, finished_s: float
) -> None:
    node = Node(fleet({"faults": fault}).nodes[0], 0, COST)
    node.submit(Request("a", 10, 3), 0.0)
    told = happens(node)
    assert [name for name, _ in told] == [FirstToken.__name__, Finished.__name__]
    assert [when_s for _, when_s in told] == pytest.approx([first_s, finished_s])
    assert node.first_tokens == 1
    assert node.first_token_waits_s == pytest.approx(first_s)


def test_what_comes_while_it_hangs_is_computed_afterwards() -> None:
    node = Node(fleet({"faults": [{"kind": "hang", "at_s": 1, "for_s": 9}]}).nodes[0], 0, COST)
    for index in range(3):
        node.submit(Request(str(index), 10, 1), 2.0 + index)
    assert list(node.advance(9.9)) == []
    assert happens(node) == [("FirstToken", 11.0), ("Finished", 11.0)] + [("FirstToken", 12.0), ("Finished", 12.0)] * 2
    assert node.first_token_waits_s == pytest.approx(9.0 + 9.0 + 8.0)


def test_kv_blocks_become_longer_and_fewer() -> None:
    changed = in_arrivals_blocks(EngineSettings(kv_blocks=4001, context_length_tokens=64_000), COST)
    assert (changed.block_size_tokens, changed.kv_blocks, changed.context_length_tokens) == (64, 1001, 64_000)
    assert changed.cost == COST
    odd = in_arrivals_blocks(EngineSettings(kv_blocks=4000, context_length_tokens=63_984), COST)
    assert (odd.kv_blocks, odd.context_length_tokens) == (1000, 63_936)


@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [(100, 28, (100, 28, 2)), (128, 28, (100, 28, 1)), (1000, 127, (1, 127, 0)), (5, 5000, (1, 127, 0))],
)
def test_what_is_too_long_loses_the_end_of_its_prompt(prompt: int, output: int, expected: tuple[int, int, int]) -> None:
    arrival = Arrival(1.0, prompt, output, tuple(range(2)), (2, 3), "s", "chat")
    fitting = within_context(arrival, 128)
    assert (fitting.prompt_tokens, fitting.output_tokens, len(fitting.prompt_blocks)) == expected
    assert (fitting is arrival) == (prompt + output <= 128)
    assert fitting.answer_blocks == ((2, 3) if fitting is arrival else ())
    assert (fitting.at_s, fitting.session, fitting.kind) == (1.0, "s", "chat")


def test_hosts_are_distinct_and_of_the_form_that_routers_take() -> None:
    planned = fleet({}).nodes[0]
    hosts = [Node(planned, place, COST).host for place in (0, 1, 255, 256, 1023)]
    assert hosts == ["10.0.0.0:8000", "10.0.0.1:8000", "10.0.0.255:8000", "10.0.1.0:8000", "10.0.3.255:8000"]
