"""Ejection through the balancer: who gets requests while nodes fail them."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.balancer import Balancer
from extproc.core.ejection import PROBE_S
from extproc.core.fleetstate import BOOT_S_MIN
from extproc.core.outcome import Answered, Ending
from extproc.core.settings import BalancerSettings, EjectionSettings
from extproc.core.snapshot import NodeLeft, NodeReported, ServedModel
from tests.core.fleet import NOW_S, POLICY, balancer, node_of, request, snapshot

WELL = EjectionSettings()


def ended(fleet: Balancer, request_id: str, ending: Ending, at_s: float, host: str | None = None) -> None:
    fleet.answered(Answered(request_id, ending, host), at_s)


def sent(fleet: Balancer, request_id: str, at_s: float = NOW_S) -> str:
    return node_of(fleet.route(request(request_id), POLICY, at_s))


def served(fleet: Balancer, count: int, at_s: float, name: str = "s") -> Counter[str]:
    """Who takes so many requests, one after another, each of which is served."""
    nodes = Counter[str]()
    for number in range(count):
        nodes[sent(fleet, f"{name}{number}", at_s)] += 1
        ended(fleet, f"{name}{number}", Ending.SERVED, at_s)
    return nodes


def test_one_client_sees_the_failure_and_the_others_go_elsewhere() -> None:
    fleet = balancer(*(snapshot(name) for name in "abc"))
    bad = sent(fleet, "r1")
    ended(fleet, "r1", Ending.UNREACHABLE, NOW_S)
    assert bad not in served(fleet, 60, NOW_S + WELL.first_s - 0.01)
    assert set(fleet.out_until_s) == {bad}


def test_it_is_tried_again_with_one_request_at_a_time() -> None:
    fleet = balancer(*(snapshot(name) for name in "abc"))
    bad = sent(fleet, "r1")
    ended(fleet, "r1", Ending.UNREACHABLE, NOW_S)
    burst = Counter(sent(fleet, f"b{number}", NOW_S + WELL.first_s) for number in range(30))
    assert burst[bad] == 1
    trial = next(f"b{number}" for number in range(30) if reserved(fleet, f"b{number}") == bad)
    back_s = NOW_S + WELL.first_s + 1
    ended(fleet, trial, Ending.SERVED, back_s)
    assert served(fleet, 30, back_s, "after")[bad] > 5


def reserved(fleet: Balancer, request_id: str) -> str | None:
    found = fleet._fleet.ledger.get(request_id)
    return None if found is None else found.node_id


def test_a_first_token_is_an_answer() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"))
    bad = sent(fleet, "r1")
    ended(fleet, "r1", Ending.UNREACHABLE, NOW_S)
    trials = [f"t{number}" for number in range(8)]
    for trial in trials:
        sent(fleet, trial, NOW_S + WELL.first_s)
    (trial,) = (one for one in trials if reserved(fleet, one) == bad)
    fleet.first_token(trial, NOW_S + WELL.first_s + 0.1)
    assert not fleet.out_until_s


def test_the_node_that_served_is_the_one_that_counts() -> None:
    """Envoy may have tried another host than the one we chose."""
    fleet = balancer(*(snapshot(name) for name in "abc"))
    chosen = sent(fleet, "r1")
    other = "b" if chosen != "b" else "c"
    ended(fleet, "r1", Ending.UNREACHABLE, NOW_S, snapshot(other).host)
    assert set(fleet.out_until_s) == {other}
    ended(fleet, "never ours", Ending.UNREACHABLE, NOW_S, "10.9.9.9:1")
    ended(fleet, "never ours either", Ending.UNREACHABLE, NOW_S)
    assert set(fleet.out_until_s) == {other}


def test_the_last_node_that_could_serve_is_never_left_out() -> None:
    settings = BalancerSettings(ejection=EjectionSettings(share_max=1))
    fleet = balancer(snapshot("a"), snapshot("b", models=(ServedModel("other"),)), settings=settings)
    for number in range(10):
        assert sent(fleet, f"r{number}", NOW_S + number / 10) == "a"
        ended(fleet, f"r{number}", Ending.UNREACHABLE, NOW_S + number / 10)


def test_two_nodes_that_both_fail_share_what_comes() -> None:
    settings = BalancerSettings(ejection=EjectionSettings(share_max=1))
    fleet = balancer(snapshot("a"), snapshot("b"), settings=settings)
    for host in (snapshot("a").host, snapshot("b").host):
        ended(fleet, "r", Ending.UNREACHABLE, NOW_S, host)
    assert set(fleet.out_until_s) == {"a", "b"}
    assert len(served(fleet, 40, NOW_S + 0.5)) == 2


def test_what_fails_is_left_out_of_every_round_robin_too() -> None:
    """Of the fallback, where all snapshots are stale, and of what is no inference."""
    fleet = balancer(snapshot("a"), snapshot("b"), snapshot("c"))
    ended(fleet, "r", Ending.UNREACHABLE, NOW_S, snapshot("b").host)
    at_s = NOW_S + 0.5
    assert {node_of(fleet.route_uninspected(f"u{number}", "", at_s)) for number in range(9)} == {"a", "c"}
    stale_s = NOW_S + FRESH_S
    ended(fleet, "r", Ending.UNREACHABLE, stale_s, snapshot("c").host)
    fleet.tick(stale_s)
    ids = [f"r{number}" for number in range(9)]
    assert Counter(sent(fleet, one, stale_s) for one in ids)["b"] == 1, "its trial"
    assert {node_of(fleet.route_uninspected(one, "", stale_s)) for one in ids} == {"a", "c"}


def test_a_restart_or_a_goodbye_wipes_the_slate() -> None:
    fleet = balancer(*(snapshot(name) for name in "abcd"))
    for name in "ab":
        ended(fleet, "r", Ending.UNREACHABLE, NOW_S, snapshot(name).host)
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), NOW_S + BOOT_S_MIN)
    assert set(fleet.out_until_s) == {"b"}
    fleet.observe(NodeLeft("b", "boot-1"), NOW_S + BOOT_S_MIN)
    assert not fleet.out_until_s


def test_the_last_words_of_a_node_that_is_gone_leave_nothing() -> None:
    """Its open requests are reset after its goodbye. It must not count as out for ever after, in nobody's stead."""
    fleet = balancer(*(snapshot(name) for name in "abcd"))
    there = [sent(fleet, f"r{number}") for number in range(8)]
    for name in "ab":
        fleet.observe(NodeLeft(name, "boot-1"), NOW_S)
    for number, name in enumerate(there):
        if name in "ab":
            ended(fleet, f"r{number}", Ending.UNREACHABLE, NOW_S)
    assert not fleet.out_until_s
    assert not fleet._fleet.ejections._states
    ended(fleet, "r", Ending.UNREACHABLE, NOW_S, snapshot("c").host)
    assert set(fleet.out_until_s) == {"c"}


