"""Quotas: what may go, and what is told to those that may not."""

import itertools

import pytest

from extproc.core.admissionsettings import Quota
from extproc.core.quotas import ENDED_MAX, Exceeded, Quotas

LIMIT = 6000
"""Tokens per minute: a hundred a second."""
NUMBERS = itertools.count()


def quotas(*found: Quota, buckets_max: int = 100) -> Quotas:
    return Quotas(found or (Quota(tokens_per_minute=LIMIT),), buckets_max)


def goes(limits: Quotas, tokens: int, at_s: float, tenant: str = "a", request_id: str = "") -> bool:
    """Ask, and take what may go."""
    if limits.check(tenant, "m", tokens, at_s) is not None:
        return False
    limits.take(request_id or f"of its own {next(NUMBERS)}", tenant, "m", tokens, at_s)
    return True


def refused(limits: Quotas, tokens: int, at_s: float = 0, tenant: str = "a") -> Exceeded:
    exceeded = limits.check(tenant, "m", tokens, at_s)
    assert exceeded is not None
    return exceeded


def test_a_minutes_worth_may_come_at_once_and_one_token_more_may_not() -> None:
    assert not goes(quotas(), LIMIT + 1, 0)
    limits = quotas()
    assert goes(limits, LIMIT - 1, 0)
    assert not goes(limits, 2, 0)
    assert goes(limits, 1, 0)
    assert goes(limits, 0, 0)
    assert not goes(limits, 1, 0)


def test_what_was_used_drains_in_a_minute_however_time_passes() -> None:
    limits = quotas()
    assert goes(limits, LIMIT, 1000)
    assert not goes(limits, 101, 1001)
    assert goes(limits, 100, 1001)
    assert not goes(limits, 1, 1001), "time that stands still brings nothing"
    assert not goes(limits, 1, 900), "nor does time that goes back"
    assert goes(limits, 0, 900)
    assert not goes(limits, 1, 1001)
    assert goes(limits, LIMIT, 1e9), "however long nobody asked, a minute's worth is there"
    assert not goes(limits, 1, 1e9)


def test_those_that_must_wait_are_told_in_openais_words_how_long() -> None:
    limits = quotas()
    goes(limits, 5000, 0)
    assert refused(limits, 1150, 0.5) == Exceeded(
        "Rate limit reached for m on tokens per min (TPM): Limit 6000, Used 4950, Requested 1150. "
        "Please try again in 1s.",
        1,
        (
            ("x-ratelimit-limit-tokens", "6000"),
            ("x-ratelimit-remaining-tokens", "1050"),
            ("x-ratelimit-reset-tokens", "49.5s"),
            ("x-ratelimit-limit", "6000, 6000;w=60"),
            ("x-ratelimit-remaining", "1050"),
            ("x-ratelimit-reset", "50"),
        ),
    )
    assert limits.check("a", "m", 1150, 1.5) is None
    assert "Please try again in 10ms." in refused(limits, 1001).message
    assert "Please try again in 1.01s." in refused(limits, 1101).message
    assert refused(limits, 1101).retry_after_s == 2
    limits = quotas(Quota(tokens_per_minute=7))
    goes(limits, 7, 0)
    assert "Please try again in 8.572s." in refused(limits, 1).message


@pytest.mark.parametrize(
    ("quota", "of"),
    [
        (Quota(request_tokens_max=10), "tokens in a request"),
        (Quota(tokens_per_minute=10), "tokens per min (TPM)"),
        (Quota(concurrent_tokens=10), "tokens in flight"),
        (Quota(request_tokens_max=10, tokens_per_minute=5000, concurrent_tokens=5000), "tokens in a request"),
        (Quota(request_tokens_max=5000, tokens_per_minute=5000, concurrent_tokens=10), "tokens in flight"),
    ],
)
def test_a_request_larger_than_a_limit_is_told_that_it_never_may(quota: Quota, of: str) -> None:
    limits = quotas(quota)
    assert limits.check("a", "m", 10, 0) is None
    for _ in range(2):  # also where it might have had to wait for another limit
        exceeded = refused(limits, 5001)
        assert exceeded.retry_after_s is None
        assert exceeded.message.startswith("Request too large for m on tokens ")
        exceeded = refused(limits, 11)
        assert exceeded.message == f"Request too large for m on {of}: Limit 10, Requested 11."
        assert exceeded.headers[0] == ("x-ratelimit-limit-tokens", "10")
        goes(limits, 10, 0)


def test_tokens_in_flight_are_free_again_when_their_request_ends() -> None:
    limits = quotas(Quota(concurrent_tokens=100))
    assert goes(limits, 60, 0, request_id="r1")
    assert goes(limits, 40, 0, request_id="r2")
    exceeded = refused(limits, 1, 1e6)
    assert exceeded.message == (
        "Rate limit reached for m on tokens in flight: Limit 100, Used 100, Requested 1. Please try again in 1s."
    )
    assert exceeded.retry_after_s == 1
    assert dict(exceeded.headers)["x-ratelimit-limit"] == "100"
    limits.close("r2", 1000, 1e6)
    assert not goes(limits, 41, 0)
    assert goes(limits, 40, 0)
    limits.cancel("r1")
    assert goes(limits, 60, 0)


