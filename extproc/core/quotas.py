"""What tenants may use of models: tokens per minute, and tokens in flight at a time.

Tokens per minute are a leaky bucket as a meter (ITU-T I.371, Annex A), which is a token bucket seen from its other
side: what was used drains away at L/60 tokens a second, L being the limit, and a request of n tokens may go if

    used(t) + n ≤ L    where    used(t) = max(0, used(s) − (t − s)·L/60)    for s ≤ t with nothing taken between

So a minute's worth may come at once, and in any T seconds what is taken is at most L·(1 + T/60), and what is given back
in them. What is given back never makes a bucket hold more than L.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from msgspec import Struct

from extproc.core.admissionsettings import EVERY, Quota
from extproc.core.filters import tokens_at_least
from extproc.core.request import InferenceRequest

MINUTE_S: Final = 60
ENDED_MAX: Final = 4096
"""Requests that are over, and whose use may still be told."""
UNKNOWN_S: Final = 1
"""What clients wait where nobody knows how long: until requests end."""

_Key = tuple[int, str, str]
"""Which quota, tenant and model."""


class Exceeded(Struct, frozen=True):
    """A request would use more than its tenant may."""

    message: str
    """For the client, in OpenAI's words; it tells of this tenant alone."""
    retry_after_s: int | None
    """Whole seconds, at least 1, until it may go if the tenant sends nothing else. `None`: it never may."""
    headers: tuple[tuple[str, str], ...]
    """The limit, what is left of it and when all of it is there, as OpenAI's API and as Envoy's filters write them."""


class _Bucket:
    __slots__ = ("at_s", "entry", "in_flight", "key", "owed", "per_minute", "requests")

    def __init__(self, key: _Key, per_minute: int | None, owed: float, now_s: float) -> None:
        self.key = key
        self.per_minute = per_minute or 0
        self.owed = owed
        """Tokens used and not drained, times 60: so whole tokens and seconds stay exact."""
        self.at_s = now_s
        self.in_flight = 0
        """Tokens."""
        self.requests = 0
        self.entry: int | None = None
        """The number of its valid entry in the heap; `None` while it has requests in flight."""

    def owed_at(self, now_s: float) -> float:
        return max(0.0, self.owed - self.per_minute * max(0.0, now_s - self.at_s))

    def pass_time(self, now_s: float) -> None:
        self.owed = self.owed_at(now_s)
        self.at_s = max(self.at_s, now_s)

    @property
    def full_at_s(self) -> float:
        """When nothing is used any more. The longer until then, the less is left, whatever the limit."""
        return self.at_s + (self.owed / self.per_minute if self.per_minute else 0.0)


