"""A balancer that hears what other routers have at the nodes."""

import pytest
from hypothesis import given

from extproc.core.admissionsettings import PriorityClass
from extproc.core.balancer import Balancer
from extproc.core.decision import Queued
from extproc.core.fleetstate import BOOT_S_MIN
from extproc.core.outcome import Answered, Ending
from extproc.core.peers import PeerState
from extproc.core.peershares import PeerLeft, PeerTold, Word
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeLeft, NodeReported, NodeView
from extproc.core.staticsettings import StaticModel, StaticNode
from extproc.journal.balancer import balancer as journal_balancer
from extproc.journal.balancer import close
from tests.core.fleet import MODEL, NOW_S, POLICY, SETTINGS, balancer, node_of, request, snapshot
from tests.core.words import busy, share, told
from tests.journaled import FLEET, LIVES, START_S, Call, config, live, no_fault

SILENCE_S = SETTINGS.exchange.silence_s


def sees(fleet: Balancer, node_id: str = "a") -> tuple[int, float]:
    """Requests and prompt tokens."""
    view = fleet.view_of(node_id)
    assert view is not None
    return view.in_flight, view.prefill_tokens_pending


def test_a_node_where_others_have_much_is_passed_over() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"))
    assert fleet.peer(told(busy("a", 5, 5000)), NOW_S)
    assert sees(fleet) == (5, 5000)
    assert {node_of(fleet.would_route(request(f"r{n}"), POLICY, NOW_S)) for n in range(20)} == {"b"}
    fleet.peer(told(busy("b", 9, 9000), router="q"), NOW_S)
    assert {node_of(fleet.would_route(request(f"r{n}"), POLICY, NOW_S)) for n in range(20)} == {"a"}
    assert fleet.peers(NOW_S + 1) == [PeerState("p", 1.0, 5), PeerState("q", 1.0, 9)]


def test_what_we_send_counts_beside_what_others_have() -> None:
    fleet = balancer(snapshot("a"))
    fleet.peer(told(busy("a", 5, 5000)), NOW_S)
    fleet.route(request("r1", 100), POLICY, NOW_S)
    assert sees(fleet) == (6, 5100)
    fleet.first_token("r1", NOW_S)
    assert sees(fleet) == (6, 5000)
    fleet.finish("r1", NOW_S)
    assert sees(fleet) == (5, 5000)


def test_a_sample_heals_what_a_word_says() -> None:
    """Of what others had sent before it, it shows what is left."""
    fleet = balancer(snapshot("a"))
    fleet.peer(told(busy("a", 5, 5000, requests_held=0)), NOW_S)
    fleet.observe(NodeReported(snapshot("a", sequence=2, requests_running=2)), NOW_S + 0.5)
    assert sees(fleet) == (2, 0)
    fleet.peer(told(busy("a", 1, 300, seen_until_s=NOW_S + 0.5), sequence=2, made_at_s=NOW_S + 0.6), NOW_S + 0.6)
    assert sees(fleet) == (3, 300)


@pytest.mark.parametrize("how", ["tick", "another's word", "it left"])
def test_who_is_gone_counts_no_longer(how: str) -> None:
    fleet = balancer(snapshot("a"))
    fleet.peer(told(busy("a", 5, 5000)), NOW_S)
    match how:
        case "tick":
            fleet.tick(NOW_S + SILENCE_S)
            assert sees(fleet) == (5, 5000)
            fleet.tick(NOW_S + SILENCE_S + 0.01)
        case "it left":
            assert fleet.peer(PeerLeft("p"), NOW_S)
        case _:
            fleet.peer(told(router="q", made_at_s=NOW_S + SILENCE_S + 0.01), NOW_S + SILENCE_S + 0.01)
    assert sees(fleet) == (0, 0)


def test_a_place_that_somebody_gone_had_is_free_at_once() -> None:
    settings = BalancerSettings(exchange=SETTINGS.exchange.model_copy(update={"peers_max": 1}))
    fleet = balancer(snapshot("a"), settings=settings)
    fleet.peer(told(busy("a", 5)), NOW_S)
    assert not fleet.peer(told(busy("a", 2), router="q"), NOW_S)
    later_s = NOW_S + SILENCE_S + 0.01
    assert fleet.peer(told(busy("a", 2), router="q", made_at_s=later_s), later_s)
    assert sees(fleet)[0] == 2


