"""The prefills of one node: tokens, and the seconds that they kept it busy."""

PRIOR_S = 2.0
"""The rate that is assumed for every node weighs as much as so many seconds of prefill."""
WINDOW_S = 60.0
"""Seconds of prefill after which what was learned so far counts half."""
SPAN_S = 30.0
"""Over so long the load is taken to be even: an idle night says nothing of the busy seconds of the morning."""
STEPS_WAITED = 1.5
"""Half of the step that runs, and one of its own."""
SLOWNESS_MAX = 16.0
"""No node is taken to be so many times slower or faster than the fleet."""


class Prefills:
    """What one node computed, and how long that took.

    slowness        (busy seconds + PRIOR_S) / (waits for steps + computed tokens / the fleet's rate + PRIOR_S)
    busy seconds    engines tell Σ of the times to the first token, S, in a time T; so L = S/T requests waited at once
                    on the average, and a queue that is served one after another with Poisson arrivals is then busy for
                    L/(1 + L) of the time: S·T/(S + T) seconds (M/M/1, and M/G/1 with processor sharing); summed over
                    spans of SPAN_S
    waits for steps whatever its length, a prompt waits for the end of the step that runs, for half of one on the
                    average, and then takes one itself: else a node that gets short prompts would look slow

    State: sums that count half again and again.
    """

    __slots__ = ("_busy_before_s", "_span_s", "_span_waited_s", "firsts", "tokens", "waited_s")

    def __init__(self) -> None:
        self.tokens = 0.0
        self.firsts = 0.0
        self.waited_s = 0.0
        """Σ of the times to the first token."""
        self._busy_before_s = 0.0
        """In the spans before this one."""
        self._span_waited_s = 0.0
        self._span_s = 0.0
        """How long this span has lasted."""

    @property
    def busy_s(self) -> float:
        """Seconds in which it computed prompts."""
        if not self._span_waited_s:
            return self._busy_before_s
        return self._busy_before_s + self._span_waited_s * self._span_s / (self._span_waited_s + self._span_s)

    def slowness(self, rate: float, step_s: float) -> float:
        """How many times longer it took than at this rate."""
        busy_s = self.busy_s
        expected_s = self._steps_s(busy_s, step_s) + self.tokens / rate
        return min(max((busy_s + PRIOR_S) / (expected_s + PRIOR_S), 1 / SLOWNESS_MAX), SLOWNESS_MAX)

    def add(self, tokens: float, firsts: float, waited_s: float, passed_s: float) -> None:
        """In so many seconds it computed so many tokens, and so many first tokens came after so long a wait in all."""
        self.tokens += tokens
        self.firsts += firsts
        self.waited_s += waited_s
        self._span_waited_s += waited_s
        self._span_s += passed_s
        busy_s = self.busy_s
        if self._span_s > SPAN_S or busy_s > WINDOW_S:
            self._busy_before_s, self._span_waited_s, self._span_s = busy_s, 0.0, 0.0
        if busy_s > WINDOW_S:
            self.tokens, self.firsts, self.waited_s = self.tokens / 2, self.firsts / 2, self.waited_s / 2
            self._busy_before_s = busy_s / 2

    def beside_s(self, step_s: float) -> float:
        """The busy seconds beside the waits for steps, which are nine tenths of them at most."""
        busy_s = self.busy_s
        return max(busy_s - self._steps_s(busy_s, step_s), busy_s / 10)

    def _steps_s(self, busy_s: float, step_s: float) -> float:
        """The waits for steps, as far as they were not at the same time."""
        alone = busy_s / self.waited_s if self.waited_s else 1.0
        return self.firsts * STEPS_WAITED * step_s * alone
