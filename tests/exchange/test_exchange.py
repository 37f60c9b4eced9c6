"""What a router tells the others and takes from them, over a bus of the test's own."""

import asyncio

import pytest

from extproc.bus.bus import ENDS, LOADS, PLACEMENTS, ROUTERS
from extproc.core.sharing import LOOK_S
from extproc.exchange import wire
from extproc.exchange.complaints import LOG_INTERVAL_S
from extproc.exchange.exchange import ALL_AGAIN_S, HERE_S
from extproc.exchange.wire import Here, Loads
from tests.core.fleet import NOW_S
from tests.exchange.scripted import Line, Router, pass_time
from tests.waiting import until


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def pair(line: Line) -> tuple[Router, Router]:
    one, other = Router(line, "one"), Router(line, "other")
    one.connect()
    other.connect()
    return one, other


def open_at(router: Router) -> int:
    """What a router's decisions see of all that is open, whoever sent it."""
    return sum(view.own.sequences_open for view in router.balancer.views())


def test_each_learns_what_the_other_sent_within_an_interval(pair: tuple[Router, Router]) -> None:
    one, other = pair
    pass_time(0.5, one, other)
    one.route("one-1")
    assert (open_at(one), open_at(other)) == (1, 0)
    pass_time(0.5, one, other)
    assert (open_at(one), open_at(other)) == (1, 1)
    one.balancer.finish("one-1", one.now_s)
    pass_time(0.5, one, other)
    assert (open_at(one), open_at(other)) == (0, 0)
    assert not one.log.lines


def test_a_large_change_is_told_at_the_next_look(line: Line, pair: tuple[Router, Router]) -> None:
    one, other = pair
    pass_time(0.5, one, other)
    one.route("one-1", tokens=5000)
    pass_time(LOOK_S, one, other)
    assert open_at(other) == 1
    heard = [wire.loads_of(message, 0.0, NOW_S) for message in line.of(LOADS)]
    words = [one.told.word for one in heard if isinstance(one, Loads) and one.told.router == "one"]
    assert [word.everything for word in words][-1] is False


def test_a_newcomer_is_told_everything_at_once_though_the_interval_is_long(line: Line) -> None:
    one = Router(line, "one", interval_s=10.0, silence_s=20.0)
    one.connect()
    one.route("one-1")
    pass_time(1.0, one)
    late = Router(line, "late")
    late.now_s = one.now_s
    late.connect()
    pass_time(ALL_AGAIN_S + LOOK_S, one, late)
    assert open_at(late) == 1
    said = len(line.of(LOADS))
    for _ in range(20):
        one.bus.hear(ROUTERS, wire.here_bytes(Here("late", is_new=True)))
        pass_time(LOOK_S, one)
    assert len(line.of(LOADS)) - said <= 1 / ALL_AGAIN_S + 1, "who cries that it is new is not answered each time"


def test_prompts_that_one_sent_count_at_the_other_and_newcomers_hear_of_them(line: Line) -> None:
    async def run() -> None:
        one, other = Router(line, "one"), Router(line, "other")
        running = [asyncio.create_task(router.exchange.run()) for router in (one, other)]
        one.connect()
        other.connect()
        pass_time(0.5, one, other)  # from now on prompts are kept to be told
        blocks = tuple(range(100, 140))
        node_id = one.route("one-1", tokens=2000, prompt_blocks=blocks)
        pass_time(0.5, one, other)
        await until(lambda: other.balancer._fleet.caches.match(blocks) == {node_id: 40})
        late = Router(line, "late")
        late.now_s = one.now_s
        running.append(asyncio.create_task(late.exchange.run()))
        late.connect()
        pass_time(1.0, one, late)
        await until(lambda: late.balancer._fleet.caches.match(blocks) == {node_id: 40})
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(run())


def test_without_placements_no_prompt_is_told_or_taken(line: Line) -> None:
    one, other, third = Router(line, "one", placements=False), Router(line, "other"), Router(line, "third")
    for router in (one, other, third):
        router.connect()
    pass_time(0.5, one, other)
    for router in (one, other):
        router.route("r-1", prompt_blocks=tuple(range(40)))
    pass_time(1.0, one, other)
    assert len(line.of(PLACEMENTS)) == 1
    assert one.exchange._placements_taken.waiting_bytes == 0
    assert other.exchange._placements_taken.waiting_bytes == 0, "it knows its own"
    assert third.exchange._placements_taken.waiting_bytes > 0


def test_a_router_says_that_it_is_there_each_second_and_when_it_comes_and_goes(line: Line) -> None:
    one = Router(line, "one")
    one.connect()
    pass_time(3 * HERE_S + 5 * LOOK_S, one)
    one.exchange.leave()
    said = len(line.of(LOADS))
    pass_time(2.0, one)
    heard = [wire.here_of(message) for message in line.of(ROUTERS)]
    assert heard == [Here("one", is_new=True), *[Here("one")] * 3, Here("one", leaves=True)]
    assert len(line.of(LOADS)) == said, "who has left says nothing more"


