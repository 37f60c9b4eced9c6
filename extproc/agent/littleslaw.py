"""Gauges that do not move as the counters say they must.

Little's law: the requests that are in a system on the average are the seconds that they spend there, all together,
over the time that passed (Little, Operations Research 9(3), 1961). Engines tell such sums of seconds: of the times to
the first token, S, and of the gaps between tokens, D. In a time T

    S/T   requests wait for their first token on the average
    D/T   requests decode

A request adds its time to S when its first token comes, so S runs behind what waits; D is told token by token. Where an
engine tells no D, its totals may be of requests that ended, and be as old as these: then nothing follows from S.

What is *not* a lie, and looks like one: clients that wait for one answer before they ask again, and full batches, hold
a number of running requests constant; waiting is 0 as long as there is room; a queue may starve behind requests of a
higher priority; engines tell of their last finished step, so a prompt that takes one step is never seen pending, and an
answer of one token never running; small usage is rounded to 0. So each rule asks for a contradiction of several times,
over half a minute at least, while tokens are computed all the time.
"""

from collections.abc import Mapping
from itertools import pairwise
from statistics import median

from extproc.agent.engines.pagevalues import ROUNDED
from extproc.agent.looks import Window

FIRST_TOKENS_MIN = 20.0
"""So few tell nothing of a counter."""
OVER_RATIO = 4.0
"""Requests may be so many times what the seconds show: aborted ones never enter them."""
OVER_MARGIN = 8.0
"""And so many more."""
COUNTER_SHARES = (0.5, 2.0)
"""A counter of requests rises with the first tokens, by a share of them between these,"""
PARTS = 3
"""in each of so many parts of the window."""
BATCH_MAX = 4096.0
"""By no more can running requests rise without ever falling: none of the engines has so large a batch."""
UNDER_RATIO = 3.0
"""Decoding requests may be so many times what the gauges show: one that was preempted adds all of that gap at once."""
UNDER_MIN = 1.0
"""And so many more, on the average of all the time: a gauge that misses one is of no use."""
PENDING_MIN = 8.0
"""So many requests must have waited for their first token on the average for a 0 to be a lie,"""
PENDING_STEPS = 5.0
"""each for so many steps: those that get it within one step are not seen, however many they are."""
KV_SHOWN_MIN = 0.02
"""By such a share of the cache its usage must have moved, or differ from 0, for its standing still to be a lie: some
engines round it to hundredths."""
KV_FULL = 0.95
"""A cache that is as full as that may stay so: engines preempt."""
CACHE_TOKENS_MAX = 4_000_000.0
"""No cache is taken to be larger, where the engine does not tell how large it is."""
PROMPTS_MIN = 5
"""From so many times between looks it is told how long prompts are."""
PREFILL_TOKENS_PER_S_MAX = 1e6
"""No engine computes prompts faster than that."""
PREFILL_TOKENS_MIN = 20_000.0


def is_over(window: Window, signal: str) -> bool:
    """Whether a number of running requests that did not fall in the window is more than their times allow.

    It is a counter where a gauge belongs, or it stands still.
    """
    times = _times(window)
    if times is None:
        return False
    _, waited_s, decoded_s = times
    counts = window.known(signal)
    return sum(counts) / len(counts) > OVER_RATIO * (waited_s + decoded_s) / window.seconds + OVER_MARGIN


