"""The prompt work ahead at a node, W: what is pending, less what the node computes in the time since.

Times are seconds. The node computes 100 tokens a second, and others' prompts have 50.
"""

import pytest

from extproc.core.loads import prefill_tokens_ahead
from extproc.core.nodeledger import Reservation, Sample
from extproc.core.settings import BalancerSettings, ExpectedRates
from extproc.core.snapshot import ALWAYS, Learned, NodeReported
from tests.core.books import Books
from tests.core.fleet import NOW_S, POLICY, balancer, request, snapshot, view

LEARNED = Learned(prefill_tokens_per_s=100.0, prefill_tokens_mean=50.0)


class Work(Books):
    """A ledger whose node was sampled at 9 s, with nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.look(9.0)

    def look(self, at_s: float, pending: int = 0, delay_s: float = 0.0, rate: float = 100.0) -> None:
        self.sampled("a", Sample(at_s, delay_s, pending, False, rate, 50.0))

    def ahead(self, *times_s: float) -> list[float]:
        seen = view(own=self.load("a"), learned=LEARNED)
        return [prefill_tokens_ahead(seen, now_s) for now_s in times_s]


@pytest.fixture
def books() -> Work:
    return Work()


def test_a_prompt_counts_no_longer_than_it_takes(books: Work) -> None:
    books.send("r1", 10.0, tokens=300)
    assert books.ahead(10.0, 10.5, 12.99, 13.0, 99.0) == pytest.approx([300, 250, 1, 0, 0])
    assert books.tokens == 300, "as far as we are told it is pending"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([(10.0, 300), (12.0, 500)], {12.0: 600, 14.0: 400, 18.0: 0}),  # 100 of the first are left
        ([(10.0, 300), (20.0, 500)], {20.0: 500, 21.0: 400}),  # idle between: no work is done in advance
        ([(10.0, 300), (10.0, 500)], {10.0: 800, 17.0: 100}),
        ([(10.0, 100), (10.5, 100), (11.0, 100)], {11.0: 200, 12.9: 10}),
    ],
)
def test_prompts_are_computed_one_after_another(
    books: Work, sent: list[tuple[float, int]], expected: dict[float, float]
) -> None:
    for number, (at_s, tokens) in enumerate(sent):
        books.send(f"r{number}", at_s, tokens)
    assert books.ahead(*expected) == pytest.approx(list(expected.values()))


def test_a_sample_says_anew_what_is_pending(books: Work) -> None:
    """More or less than was reckoned: of 800 tokens it has 600 left after 4.2 s."""
    for number, tokens in ((1, 200), (2, 500), (3, 100)):
        books.send(f"r{number}", 10.0 + number / 10, tokens)
    assert books.ahead(14.3) == pytest.approx([800 - 420])
    books.look(14.3, pending=2)
    assert books.ahead(14.3, 15.3) == pytest.approx([600, 500])
    books.look(15.3, pending=1)
    assert books.ahead(15.3, 15.8) == pytest.approx([100, 50]), "it was quicker"
    books.look(15.8)
    assert books.ahead(15.8) == [0]


def test_what_others_sent_is_computed_too(books: Work) -> None:
    books.send("r1", 10.0, tokens=70)
    books.look(11.0, pending=4)
    assert books.ahead(11.0, 12.0, 14.0) == pytest.approx([70 + 3 * 50, 120, 0])
    books.send("r2", 12.0, tokens=1000)
    assert books.ahead(12.0, 13.0) == pytest.approx([1120, 1020])


def test_a_late_sample_counts_from_when_it_was_taken_and_so_does_what_was_sent_since(books: Work) -> None:
    books.send("r1", 10.0, tokens=300)
    books.send("r2", 11.5, tokens=400)
    books.send("r3", 13.0, tokens=1000)
    books.look(11.0, pending=1)
    assert books.ahead(13.0, 14.0) == pytest.approx([300 - 50 + 400 - 150 + 1000, 1400])
    books.look(12.0, pending=1, delay_s=0.6)
    assert books.ahead(13.0) == pytest.approx([300 + 400 - 100 + 1000]), "the second was on its way"


def test_a_sample_that_says_what_the_one_before_said_stops_no_clock(books: Work) -> None:
    """Engines tell of their last finished step: of a prompt that fits one step nothing until its end."""
    books.send("r1", 10.0, tokens=300)
    for at_s in (10.5, 11.5, 12.5):
        books.repeat(at_s)
        assert books.ahead(at_s) == pytest.approx([300 - 100 * (at_s - 10)])


def test_the_rate_is_that_of_the_sample_between_dispatches_and_the_latest_one_since(books: Work) -> None:
    books.look(10.0, rate=50.0)
    books.send("r1", 10.0, tokens=300)
    books.send("r2", 12.0, tokens=300)
    assert books.ahead(12.0, 13.0) == pytest.approx([500, 400])


def test_where_first_tokens_are_told_all_counts_until_its_own_comes(books: Work) -> None:
    books.send("r1", 10.0, tokens=300)
    books.send("r2", 10.0, tokens=500)
    books.first_token("r1", 11.0)
    assert books.load("a").work_since_s == ALWAYS
    assert books.ahead(10.0, 11.0, 500.0) == [500] * 3
    books.send("r3", 12.0, tokens=70)
    books.look(13.0, pending=3)
    assert books.ahead(13.0, 500.0) == [570 + 50] * 2, "others' as well, until the next sample"
    books.first_token("r2", 14.0)
    assert books.ahead(14.0, 500.0) == [70 + 50] * 2


def test_an_end_without_a_first_token_says_that_none_are_told(books: Work) -> None:
    """Of many routes some tell; and a client may leave before. The latest word counts."""
    for number in range(1, 6):
        books.send(f"r{number}", 10.0, tokens=100)
    books.first_token("r1", 10.5)
    books.close("r1", 11.0)
    assert books.ahead(13.0) == [400], "it had told"
    books.close("r2", 11.0)
    assert books.ahead(13.0) == pytest.approx([500 - 300]), (
        "of what was sent, as if all had been computed from the start"
    )
    books.first_token("r3", 13.0)
    assert books.ahead(13.0, 99.0) == [200, 200]
    books.first_token("r3", 14.0)
    books.close("r4", 14.0)
    books.first_token("r3", 15.0)
    assert books.ahead(99.0) == [0], "the first only"


def test_it_is_never_more_than_what_is_pending(books: Work) -> None:
    """A long prompt whose client left is no work, though it was reckoned with."""
    books.send("long", 10.0, tokens=90_000)
    books.send("r1", 10.0, tokens=100)
    books.close("long", 10.1)
    assert books.ahead(10.1, 20.0) == [100, 100]
    books.look(20.0, pending=1)
    assert books.ahead(20.0, 20.5) == pytest.approx([100, 50])


def test_before_the_moment_from_which_it_counts_it_is_what_is_pending(books: Work) -> None:
    """A sample's age may be measured wrong, so that it seems to come from the future."""
    books.send("r1", 10.0, tokens=300)
    books.look(12.0, pending=2)
    assert books.ahead(11.0, 12.0, 13.0) == pytest.approx([350, 350, 250])