def test_who_leaves_is_forgotten_at_once_and_late_words_do_not_bring_it_back(
    line: Line, pair: tuple[Router, Router]
) -> None:
    one, other = pair
    one.route("one-1")
    pass_time(1.0, one, other)
    assert [peer.router for peer in other.exchange.state(other.now_s).peers] == ["one"]
    last = line.of(LOADS)[-1]
    one.exchange.leave()
    assert open_at(other) == 0
    other.bus.hear(LOADS, last)
    assert open_at(other) == 0
    assert other.exchange.state(other.now_s).peers == []


def test_who_falls_silent_is_forgotten(pair: tuple[Router, Router]) -> None:
    one, other = pair
    one.route("one-1")
    pass_time(1.0, one, other)
    pass_time(2.0, other)
    assert open_at(other) == 1
    pass_time(1.0, other)
    other.balancer.tick(other.now_s)
    assert open_at(other) == 0
    assert other.exchange.state(other.now_s).peers == []
    pass_time(0.5, one)  # it is back, on another clock
    assert [peer.router for peer in other.exchange.state(other.now_s).peers] == ["one"]


def test_a_bus_that_is_down_is_said_and_back_it_heals(line: Line, pair: tuple[Router, Router]) -> None:
    one, other = pair
    pass_time(0.5, one, other)
    for router in pair:
        router.bus.connected = False
    one.route("one-1")
    pass_time(10.0, one, other)
    for router in pair:
        router.balancer.tick(router.now_s)
    state = other.exchange.state(other.now_s)
    assert (state.connected, state.peers, open_at(other)) == (False, [], 0)
    assert state.for_s == pytest.approx(10, abs=0.1)
    assert other.counted("extproc_bus_connected") == 0
    assert other.counted("extproc_peers") == 0
    for router in pair:
        router.connect()
    pass_time(ALL_AGAIN_S + LOOK_S, one, other)
    assert open_at(other) == 1
    assert other.counted("extproc_bus_connected") == 1
    assert other.counted("extproc_peers") == 1


def test_why_the_bus_does_not_do_what_it_should_is_said(pair: tuple[Router, Router]) -> None:
    one, _ = pair
    state = one.exchange.state(one.now_s)
    assert (state.reason, state.way_s) == (None, None)
    one.bus.refused = "no permission for loads"
    assert one.exchange.state(one.now_s).reason == "no permission for loads"
    one.bus.reason = "nobody listens there"
    one.bus.way_s = 0.002
    state = one.exchange.state(one.now_s)
    assert (state.reason, state.way_s) == ("nobody listens there", 0.002)


def test_no_more_peers_are_known_than_may_be(line: Line) -> None:
    few = Router(line, "few", peers_max=2)
    few.connect()
    for number in range(4):
        few.bus.hear(ROUTERS, wire.here_bytes(Here(f"r{number}")))
    assert [peer.router for peer in few.exchange.state(few.now_s).peers] == ["r0", "r1"]


def test_its_own_messages_mean_nothing_to_a_router(line: Line) -> None:
    one = Router(line, "one")
    one.connect()
    pass_time(0.5, one)
    one.route("one-1", prompt_blocks=tuple(range(40)))
    pass_time(1.0, one)
    assert one.exchange.state(one.now_s).peers == []
    assert one.balancer.peers(one.now_s) == []
    assert open_at(one) == 1
    counts = one.exchange.state(one.now_s).messages
    assert all(counts["sent"][kind] for kind in (LOADS, PLACEMENTS, ROUTERS))
    assert counts["received"] == {}, "it is said of others' alone"


@pytest.mark.parametrize("channel", [LOADS, ROUTERS, ENDS])
def test_what_is_wrong_is_refused_counted_and_logged_now_and_then(line: Line, channel: str) -> None:
    one = Router(line, "one")
    one.connect()
    for _ in range(5):
        one.bus.hear(channel, b"\xff")
    assert [event for event, _ in one.log.lines] == ["message of a router refused"]
    assert one.log.lines[0][1]["channel"] == channel
    one.now_s += LOG_INTERVAL_S
    one.bus.hear(channel, b"\xff")
    assert one.log.lines[-1][1]["left_out"] == 4
    assert one.counted("extproc_exchange_refused_total", kind=channel) == 6


def test_faults_of_ours_are_counted_and_stop_nothing(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Router(line, "one"), Router(line, "other")
    one.connect()
    other.connect()

    def broken(*_: object) -> bool:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(one.balancer, "peer", broken)
        other.route("other-1")
        pass_time(0.6, other)
    assert one.counted("extproc_errors_total", where="exchange") > 0
    pass_time(0.6, other)
    assert open_at(one) == 1


def test_a_loop_that_fails_goes_on(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        one = Router(line, "one")
        one.connect()
        with monkeypatch.context() as patch:
            patch.setattr(one.balancer, "word", lambda *_, **__: 1 / 0)
            running = asyncio.create_task(one.exchange.run())
            await until(lambda: one.counted("extproc_errors_total", where="exchange") >= 2)
        said = len(line.of(LOADS))
        one.now_s += 10
        await until(lambda: len(line.of(LOADS)) > said)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_a_word_is_as_old_as_both_ways(line: Line, pair: tuple[Router, Router]) -> None:
    one, other = pair
    one.bus.way_s = 1.0
    other.bus.way_s = 0.5
    pass_time(0.5, one, other)
    (peer,) = other.exchange.state(other.now_s).peers
    assert peer.age_s is not None
    assert 1.5 <= peer.age_s < 1.5 + 0.6
