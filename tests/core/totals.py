"""An engine's totals, for tests of what is learned of them."""

from extproc.core.learned import LearnedRates
from extproc.core.settings import ExpectedRates
from tests.core.fleet import snapshot

EXPECTED = ExpectedRates(prefill_tokens_per_s=1000, prefill_tokens=500, decode_s_per_token=0.01, output_tokens=100)


class Engine:
    """One node's totals, reported once in a while."""

    def __init__(self, learned: LearnedRates, node_id: str = "a") -> None:
        self.learned = learned
        self.node_id = node_id
        self.now_s = 0.0
        self.totals = [0.0, 0.0, 0.0]
        self.report(0.0)

    def report(self, passed_s: float, tokens: float = 0, waited_s: float = 0, firsts: float = 1) -> float:
        """The node's rate after so many tokens more."""
        self.now_s += passed_s
        self.totals = [total + more for total, more in zip(self.totals, (tokens, waited_s, firsts), strict=True)]
        tokens_total, seconds, count = self.totals
        told = snapshot(
            self.node_id,
            prefill_tokens_total=int(tokens_total),
            prefill_seconds_total=seconds,
            first_tokens_total=int(count),
        )
        return self.learned.observe(told, self.now_s).prefill_tokens_per_s
