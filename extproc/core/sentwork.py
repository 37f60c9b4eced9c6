"""Prompt work that one router sent to one node, as far as it knows by itself: no sample changes it."""


class SentWork:
    """Of requests that are open.

    State: tokens of those without a first token; and what was sent, which shrinks at the fleet's rate since.
    """

    __slots__ = ("since_s", "tokens", "unstarted")

    def __init__(self) -> None:
        self.unstarted = 0
        """Σ uncached tokens of the requests of whose first token nobody told."""
        self.tokens = 0.0
        """Σ uncached tokens, less what the fleet's rate computed until `since_s`."""
        self.since_s = float("-inf")

    def send(self, tokens: int, opened_s: float, tokens_per_s: float, *, has_begun: bool = False) -> None:
        """A request with so many tokens to compute was sent then."""
        self.unstarted += 0 if has_begun else tokens
        if opened_s > self.since_s:
            self.tokens = max(0.0, self.tokens - tokens_per_s * (opened_s - self.since_s))
            self.since_s = opened_s
        self.tokens += tokens

    def resize(self, more: int) -> None:
        """One without a first token has so many tokens more than was known, or fewer."""
        self.unstarted += more
        self.tokens = max(0.0, self.tokens + more)

    def take_over(self, other: "SentWork") -> None:
        """All of that was sent here."""
        self.unstarted += other.unstarted
        self.tokens += other.tokens
        self.since_s = max(self.since_s, other.since_s)