def is_counter(window: Window, signal: str) -> bool:
    """Whether a number of waiting requests that did not fall in the window is a counter of those that came.

    It rises about as they are served, in each part of the window. And a request that came in the window would have had
    all before it that waited at its beginning; so those would have been served while it waited, which it did for S/N on
    the average. That says nothing where it may have come before; and queues that starve do not rise like that.
    """
    times = _times(window)
    if times is None:
        return False
    firsts, waited_s, _ = times
    if waited_s / firsts > window.seconds / 2:
        return False
    if window.known(signal)[0] <= OVER_RATIO * waited_s / window.seconds + OVER_MARGIN:
        return False
    least, most = COUNTER_SHARES
    ends = [window.marks[place * (len(window.marks) - 1) // PARTS].told for place in range(PARTS + 1)]
    steps = [(_step(*pair, signal), _step(*pair, "first_tokens_total")) for pair in pairwise(ends)]
    return all(rise is not None and came and least * came <= rise <= most * came for rise, came in steps)


def _times(window: Window) -> tuple[float, float, float] | None:
    """N, S and D; `None` where they tell nothing."""
    firsts, waited_s = window.gained("first_tokens_total"), window.gained("prefill_seconds_total")
    decoded_s = window.decode_seconds
    if firsts is None or firsts < FIRST_TOKENS_MIN or waited_s is None or decoded_s is None:
        return None
    return firsts, waited_s, decoded_s


def is_under(window: Window, count: float) -> bool:
    """Whether more requests decode than a number of running ones says, which was the same in the whole window.

    A request that runs at no look began and ended between two looks; so if the gauge is 0, all of D is of the window.
    Preempted requests add their gaps too, and wait.
    """
    decoded_s = window.decode_seconds
    if decoded_s is None or not window.is_busy:
        return False
    there = count + max(window.known("requests_waiting"), default=0.0)
    return decoded_s > window.seconds * (UNDER_RATIO * there + UNDER_MIN)


def hides_pending(window: Window) -> bool:
    """Whether requests waited for their first token, though none was seen to in the whole window."""
    waited_s, firsts = window.gained("prefill_seconds_total"), window.gained("first_tokens_total")
    steps_ms = window.known("decode_ms_per_token")
    if not firsts or waited_s is None or window.decode_seconds is None or not steps_ms:
        return False
    waited_long = waited_s / firsts > PENDING_STEPS * max(steps_ms) / 1000
    return waited_long and window.is_busy and waited_s > window.seconds * PENDING_MIN


def cache_stands_still(window: Window, usage: float, *, running_is_sound: bool) -> bool:
    """Whether the KV cache must have been used otherwise than by this share, which was the same in the whole window.

    Each sequence holds its prompt, of which the computed part is known: so it is not 0 where some run, and not the same
    where their number changes.
    """
    if usage >= KV_FULL or not window.is_busy:
        return False
    prompts = [
        tokens / firsts
        for before, after in pairwise(window.marks)
        if (firsts := _step(before.told, after.told, "first_tokens_total"))
        and (tokens := _step(before.told, after.told, "prefill_tokens_total")) is not None
    ]
    if len(prompts) < PROMPTS_MIN:
        return False
    running = window.known("requests_running") if running_is_sound else []
    if usage > 0:
        sequences = max(running) - min(running) if running else 0.0
    else:
        mean = sum(running) / len(running) if running else 0.0
        sequences = max(mean, (window.decode_seconds or 0.0) / window.seconds)
    last = window.marks[-1].told
    blocks, block_size = last.get("kv_blocks_total"), last.get("kv_block_size_tokens")
    held = CACHE_TOKENS_MAX if blocks is None or block_size is None else blocks * block_size
    return sequences * median(prompts) >= KV_SHOWN_MIN * held


def computes_too_fast(window: Window) -> bool:
    """Whether more prompt tokens were computed in the seconds of their requests than any engine can."""
    tokens, waited_s = window.gained("prefill_tokens_total"), window.gained("prefill_seconds_total")
    if tokens is None or waited_s is None or tokens < PREFILL_TOKENS_MIN:
        return False
    total_s = window.marks[-1].told["prefill_seconds_total"]
    return tokens > PREFILL_TOKENS_PER_S_MAX * (waited_s + ROUNDED * total_s) + PREFILL_TOKENS_MIN


def _step(before: Mapping[str, float], after: Mapping[str, float], signal: str) -> float | None:
    then, now = before.get(signal), after.get(signal)
    return None if then is None or now is None or now < then else now - then