def test_a_better_count_of_what_is_pending_moves_the_work_and_of_what_has_begun_nothing(books: Work) -> None:
    for number, at_s in ((1, 9.2), (2, 9.6), (3, 11.0)):
        books.send(f"r{number}", at_s, tokens=200)
    books.look(10.0, pending=1)
    for number, expected in ((1, 300), (2, 600), (3, 900)):
        books.resize(f"r{number}", kv_blocks=1, uncached_tokens=500)
        assert books.ahead(11.0) == pytest.approx([expected])
    books.resize("r3", kv_blocks=1, uncached_tokens=1)
    assert books.ahead(11.0, 15.01) == pytest.approx([401, 0], abs=0.01)
    books.resize("r2", kv_blocks=1, uncached_tokens=1)
    assert books.ahead(11.0) == [0], "never under 0, though more was computed than it turned out to have"


def test_what_was_given_up_is_no_work(books: Work) -> None:
    books.send("left", 9.5, tokens=400)
    books.send("open", 11.0, tokens=300)
    books.look(10.0, pending=1)
    books.leave("left", 10.5)
    assert books.ahead(12.0) == pytest.approx([500])
    assert books.purge(10.5) == {"a"}
    assert books.ahead(11.0, 11.5) == pytest.approx([300, 250]), "the sample's pending one is another's now"


def test_an_engine_that_began_anew_has_nothing_to_do_and_is_asked_again_whether_it_tells(books: Work) -> None:
    books.send("r1", 10.0, tokens=300)
    books.send("r2", 10.0, tokens=300)
    books.first_token("r1", 10.5)
    books.restarted("a")
    assert books.ahead(10.5) == [0]
    assert books.first_token("r2", 10.7) is not None, "of the engine that is gone"
    books.close("r1", 10.8)
    books.send("r3", 11.0, tokens=200)
    assert books.ahead(11.0, 12.0) == pytest.approx([200, 100])
    books.look(12.0, pending=1)
    assert books.ahead(12.0, 13.0) == pytest.approx([200, 100])


def test_the_work_shrinks_at_the_rate_that_is_learned_of_the_node() -> None:
    """Through the balancer: ours, better counted later, and others'."""
    rates = ExpectedRates(prefill_tokens_per_s=1000, prefill_tokens=400)
    fleet = balancer(snapshot("a"), settings=BalancerSettings(rates=rates))

    def ahead(at_s: float) -> float:
        (seen,) = fleet.views()
        return prefill_tokens_ahead(seen, NOW_S + at_s)

    fleet.route(request("r1", tokens=4000, exact=False), POLICY, NOW_S)
    fleet.route(request("r2", tokens=500), POLICY, NOW_S + 1)
    assert [ahead(1), ahead(2)] == [3500, 2500]
    fleet.recount(request("r1", tokens=3000))
    assert [ahead(1), ahead(2)] == [2500, 1500]
    fleet.observe(NodeReported(snapshot("a", sequence=2, requests_running=4, pending_prefills=3)), NOW_S + 2)
    assert [ahead(2), ahead(2.5)] == [3000 + 500 + 400, 3400]
    fleet.first_token("r1", NOW_S + 2.5)
    assert [ahead(2.5), ahead(9)] == [900, 900]
    fleet.finish("r2", NOW_S + 3)
    assert [ahead(3), ahead(9)] == [400, 0], "the other's"


def test_the_ledger_counts_the_work_of_each_node_for_itself() -> None:
    books = Work()
    books.send("r1", 10.0, tokens=300)
    books.open(Reservation("r2", "b", 1, 0, 12.0, 500))
    assert books.load("a").work_tokens == 300
    assert books.load("b").work_tokens == 500
