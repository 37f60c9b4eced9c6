"""Which other routers count as there."""

from extproc.core.exchangesettings import ExchangeSettings
from extproc.exchange.routers import EVER_S, LEFT_KEPT_MAX, Routers


def test_a_router_counts_until_it_is_silent_or_leaves() -> None:
    routers = Routers(ExchangeSettings(silence_s=2.5))
    assert routers.heard("a", 10.0)
    assert routers.heard("b", 11.0)
    routers.expire(12.5)
    assert routers.names() == ["a", "b"]
    routers.expire(12.6)
    assert routers.names() == ["b"]
    routers.left("b", 12.6)
    assert not routers.heard("b", 12.7)
    assert "b" not in routers
    routers.expire(15.2)
    assert routers.heard("b", 15.2)
    assert len(routers) == 1


def test_some_router_hears_ends_while_it_says_so() -> None:
    routers = Routers(ExchangeSettings())
    routers.heard("a", 1.0)
    assert not routers.hears_ends
    routers.heard("a", 1.0, hears_ends=True)
    routers.heard("a", 1.0)
    assert routers.hears_ends
    routers.heard("a", 1.0, hears_ends=False)
    assert not routers.hears_ends


def test_who_left_is_remembered_up_to_a_bound() -> None:
    routers = Routers(ExchangeSettings(peers_max=1000))
    for number in range(LEFT_KEPT_MAX + 1):
        routers.left(f"r{number}", 1.0)
    assert not routers.heard(f"r{LEFT_KEPT_MAX - 1}", 1.0)
    assert routers.heard(f"r{LEFT_KEPT_MAX}", 1.0)


def test_who_was_heard_in_the_last_minutes_may_be_back() -> None:
    routers = Routers(ExchangeSettings(peers_max=2))
    for number in range(5):
        routers.heard(f"r{number}", 10.0 * number)
        routers.expire(10.0 * number + 5)
    assert [routers.was_heard(f"r{number}") for number in range(5)] == [False, True, True, True, True]
    routers.expire(40.0 + EVER_S)
    assert [routers.was_heard(f"r{number}") for number in range(3, 5)] == [False, True]
    assert not routers.was_heard("other")