def test_words_about_nodes_that_are_not_known_yet_count_when_they_are() -> None:
    fleet = balancer(snapshot("a"))
    fleet.peer(told(busy("b", 5, 500)), NOW_S)
    assert fleet.view_of("b") is None
    fleet.observe(NodeReported(snapshot("b")), NOW_S)
    assert sees(fleet, "b") == (5, 500)
    fleet.observe(NodeLeft("b", "boot-1"), NOW_S)
    fleet.observe(NodeReported(snapshot("b", sequence=2)), NOW_S + 0.1)
    assert sees(fleet, "b") == (0, 0), "it left, and so did what was there"
    fleet.peer(told(busy("b", 2, 200), sequence=2), NOW_S + 0.1)
    assert sees(fleet, "b") == (2, 0)
    fleet.peer(told(busy("b", 2, 200), sequence=3, made_at_s=NOW_S + 0.2), NOW_S + 0.2)
    assert sees(fleet, "b") == (2, 100), "half of the time since its sample has passed since ours"


def test_an_engine_that_began_anew_has_nothing_of_others() -> None:
    fleet = balancer(snapshot("a"))
    fleet.peer(told(busy("a", 5, 500)), NOW_S)
    at_s = NOW_S + BOOT_S_MIN
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), at_s)
    assert sees(fleet) == (0, 0)


def test_what_is_gone_with_an_engine_that_began_anew_is_told_at_once() -> None:
    fleet = balancer(snapshot("a"))
    for number in range(5):
        fleet.route(request(f"r{number}", 1000), POLICY, NOW_S)
    at_s = NOW_S + BOOT_S_MIN
    fleet.word(at_s)
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), at_s + 0.1)
    word = fleet.word(at_s + 0.1)
    assert word is not None
    assert [(one.node_id, one.sequences_open, one.requests_held) for one in word.shares] == [("a", 0, 0)]


def test_static_nodes_have_what_all_routers_have_open_there() -> None:
    node = StaticNode(host="10.0.0.1:8000", node_id="z", models=(StaticModel(name=MODEL),))
    fleet = balancer(settings=BalancerSettings(static_nodes=(node,)))
    fleet.route(request("r1", 100), POLICY, NOW_S)
    fleet.peer(told(busy("z", 5, 500, seen_until_s=None)), NOW_S + 1)
    assert sees(fleet, "z") == (6, 600)


def test_nodes_that_hide_everything_have_what_all_routers_sent_however_long_ago_each_began() -> None:
    """Their samples are all alike, so each router stays with the first that it got."""
    hidden = dict.fromkeys(("requests_running", "requests_waiting", "pending_prefills", "active_decodes", "kv_usage"))
    fleet = balancer(snapshot("a", **hidden))
    fleet.route(request("r1", 100), POLICY, NOW_S + 50)
    for its_first_s in (NOW_S - 3600, NOW_S + 40, None):
        word = told(busy("a", 5, 500, seen_until_s=its_first_s), router=f"p{its_first_s}", made_at_s=NOW_S + 50)
        fleet.peer(word, NOW_S + 50)
    assert sees(fleet) == (16, 1600)


def test_who_waits_goes_when_another_router_left_room() -> None:
    """A queue that others filled as far as we know."""
    classes = {"patient": PriorityClass(queue_ms_max=60_000)}
    fleet = balancer(
        snapshot("a", requests_waiting=1, pending_prefills=1),
        settings=BalancerSettings(classes=classes, default_class="patient"),
    )
    asked: list[str] = []
    fleet.on_room = lambda: asked.append("room")
    fleet.peer(told(busy("a", 200)), NOW_S)
    policy = RoutingPolicy()
    decision = fleet.route(request("r1", priority="patient"), policy, NOW_S)
    assert isinstance(decision.outcome, Queued)
    assert fleet.admit(NOW_S + 0.1) == []
    asked.clear()
    fleet.peer(told(share("a"), sequence=2, everything=False, made_at_s=NOW_S + 0.2), NOW_S + 0.2)
    assert asked
    assert [node_of(one) for one in fleet.admit(NOW_S + 0.2)] == ["a"]
    asked.clear()
    fleet.peer(told(busy("a", 2), sequence=3, made_at_s=NOW_S + 0.3), NOW_S + 0.3)
    assert not asked, "nobody waits"


def test_who_is_out_is_so_by_what_we_saw_ourselves() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"), snapshot("c"))
    fleet.answered(Answered("x", Ending.UNREACHABLE, snapshot("a").host), NOW_S)
    assert set(fleet.out_until_s) == {"a"}
    before = dict(fleet.out_until_s)
    fleet.peer(told(busy("a", 5), busy("b", 5)), NOW_S)
    fleet.peer(PeerLeft("p"), NOW_S)
    assert dict(fleet.out_until_s) == before


def views_of(fleet: Balancer) -> list[NodeView]:
    return list(fleet.views())


