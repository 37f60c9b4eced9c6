"""More tenants than are remembered at a time: who is dropped, and that nobody gains by it."""

from extproc.core.quotas import Exceeded
from tests.core.test_quotas import LIMIT, goes, quotas, refused


def test_at_the_bound_what_is_full_goes_first_and_costs_nothing() -> None:
    limits = quotas(buckets_max=2)
    goes(limits, LIMIT, 0, "a", "r1")
    limits.close("r1", None, 0)
    goes(limits, 100, 0, "b", "r2")
    limits.close("r2", None, 0)
    assert goes(limits, LIMIT, 1, "c", "r3"), "b is full again"
    assert {key[1] for key in limits._buckets} == {"a", "c"}
    assert not goes(limits, 101, 1, "a")


def test_at_the_bound_a_newcomer_has_no_more_than_the_one_in_whose_place_it_comes() -> None:
    limits = quotas(buckets_max=2)
    for tenant, tokens in (("a", 5000), ("b", 4000)):
        goes(limits, tokens, 0, tenant, tenant)
        limits.close(tenant, None, 0)
    assert not goes(limits, 2001, 0, "c")
    assert len(limits._buckets) == 2
    assert goes(limits, 2000, 0, "c")
    assert {key[1] for key in limits._buckets} == {"a", "c"}
    assert not goes(limits, 1001, 0, "b"), "nor does it gain by going away"
    assert goes(limits, 1000, 0, "b")


def test_what_was_dropped_is_not_forgotten_when_a_fuller_one_goes_next() -> None:
    limits = quotas(buckets_max=2)
    goes(limits, 4000, 0, "a", "r1")
    limits.close("r1", None, 0)
    goes(limits, 1, 0, "b", "r2")
    goes(limits, 0, 0, "c")
    limits.close("r2", None, 0)
    assert not goes(limits, 2101, 1, "a")
    assert goes(limits, 2100, 1, "a")


def test_at_the_bound_the_debt_of_one_is_not_that_of_others() -> None:
    limits = quotas(buckets_max=1)
    goes(limits, LIMIT, 0, "a", "r1")
    limits.close("r1", 100 * LIMIT, 0)
    assert refused(limits, 1, 0, "b").retry_after_s == 1
    assert goes(limits, LIMIT, 99 * 60 + 60, "b")


def test_while_all_have_requests_in_flight_others_wait() -> None:
    limits = quotas(buckets_max=2)
    for tenant in ("a", "b"):
        goes(limits, 1, 0, tenant, f"before {tenant}")
        limits.close(f"before {tenant}", None, 0)
        goes(limits, 1, 0, tenant, tenant)
    assert refused(limits, 1, 1000, "c") == Exceeded("Too many tenants at a time. Please try again in 1s.", 1, ())
    limits.take("r3", "c", "m", 1, 1000)
    assert len(limits._buckets) == 2
    assert goes(limits, 1, 1000, "a")
    limits.cancel("b")
    assert goes(limits, 1, 1000, "c")
    limits.cancel("r3")


def test_what_is_told_late_of_one_that_was_dropped_is_lost() -> None:
    limits = quotas(buckets_max=1)
    goes(limits, 600, 0, "a", "r1")
    limits.close("r1", None, 0)
    goes(limits, 0, 0, "b", "r2")
    limits.close("r1", 0, 0)
    limits.close("r2", None, 0)
    assert goes(limits, LIMIT - 600, 0, "a", "r3")
    limits.close("r3", None, 0)
    assert len(limits._buckets) == 1


def test_what_is_told_late_changes_who_goes_first() -> None:
    limits = quotas(buckets_max=2)
    for tenant, tokens in (("a", 1000), ("b", 2000)):
        goes(limits, tokens, 0, tenant, tenant)
        limits.close(tenant, None, 0)
    limits.close("b", 0, 0)
    assert goes(limits, LIMIT, 0, "c")
    assert {key[1] for key in limits._buckets} == {"a", "c"}


def test_a_tenant_that_comes_often_is_remembered_once() -> None:
    limits = quotas()
    for number in range(100):
        goes(limits, 1, number, "a", "r1")
        limits.close("r1", 1, number)
        assert len(limits._idle) <= 2


def test_what_is_kept_is_bounded_however_many_tenants_come() -> None:
    limits = quotas(buckets_max=100)
    for number in range(5000):
        tenant = str(number) if number % 10 == 0 else str(number % 90)
        assert goes(limits, 1, number / 10, tenant, str(number))
        limits.close(str(number), None, number / 10)
        assert len(limits._buckets) <= 100
        assert len(limits._idle) <= 200
