"""Quotas beside the plainest model of them, and that nobody gets more than the limit."""

import math
from dataclasses import dataclass
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from extproc.core.admissionsettings import Quota
from extproc.core.quotas import Quotas
from tests.core.test_quotas import goes, quotas

TENANTS = "abcd"


def seconds(ticks: int) -> float:
    """Times of 1/1024 s, which floats add exactly: so the bounds are met as well."""
    return ticks / 1024


@dataclass
class Taken:
    """A request that went, as the test remembers it."""

    request_id: str
    tenant: str
    tokens: int
    open: bool = True
    told: bool = False
    """What it used; after its end that may still come."""


class Naive:
    """Everything that ever happened in each bucket, and the formula read off it anew, in exact numbers."""

    def __init__(self, per_minute: int, concurrent: int) -> None:
        self.per_minute, self.concurrent = per_minute, concurrent
        self.changes: dict[str, list[tuple[Fraction, int]]] = {tenant: [] for tenant in TENANTS}
        self.taken: list[Taken] = []

    def used(self, tenant: str, at_s: Fraction) -> Fraction:
        used, before_s = Fraction(0), Fraction(0)
        for changed_s, tokens in [*self.changes[tenant], (at_s, 0)]:
            used = max(Fraction(0), used - (changed_s - before_s) * self.per_minute / 60)
            used, before_s = max(Fraction(0), used + tokens), changed_s
        return used

    def in_flight(self, tenant: str) -> int:
        return sum(one.tokens for one in self.taken if one.open and one.tenant == tenant)

    def take(self, request_id: str, tenant: str, tokens: int, at_s: Fraction) -> None:
        self.taken.append(Taken(request_id, tenant, tokens))
        self.changes[tenant].append((at_s, tokens))

    def end(self, one: Taken, used: int | None, at_s: Fraction) -> None:
        if used is not None and not one.told:
            self.changes[one.tenant].append((at_s, used - one.tokens))
        one.open, one.told = False, one.told or used is not None