class Quotas:
    """What each tenant has used of each model lately, and has in flight.

    A request is looked at (`check`), counted with the tokens that it may use (`take`), and corrected when it is over
    (`close`) by what it did use; one that never ran gives all back (`cancel`).

    State: at most `buckets_max` buckets, one for each (quota, tenant, model) that is used, and what was taken by each
    request in flight, and by the latest `ENDED_MAX` that ended and did not tell what they used. A new bucket at the
    bound takes the place of the one without requests that is, or will be, full first; what is full says nothing. If it
    was not full yet, the new one, and all that are made from then on, hold no more than it would have held: whoever
    comes back has gained nothing, save what of its use was beyond a whole minute's, or told only then. Where all have
    requests in flight, others must wait.
    """

    def __init__(self, quotas: Sequence[Quota], buckets_max: int) -> None:
        self._quotas = tuple(quotas)
        self._first = {(one.tenant, one.model): index for index, one in reversed(list(enumerate(quotas)))}
        self._buckets_max = buckets_max
        self._buckets: dict[_Key, _Bucket] = {}
        self._taken: dict[str, tuple[_Bucket, int]] = {}
        self._ended: OrderedDict[str, tuple[_Bucket, int]] = OrderedDict()
        """The same of the latest that are over and did not tell what they used."""
        self._idle: list[tuple[float, int, _Bucket]] = []
        """A heap by `full_at_s` of the buckets without requests. Of one that was used since, the entry is stale."""
        self._entries = 0
        self._forgotten_until_s = -math.inf
        """When the last of the dropped buckets will have been full."""

    def price(self, request: InferenceRequest, allowed_tokens: int) -> int:
        """What a request is counted with that may use so many tokens; pure.

        Where that rests on a guess, of its prompt or its answer, it is no more than its limits hold: what it did use is
        told in the end, and guesses refuse nobody for good.
        """
        key = self._key(request.tenant, request.model)
        if key is None:
            return allowed_tokens
        quota = self._quotas[key[0]]
        limits = (quota.request_tokens_max, quota.tokens_per_minute, quota.concurrent_tokens)
        least = min((limit for limit in limits if limit is not None), default=allowed_tokens)
        return min(allowed_tokens, max(tokens_at_least(request), least))

    def check(self, tenant: str, model: str, tokens: int, now_s: float) -> Exceeded | None:
        """Whether a request of so many tokens, its answer included, may go now; nothing changes."""
        key = self._key(tenant, model)
        if key is None:
            return None
        quota = self._quotas[key[0]]
        owed, in_flight = 0.0, 0
        if _is_counted(quota):
            bucket = self._buckets.get(key)
            found = self._owed_anew(quota, now_s) if bucket is None else bucket.owed_at(now_s)
            if found is None:
                return Exceeded(f"Too many tenants at a time. Please try again in {UNKNOWN_S}s.", UNKNOWN_S, ())
            owed, in_flight = found, 0 if bucket is None else bucket.in_flight
        per_minute = quota.tokens_per_minute
        uses = (
            _Use("tokens in a request", quota.request_tokens_max, 0, 0),
            _Use("tokens per min (TPM)", per_minute, owed / MINUTE_S, owed / (per_minute or 1), MINUTE_S),
            _Use("tokens in flight", quota.concurrent_tokens, in_flight, UNKNOWN_S),
        )
        # What can never go is told so at once, and not sent away for a minute before.
        for use in uses:
            if use.limit is not None and tokens > use.limit:
                message = f"Request too large for {model} on {use.of}: Limit {use.limit}, Requested {tokens}."
                return Exceeded(message, None, use.headers())
        for use in uses:
            if use.limit is not None and use.used + tokens > use.limit:
                return use.exceeded(model, tokens)
        return None

    def take(self, request_id: str, tenant: str, model: str, tokens: int, now_s: float) -> None:
        """A request that `check` let pass goes, or waits. Its id is that of no other in flight."""
        assert request_id not in self._taken, "one request is taken once"
        key = self._key(tenant, model)
        if key is None or not _is_counted(self._quotas[key[0]]):
            return
        bucket = self._buckets.get(key)
        if bucket is None:
            owed = self._owed_anew(self._quotas[key[0]], now_s)
            if owed is None:
                return  # there is no room to count it, as `check` said
            if len(self._buckets) >= self._buckets_max:
                full_at_s, _, out = heappop(self._idle)  # a valid one: `_owed_anew` looked
                self._forgotten_until_s = max(self._forgotten_until_s, full_at_s)
                del self._buckets[out.key]
            bucket = self._buckets[key] = _Bucket(key, self._quotas[key[0]].tokens_per_minute, owed, now_s)
        bucket.pass_time(now_s)
        bucket.owed += tokens * MINUTE_S
        bucket.in_flight += tokens
        bucket.requests += 1
        bucket.entry = None
        self._taken[request_id] = (bucket, tokens)

    def close(self, request_id: str, used_tokens: int | None, now_s: float) -> None:
        """A request is over and used so many tokens; `None`: as many as were taken, until it is told otherwise.

        That it is over, and what it used, may come one after the other: its stream ends before Envoy's log tells of it.
        """
        if (taken := self._taken.pop(request_id, None)) is not None:
            bucket, tokens = taken
            bucket.pass_time(now_s)
            self._end(bucket, tokens, tokens if used_tokens is None else max(0, used_tokens))
            if used_tokens is None:
                self._ended[request_id] = taken
                if len(self._ended) > ENDED_MAX:
                    self._ended.popitem(last=False)
        elif used_tokens is not None and (ended := self._ended.pop(request_id, None)) is not None:
            bucket, tokens = ended
            bucket.pass_time(now_s)
            bucket.owed = max(0.0, bucket.owed + (max(0, used_tokens) - tokens) * MINUTE_S)
            if not bucket.requests and self._buckets.get(bucket.key) is bucket:
                self._rests(bucket)

    def cancel(self, request_id: str) -> None:
        """A request never ran. (What is given back is the same at any time, for time only drains what is left.)"""
        if (taken := self._taken.pop(request_id, None)) is not None:
            self._end(*taken, used=0)

    def _end(self, bucket: _Bucket, tokens: int, used: int) -> None:
        bucket.owed = max(0.0, bucket.owed + (used - tokens) * MINUTE_S)
        bucket.in_flight -= tokens
        bucket.requests -= 1
        if not bucket.requests:
            self._rests(bucket)

    def _rests(self, bucket: _Bucket) -> None:
        """It has no requests in flight, and may be dropped where there is no room."""
        self._entries += 1
        bucket.entry = self._entries
        heappush(self._idle, (bucket.full_at_s, bucket.entry, bucket))
        if len(self._idle) > 2 * len(self._buckets):  # half of it at least is stale
            self._idle = [one for one in self._idle if one[2].entry == one[1]]
            heapify(self._idle)

    def _key(self, tenant: str, model: str) -> _Key | None:
        """The first quota that names both, and whose use it counts; `None`: no quota does."""
        if not self._first:
            return None
        named = ((tenant, model), (tenant, EVERY), (EVERY, model), (EVERY, EVERY))
        index = min((self._first[one] for one in named if one in self._first), default=None)
        return None if index is None else (index, tenant, model)

    def _owed_anew(self, quota: Quota, now_s: float) -> float | None:
        """What a bucket that were made now would owe; `None`: there is no room for one."""
        until_s = self._forgotten_until_s
        if len(self._buckets) >= self._buckets_max:
            if (out := self._next_out()) is None:
                return None
            until_s = max(until_s, out[0])
        return min(max(0.0, until_s - now_s), MINUTE_S) * (quota.tokens_per_minute or 0)

    def _next_out(self) -> tuple[float, int, _Bucket] | None:
        while self._idle and self._idle[0][2].entry != self._idle[0][1]:
            heappop(self._idle)
        return self._idle[0] if self._idle else None