def test_absurd_words_make_no_node_unusable_for_longer_than_they_count() -> None:
    fleet, other = (balancer(snapshot("a"), snapshot("b")) for _ in range(2))
    huge = dict.fromkeys(
        ("requests_held", "sequences_open", "sequences_unseen", "tokens_unseen", "tokens_unstarted", "sent_tokens"),
        2**60,
    )
    for node_id in "ab":
        fleet.peer(
            told(share(node_id, kv_blocks_unseen=-(2**60), sequences_finished=2**60, **huge), router=node_id), NOW_S
        )
    assert node_of(fleet.would_route(request("r"), POLICY, NOW_S)) in "ab", "somebody serves it all the same"
    fleet.tick(NOW_S + SILENCE_S + 0.01)
    other.tick(NOW_S + SILENCE_S + 0.01)
    assert views_of(fleet) == views_of(other)


@given(LIVES)
def test_after_a_while_without_a_word_all_is_as_if_nobody_had_been_heard(life: list[Call]) -> None:
    """What was sent where meanwhile is not the same; so of each node what is ours alone is left."""
    fleet = journal_balancer(config(None), START_S, no_fault)
    assert isinstance(fleet, Balancer)
    live(fleet, FLEET + life)
    fleet.tick(now_s := START_S + 100_000.0)
    assert not fleet.peers(now_s)
    assert not fleet._fleet.peers._loads
    assert not fleet._fleet.peers._left
    for view in fleet.views():
        assert view.own == fleet._fleet.ledger.load(view.snapshot.node_id)
    close(fleet)


@given(LIVES)
def test_telling_others_decides_nothing(life: list[Call]) -> None:
    """Nor does keeping for them what was sent where."""
    ask: Call = ("asked_by_peers", {})
    silent = [call for call in FLEET + life if call[0] != "asked_by_peers"]
    # Calls are a moment apart, so somewhat else stands where nobody asks.
    nothing: Call = ("settle", {})
    decided = []
    for between in (nothing, ask):
        fleet = journal_balancer(config(None), START_S, no_fault)
        assert isinstance(fleet, Balancer)
        decided.append((live(fleet, [one for call in silent for one in (between, call)]), views_of(fleet)))
    assert decided[0] == decided[1]


@given(LIVES)
def test_no_life_makes_a_count_negative(life: list[Call]) -> None:
    fleet = journal_balancer(config(None), START_S, no_fault)
    assert isinstance(fleet, Balancer)
    live(fleet, FLEET + life)
    for view in fleet.views():
        own = fleet._fleet.ledger.load(view.snapshot.node_id)
        assert view.in_flight >= own.requests_held >= 0
        assert (
            view.own.prefill_tokens
            >= own.prefill_tokens - fleet._fleet.ledger.pending(view.snapshot.node_id).tokens_shown
        )
        assert min(view.prefill_tokens_pending, view.own.work_tokens, view.own.sent_tokens) >= 0
        assert min(view.own.sequences_unseen, view.own.sequences_finished, view.own.tokens_unstarted) >= 0


def test_two_balancers_that_tell_each_other_spread_what_comes() -> None:
    """The herd: by samples alone both send all to the idle one."""
    names = "abcd"
    alone = [balancer(*map(snapshot, names)) for _ in range(2)]
    telling = [balancer(*map(snapshot, names)) for _ in range(2)]
    for fleets, tells in ((alone, False), (telling, True)):
        for number in range(8):
            now_s = NOW_S + number * 0.01
            fleets[number % 2].route(request(f"r{number}", 1000), POLICY, now_s)
            word = fleets[number % 2].word(now_s, everything=True)
            assert word is not None
            if tells:
                fleets[1 - number % 2].peer(PeerTold(str(number % 2), number, now_s, word), now_s)

    def most(fleets: list[Balancer]) -> int:
        return max(sum(one.own_load(name).sequences_open for one in fleets) for name in names)

    assert most(telling) == 2
    assert most(alone) >= 2
    view = telling[0].view_of("a")
    assert view is not None
    assert view.in_flight == 2, "each knows of all"


def test_a_word_is_about_nodes_where_something_is() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"))
    assert fleet.word(NOW_S) == Word(everything=True, shares=())
    fleet.route(request("r1", 1000), POLICY, NOW_S)
    word = fleet.word(NOW_S + 0.5)
    assert word is not None
    (one,) = word.shares
    assert (one.requests_held, one.sequences_unseen, one.tokens_unseen, one.tokens_unstarted) == (1, 1, 1000, 1000)
    assert one.seen_until_s == NOW_S