NAMES = "abcde"
FRESH_S = BalancerSettings().nodes.fresh_s
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["route", "route", "end", "end", "first token", "restart", "wait"]),
        st.integers(0, 40),
        st.sampled_from(Ending),
        st.sampled_from(NAMES),
        st.floats(0, 5),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(steps=STEPS, share=st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_whatever_fails_somebody_serves_no_more_than_the_share_is_out_and_trials_are_single(
    steps: list[tuple[str, int, Ending, str, float]], share: float
) -> None:
    fleet = balancer(
        *(snapshot(name) for name in NAMES), settings=BalancerSettings(ejection=EjectionSettings(share_max=share))
    )
    now_s, routed, boots = NOW_S, 0, dict.fromkeys(NAMES, 1)
    for kind, number, ending, name, passed_s in steps:
        match kind:
            case "route":
                able = {one.snapshot.node_id for one in fleet.views() if now_s - one.sampled_at_s < FRESH_S} or set(
                    NAMES
                )
                out = {node for node, until_s in fleet.out_until_s.items() if until_s > now_s}
                on_trial = set(fleet.out_until_s) - out
                chosen = sent(fleet, f"r{routed}", now_s)
                routed += 1
                assert chosen not in out or out >= able, "the last one is never out"
                assert chosen not in on_trial or fleet.out_until_s[chosen] == now_s + PROBE_S, "no second trial"
            case "end":
                ended(fleet, f"r{number}", ending, now_s)
            case "first token":
                fleet.first_token(f"r{number}", now_s)
            case "restart":
                boots[name] += 1
                fleet.observe(NodeReported(snapshot(name, boot_id=f"boot-{boots[name]}")), now_s)
            case _:
                # Some agents report again; where none did for long, the fallback chooses.
                now_s += passed_s
                for one in NAMES[: number % 6]:
                    told = snapshot(one, boot_id=f"boot-{boots[one]}", sequence=round(now_s * 1000))
                    fleet.observe(NodeReported(told), now_s)
        assert len(fleet.out_until_s) <= share * len(NAMES)
        assert all(until_s <= now_s + max(WELL.longest_s, PROBE_S) for until_s in fleet.out_until_s.values())