class _Use(Struct, frozen=True):
    """How much of one limit is used."""

    of: str
    limit: int | None
    used: float
    reset_s: float
    """Until nothing of it is used."""
    window_s: int | None = None

    def exceeded(self, model: str, tokens: int) -> Exceeded:
        assert self.limit is not None
        wait_s = (self.used + tokens - self.limit) * self.window_s / self.limit if self.window_s else UNKNOWN_S
        message = (
            f"Rate limit reached for {model} on {self.of}: Limit {self.limit}, Used {math.ceil(self.used)}, "
            f"Requested {tokens}. Please try again in {_duration(wait_s)}."
        )
        return Exceeded(message, max(1, math.ceil(wait_s)), self.headers())

    def headers(self) -> tuple[tuple[str, str], ...]:
        """OpenAI's three; and Envoy's, after draft-polli-ratelimit-headers-03, whose times are whole seconds."""
        assert self.limit is not None
        left = str(max(0, math.floor(self.limit - self.used)))
        policy = f", {self.limit};w={self.window_s}" if self.window_s else ""
        return (
            ("x-ratelimit-limit-tokens", str(self.limit)),
            ("x-ratelimit-remaining-tokens", left),
            ("x-ratelimit-reset-tokens", _duration(self.reset_s)),
            ("x-ratelimit-limit", f"{self.limit}{policy}"),
            ("x-ratelimit-remaining", left),
            ("x-ratelimit-reset", str(math.ceil(self.reset_s))),
        )


def _is_counted(quota: Quota) -> bool:
    return quota.tokens_per_minute is not None or quota.concurrent_tokens is not None


def _duration(seconds: float) -> str:
    """As OpenAI writes durations: `644ms`, `1.5s`, `6m0s`, `1h0m0s`. Rounded up to milliseconds."""
    milliseconds = math.ceil(seconds * 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, MINUTE_S * 1000)
    hours, minutes = divmod(minutes, 60)
    text = f"{milliseconds / 1000:g}s"
    if minutes or hours:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
