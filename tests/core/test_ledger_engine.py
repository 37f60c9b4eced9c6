"""The ledger against an exact model of an engine: with delays, losses, restarts, and samples late or out of order."""

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.loads import prefill_tokens_ahead
from extproc.core.snapshot import ALWAYS, NO_LOAD
from tests.core.enginemodel import TICKS_PER_S, World
from tests.core.fleet import counts_of

SENDS = st.tuples(st.just("send"), st.integers(1, 600), st.integers(1, 2000))
SAMPLES = st.tuples(st.just("sample"), st.integers(0, 3 * TICKS_PER_S), st.booleans())
WAITS = st.tuples(st.just("wait"), st.integers(0, TICKS_PER_S), st.just(0))
ABORTS = st.tuples(st.just("abort"), st.integers(1, 20), st.just(0))
OTHERS = st.tuples(st.just("other"), st.integers(1, 600), st.integers(1, 2000))
RESTARTS = st.tuples(st.just("restart"), st.just(0), st.just(0))
LOSSES = st.tuples(st.just("lose"), st.booleans(), st.booleans())
HONEST = st.lists(SENDS | SAMPLES | WAITS, max_size=40)
ANYTHING = st.lists(SENDS | SAMPLES | WAITS | ABORTS | OTHERS | RESTARTS | LOSSES, max_size=40)
DELAYS = st.integers(0, 200)
Steps = list[tuple[str, int, int]]


def step(world: World, kind: str, first: int, second: int) -> None:
    match kind:
        case "send":
            world.send(first, second)
        case "other":
            world.send_another(first, second)
        case "sample":
            world.sample(first, is_lost=bool(second))
        case "abort":
            world.abort(f"r{first}")
        case "restart":
            world.restart()
        case "lose":
            world.tells_first_tokens, world.tells_ends = bool(first), bool(second)
        case _:
            world.wait(first)
    world.wait(1)


def check_work(world: World) -> None:
    """What is ahead is no more than what is pending, and all of it where first tokens are told."""
    view = world.view
    ahead = prefill_tokens_ahead(view, world.now_s)
    assert 0 <= ahead <= view.prefill_tokens_pending
    assert ahead == view.prefill_tokens_pending or view.own.work_since_s < ALWAYS


@settings(max_examples=200)
@given(steps=HONEST, delay=DELAYS)
def test_one_router_that_sees_every_end_counts_as_if_for_itself(steps: Steps, delay: int) -> None:
    """Whatever samples come when, in whatever order: none makes the count any worse than the router's own."""
    world = World(delay)
    for one in steps:
        step(world, *one)
        assert world.view.in_flight == len(world.open)
        assert world.view.prefill_tokens_pending == sum(world.unstarted.values())
        check_work(world)
    world.run_dry()
    assert (world.view.in_flight, world.view.prefill_tokens_pending) == (0, 0)


@settings(max_examples=200)
@given(steps=HONEST, delay=DELAYS, age=st.integers(0, TICKS_PER_S))
def test_where_no_first_token_is_told_samples_tell_which_are_pending(steps: Steps, delay: int, age: int) -> None:
    """Exactly, of an engine that serves first come first served; what was sent since counts as pending."""
    world = World(delay, tells_first_tokens=False)
    for one in steps:
        step(world, *one)
    taken = world.now
    world.sample(age)
    world.wait(age + delay)
    expected = sum(
        tokens
        for request_id, tokens in world.open.items()
        if world.sent_ticks[request_id] >= taken - delay or world.begun_ticks[request_id] > taken
    )
    assert world.view.prefill_tokens_pending == expected


@settings(max_examples=200)
@given(sends=st.lists(st.tuples(st.integers(1, 600), st.integers(1, 300)), min_size=1, max_size=20))
def test_where_no_first_token_is_told_the_work_is_what_the_engine_has_left(sends: list[tuple[int, int]]) -> None:
    """Exactly, of one that computes at the learned rate: a token a tick."""
    world = World(tells_first_tokens=False, rate=float(TICKS_PER_S))
    for tokens, wait in sends:
        world.send(tokens, 10_000)
        world.wait(wait)
        left = max(0, world.free_tick - world.now)
        assert prefill_tokens_ahead(world.view, world.now_s) == left
    taken = world.now
    world.sample(100)
    world.wait(100)
    newest_whole = sum(world.open[name] for name, begun in world.begun_ticks.items() if begun > taken)
    left = max(0, newest_whole - 100)
    assert prefill_tokens_ahead(world.view, world.now_s) == left, "a sample tells of whole prompts only"


@settings(max_examples=300)
@given(steps=ANYTHING, delay=DELAYS)
def test_whatever_is_lost_nothing_is_negative_and_the_next_samples_put_it_right(steps: Steps, delay: int) -> None:
    world = World(delay)
    for one in steps:
        step(world, *one)
        own = world.view.own
        assert min(own.sequences_open, own.sequences_unseen, own.requests_unseen, own.sequences_finished) >= 0
        assert min(own.prefill_tokens, own.prefills_of_others, world.view.in_flight) >= 0
        check_work(world)
    world.wait(delay + 1)
    truth = len(world.there())
    world.sample()
    world.wait(delay)
    assert world.view.in_flight == truth, "at once, while it is busy"
    world.run_dry()
    for _ in range(2):
        world.sample()
        world.wait(TICKS_PER_S)
    assert (counts_of(world.view.own), world.view.in_flight, world.view.prefill_tokens_pending) == (NO_LOAD, 0, 0)
    assert world.fleet.requests_open == 0, "what was left is over, since nothing is there"
