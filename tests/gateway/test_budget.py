from extproc.gateway.budget import BodyBudget, BodyShare


def test_what_has_come_is_held_and_no_longer_claimed() -> None:
    budget = BodyBudget(1000)
    share = BodyShare(budget)
    assert share.claim(600)
    assert (budget.bytes_claimed, budget.bytes_held) == (600, 0)
    assert share.hold(500)
    assert (budget.bytes_claimed, budget.bytes_held) == (0, 500)
    assert BodyShare(budget).claim(500), "the rest of the claim is free again"


def test_a_refusal_takes_nothing_and_a_share_is_given_back_once() -> None:
    budget = BodyBudget(1000)
    share, other = BodyShare(budget), BodyShare(budget)
    assert share.hold(700)
    assert not other.claim(301)
    assert not other.hold(301)
    assert budget.bytes_reserved == 700
    share.give_back()
    share.give_back()
    assert budget.bytes_reserved == 0