def test_an_end_corrects_what_was_taken_once() -> None:
    limits = quotas()
    for number, tokens in enumerate((1000, 2000, 3000)):
        assert goes(limits, tokens, 0, request_id=f"r{number}")
    limits.close("r0", None, 0)
    assert not goes(limits, 1, 0)
    for _ in range(2):
        limits.cancel("r1")
        assert limits.check("a", "m", 2000, 0) is None
        assert limits.check("a", "m", 2001, 0) is not None
    for _ in range(2):
        limits.close("r2", 3500, 0)
        assert limits.check("a", "m", 1500, 0) is None
        assert limits.check("a", "m", 1501, 0) is not None
    limits.close("nobody", 1, 0)
    limits.cancel("nobody")


def test_what_is_given_back_late_makes_a_bucket_no_more_than_full() -> None:
    limits = quotas()
    goes(limits, LIMIT, 0, request_id="r1")
    limits.close("r1", 0, 50)
    goes(limits, 1, 50)
    assert limits.check("a", "m", LIMIT - 1, 50) is None
    assert limits.check("a", "m", LIMIT, 50) is not None


def test_what_was_used_may_be_told_after_the_end_once() -> None:
    limits = quotas()
    goes(limits, 3000, 0, request_id="r1")
    goes(limits, 3000, 0, request_id="r2")
    limits.close("r1", None, 0)
    limits.close("r1", None, 0)
    limits.cancel("r1")
    assert limits.check("a", "m", 1, 0) is not None
    for _ in range(2):
        limits.close("r1", 1000, 0)
        assert limits.check("a", "m", 2000, 0) is None
        assert limits.check("a", "m", 2001, 0) is not None
    limits.close("r2", 3000, 0)
    limits.close("r2", 0, 0)
    assert limits.check("a", "m", 2001, 0) is not None


def test_so_many_wait_for_what_they_used_and_no_more() -> None:
    limits = quotas(Quota(tokens_per_minute=2 * ENDED_MAX))
    for number in range(ENDED_MAX + 1):
        goes(limits, 1, 0, request_id=str(number))
        limits.close(str(number), None, 0)
    assert len(limits._ended) == ENDED_MAX
    limits.close("0", 0, 0)
    assert limits.check("a", "m", ENDED_MAX, 0) is not None
    limits.close("1", 0, 0)
    assert limits.check("a", "m", ENDED_MAX, 0) is None


def test_nobody_uses_less_than_nothing() -> None:
    limits = quotas()
    goes(limits, 100, 0)
    goes(limits, 100, 0, request_id="r1")
    limits.close("r1", -50, 0)
    goes(limits, 100, 0, request_id="r2")
    limits.close("r2", None, 0)
    limits.close("r2", -50, 0)
    assert limits.check("a", "m", LIMIT - 99, 0) is not None


def test_an_answer_longer_than_was_taken_is_owed() -> None:
    limits = quotas()
    goes(limits, LIMIT, 0, request_id="r1")
    limits.close("r1", 4 * LIMIT, 0)
    exceeded = refused(limits, 1)
    assert exceeded.retry_after_s == 181
    assert dict(exceeded.headers)["x-ratelimit-remaining-tokens"] == "0"
    assert dict(exceeded.headers)["x-ratelimit-reset-tokens"] == "4m0s"
    limits = quotas(Quota(tokens_per_minute=1))
    goes(limits, 1, 0, request_id="r1")
    limits.close("r1", 62, 0)
    assert dict(refused(limits, 1).headers)["x-ratelimit-reset-tokens"] == "1h2m0s"
    assert dict(refused(limits, 1, 0.5).headers)["x-ratelimit-reset-tokens"] == "1h1m59.5s"


def test_the_first_quota_that_names_both_holds() -> None:
    limits = quotas(
        Quota(tenant="a", model="m", request_tokens_max=1),
        Quota(tenant="a", request_tokens_max=2),
        Quota(model="m", request_tokens_max=3),
        Quota(tenant="b"),
        Quota(tenant="b", model="m", request_tokens_max=4),
        Quota(tenant="", request_tokens_max=5),
        Quota(request_tokens_max=6),
        Quota(request_tokens_max=7),
    )

    def limit(tenant: str, model: str) -> str | None:
        exceeded = limits.check(tenant, model, 1000, 0)
        return None if exceeded is None else exceeded.headers[0][1]

    assert [limit("a", "m"), limit("a", "x"), limit("b", "m"), limit("c", "m"), limit("", "m")] == list("12333")
    assert [limit("b", "x"), limit("", "x"), limit("c", "x"), limit("*", "*")] == [None, "5", "6", "6"]
    assert quotas(Quota(tenant="a", request_tokens_max=1)).check("b", "m", 1000, 0) is None
    assert Quotas((), 1).check("", "m", 10**18, 0) is None


def test_tenants_and_models_each_have_their_own() -> None:
    limits = quotas()
    for number, (tenant, model) in enumerate([("a", "m"), ("a", "n"), ("b", "m"), ("", "m")]):
        assert limits.check(tenant, model, LIMIT, 0) is None
        limits.take(f"r{number}", tenant, model, LIMIT, 0)
        assert limits.check(tenant, model, 1, 0) is not None


def test_requests_without_limits_are_not_remembered() -> None:
    limits = quotas(Quota(tenant="a"), Quota(request_tokens_max=5))
    limits.take("r1", "a", "m", 5, 0)
    limits.take("r2", "b", "m", 5, 0)
    assert not limits._taken
    assert not limits._buckets