class QuotasBesideNaive(RuleBasedStateMachine):
    @initialize(per_minute=st.integers(1, 3000), concurrent=st.integers(1, 3000), request=st.integers(1, 3000))
    def begin(self, per_minute: int, concurrent: int, request: int) -> None:
        quota = Quota(tokens_per_minute=per_minute, concurrent_tokens=concurrent, request_tokens_max=request)
        self.smallest = min(per_minute, concurrent, request)
        self.limits, self.naive = Quotas((quota,), 100), Naive(per_minute, concurrent)
        self.ticks = 0

    @property
    def now_s(self) -> float:
        return seconds(self.ticks)

    @property
    def at_s(self) -> Fraction:
        return Fraction(self.ticks, 1024)

    @rule(ticks=st.integers(0, 70 * 1024))
    def wait(self, ticks: int) -> None:
        self.ticks += ticks

    @rule(tenant=st.sampled_from(TENANTS), share=st.integers(0, 110), more=st.integers(-1, 1))
    def ask(self, tenant: str, share: int, more: int) -> None:
        tokens = max(0, self.smallest * share // 100 + more)
        self.ask_for(tenant, tokens)

    @rule(tenant=st.sampled_from(TENANTS), more=st.integers(0, 1))
    def ask_for_all_that_is_left(self, tenant: str, more: int) -> None:
        left = math.floor(self.naive.per_minute - self.naive.used(tenant, self.at_s))
        self.ask_for(tenant, max(0, min(left, self.naive.concurrent - self.naive.in_flight(tenant))) + more)

    def ask_for(self, tenant: str, tokens: int) -> None:
        used, in_flight = self.naive.used(tenant, self.at_s), self.naive.in_flight(tenant)
        over = used + tokens - self.naive.per_minute
        exceeded = self.limits.check(tenant, "m", tokens, self.now_s)
        if tokens > self.smallest:
            assert exceeded is not None
            assert exceeded.retry_after_s is None
        elif over > 0:
            assert exceeded is not None
            assert exceeded.retry_after_s == math.ceil(over * 60 / self.naive.per_minute)
            left = math.floor(max(Fraction(0), self.naive.per_minute - used))
            assert dict(exceeded.headers)["x-ratelimit-remaining-tokens"] == str(left)
            assert f"Used {math.ceil(used)}, " in exceeded.message
            again_s = self.now_s + exceeded.retry_after_s
            again = self.limits.check(tenant, "m", tokens, again_s)
            assert again is None or "in flight" in again.message
        elif in_flight + tokens > self.naive.concurrent:
            assert exceeded is not None
            assert f"Used {in_flight}, " in exceeded.message
        else:
            assert exceeded is None
            request_id = str(len(self.naive.taken))
            self.limits.take(request_id, tenant, "m", tokens, self.now_s)
            self.naive.take(request_id, tenant, tokens, self.at_s)

    @rule(which=st.integers(0), used=st.none() | st.integers(0, 4000))
    def close(self, which: int, used: int | None) -> None:
        if self.naive.taken:
            one = self.naive.taken[which % len(self.naive.taken)]
            self.limits.close(one.request_id, used, self.now_s)
            self.naive.end(one, used, self.at_s)

    @rule(which=st.integers(0))
    def cancel(self, which: int) -> None:
        if self.naive.taken:
            one = self.naive.taken[which % len(self.naive.taken)]
            self.limits.cancel(one.request_id)
            if one.open:
                self.naive.end(one, 0, self.at_s)

    @invariant()
    def nothing_leaks(self) -> None:
        if not hasattr(self, "limits"):
            return
        in_flight = {key[1]: bucket.in_flight for key, bucket in self.limits._buckets.items()}
        assert all(in_flight.get(tenant, 0) == self.naive.in_flight(tenant) for tenant in TENANTS)
        assert self.limits._taken.keys() == {one.request_id for one in self.naive.taken if one.open}
        assert len(self.limits._idle) <= 2 * len(self.limits._buckets)


TestQuotasBesideNaive = QuotasBesideNaive.TestCase


Step = tuple[int, str, int, int | None]
STEPS = st.lists(
    st.tuples(
        st.integers(0, 20 * 1024), st.sampled_from(TENANTS), st.integers(0, 700), st.none() | st.integers(0, 100)
    ),
    max_size=60,
)
"""Ticks that pass; who; a request of so many tokens or, with a share of its tokens that was used, which one ends."""


@given(STEPS, st.integers(1, 4))
def test_in_no_window_does_a_tenant_get_more_whatever_was_dropped(steps: list[Step], buckets_max: int) -> None:
    """As long as no answer is longer than was taken: a debt is the one thing that dropping may forgive."""
    per_minute, concurrent = 600, 900
    limits = quotas(Quota(tokens_per_minute=per_minute, concurrent_tokens=concurrent), buckets_max=buckets_max)
    naive = Naive(per_minute, concurrent)
    ticks = 0
    for after, tenant, number, share in steps:
        ticks += after
        if share is None:
            request_id = str(len(naive.taken))
            if goes(limits, number, seconds(ticks), tenant, request_id):
                naive.take(request_id, tenant, number, Fraction(ticks, 1024))
        elif naive.taken:
            one = naive.taken[number % len(naive.taken)]
            used = one.tokens * share // 100
            limits.close(one.request_id, used, seconds(ticks))
            naive.end(one, used, Fraction(ticks, 1024))
        assert len(limits._buckets) <= buckets_max
        assert len(limits._idle) <= 2 * buckets_max
        assert all(naive.in_flight(each) <= concurrent for each in TENANTS)
    for changes in naive.changes.values():
        for first, (from_s, _) in enumerate(changes):
            taken = back = 0
            for at_s, tokens in changes[first:]:
                taken, back = taken + max(0, tokens), back - min(0, tokens)
                assert taken <= per_minute * (1 + (at_s - from_s) / 60) + back
    for one in naive.taken:
        limits.close(one.request_id, None, seconds(ticks))
    assert not limits._taken
    assert all(bucket.in_flight == bucket.requests == 0 for bucket in limits._buckets.values())


@given(STEPS)
def test_what_one_tenant_does_is_nothing_to_another(steps: list[Step]) -> None:
    together, alone = quotas(Quota(tokens_per_minute=600)), quotas(Quota(tokens_per_minute=600))
    ticks = 0
    for number, (after, tenant, tokens, share) in enumerate(steps):
        ticks += after
        limits = (together, alone) if tenant == "a" else (together,)
        went = {goes(each, tokens, seconds(ticks), tenant, str(number)) for each in limits}
        assert len(went) == 1
        if share is not None:
            for each in limits:
                each.close(str(number), tokens * share // 50, seconds(ticks))
        assert together.check("a", "m", 600, seconds(ticks)) == alone.check("a", "m", 600, seconds(ticks))
