import pytest

from extproc.sim.events import FirstToken, Request
from extproc.sim.node import Node
from extproc.sim.reference import Reference
from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival
from tests.sim.fleets import arrivals, fleet, run


class Lived:
    """A reference and its nodes, driven by hand."""

    def __init__(self, *groups: dict[str, object]) -> None:
        self.nodes = [Node(planned, place, StepCost()) for place, planned in enumerate(fleet(*groups).nodes)]
        self.reference = Reference(self.nodes)
        self._requests = 0

    def choose(self, arrival: Arrival, now_s: float = 0.0) -> str:
        self._requests += 1
        request_id = str(self._requests)
        node = self.reference.choose(request_id, arrival, now_s)
        assert node is not None
        blocks = arrival.prompt_blocks
        node.submit(Request(request_id, arrival.prompt_tokens, arrival.output_tokens, block_keys=blocks), now_s)
        return node.name

    def live(self, now_s: float) -> None:
        for node in self.nodes:
            for event, at_s in node.advance(now_s):
                if isinstance(event, FirstToken):
                    self.reference.first_token(event.request_id, at_s)
                else:
                    self.reference.finished(event.request_id)


def test_it_takes_the_faster_node_and_then_the_one_with_less_to_do() -> None:
    lived = Lived({"name": "slow", "speed": 0.5}, {"name": "fast"})
    assert lived.choose(Arrival(0.0, 1000, 100)) == "fast"
    lived = Lived({"name": "a"}, {"name": "b"})
    assert [lived.choose(Arrival(0.0, 3000, 10)) for _ in range(4)] == ["a", "b", "a", "b"]


def only_between(begin_s: float, end_s: float) -> list[dict[str, object]]:
    """Faults that leave a node out until then, and from then until 2 s."""
    times = [(0.0, begin_s), (end_s, 2.0 - end_s)]
    return [{"kind": "error", "at_s": at_s, "for_s": for_s} for at_s, for_s in times if for_s]


def test_it_takes_the_node_that_has_the_prompt() -> None:
    lived = Lived({"name": "a"}, {"name": "b"})
    blocks = tuple(range(100))
    assert lived.choose(Arrival(0.0, 500, 100)) == "a"
    assert lived.choose(Arrival(0.0, 6450, 10, blocks)) == "b"
    lived.live(30.0)
    assert lived.choose(Arrival(0.0, 500, 100), 30.0) == "a"
    assert lived.choose(Arrival(0.0, 6450, 10, blocks), 30.0) == "b"


def test_it_takes_the_node_that_will_have_the_prompt_when_its_turn_comes() -> None:
    lived = Lived({"name": "a", "faults": only_between(0.0, 0.5)}, {"name": "b"})
    blocks = tuple(range(900))
    assert lived.choose(Arrival(0.0, 100, 2000)) == "a"
    lived.live(0.5)
    assert [lived.choose(Arrival(0.0, 20_000, 5), 0.5), lived.choose(Arrival(0.0, 57_650, 5, blocks), 0.5)] == [
        "b",
        "b",
    ]
    lived.live(2.0)
    # The same again, while b has not begun with it; at a it would hold up an answer for as long as it takes.
    assert not lived.nodes[1].cached_tokens(blocks)
    assert lived.choose(Arrival(0.0, 57_650, 5, blocks), 2.0) == "b"


def test_it_knows_how_long_answers_will_be() -> None:
    lived = Lived({"name": "a", "faults": only_between(0.0, 1.0)}, {"name": "b", "faults": only_between(1.0, 2.0)})
    assert [lived.choose(Arrival(0.0, 10, 3000)) for _ in range(5)] == ["a"] * 5
    lived.live(1.0)
    assert [lived.choose(Arrival(0.0, 10, 60), 1.0) for _ in range(6)] == ["b"] * 6
    lived.live(2.0)
    # There are six against five, but they are nearly done.
    assert lived.choose(Arrival(0.0, 10, 1000), 2.0) == "b"


def test_it_spares_those_that_would_miss_their_objective() -> None:
    """A long prefill goes where answers can make up for it, not where it would be too much for one."""
    lived = Lived({"name": "a", "faults": only_between(1.8, 2.0)}, {"name": "b", "faults": only_between(1.0, 1.8)})
    assert [lived.choose(Arrival(0.0, 100, 400), 1.0) for _ in range(3)] == ["b"] * 3
    lived.live(1.8)
    assert lived.choose(Arrival(0.0, 100, 20), 1.8) == "a"
    lived.live(2.0)
    # Three would be delayed at b and one at a; but that one has to make 19 gaps in 1.9 s, and the prefill takes 1.9 s.
    assert lived.choose(Arrival(0.0, 20_000, 2), 2.0) == "b"


def test_a_node_that_is_slow_now_counts_as_slow() -> None:
    slow = {"kind": "slow", "at_s": 10, "for_s": 10, "factor": 10}
    lived = Lived({"name": "a", "faults": [slow]}, {"name": "b", "speed": 0.5})
    for now_s, expected in ((5.0, "a"), (15.0, "b"), (25.0, "a")):
        lived.live(now_s)
        assert lived.choose(Arrival(0.0, 1000, 10), now_s) == expected
        lived.live(now_s + 4.9)


def test_it_chooses_nobody_where_nobody_serves() -> None:
    reference = Lived({"joins_at_s": 5}).reference
    assert reference.choose("1", Arrival(0.0, 1, 1), 1.0) is None


@pytest.mark.parametrize("workload", ["heavy", "agents"])
def test_it_is_ahead_of_round_robin(workload: str) -> None:
    arriving = arrivals(300, 1.5 if workload == "heavy" else 12.0, workload)
    best, turns = (run(arriving, strategy).measures for strategy in (None, "round-robin"))
    assert best.ngood >= turns.ngood
    assert (best.slowdown or 0.0) < 0.9 * (turns.slowdown or 0.0)
