"""How far a node has in its cache what we expect there."""

TRUST_MIN = 0.5
"""A share of hits over this is taken for all: what others send, and when counters are read, blurs it anyway."""
TRUST_PRIOR_TOKENS = 20_000.0
TRUST_WINDOW_TOKENS = 500_000.0
"""Of hits or expected ones, after which those so far count half."""


class CacheTrust:
    """Tokens found in the node's cache over tokens that we expected there."""

    __slots__ = ("expected", "hits", "hits_total", "queries", "told")

    def __init__(self) -> None:
        self.expected = 0.0
        self.hits = 0.0
        self.told = 0.0
        """Hits expected of requests that ended since the latest report: no more than was looked up there count, for a
        request that was refused or hung up was never looked up."""
        self.queries: int | None = None
        self.hits_total: int | None = None

    @property
    def share(self) -> float:
        """Over 0, at most 1."""
        if self.hits_total is None:
            return 1.0
        share = (self.hits + TRUST_PRIOR_TOKENS) / (self.expected + TRUST_PRIOR_TOKENS)
        return 1.0 if share >= TRUST_MIN else share

    def observe(self, hits_total: int | None, queries_total: int | None) -> None:
        """Take the engine's counters; `None`: it does not tell."""
        if hits_total is None:
            return
        before, self.hits_total = self.hits_total, hits_total
        asked = None if queries_total is None or self.queries is None else max(0, queries_total - self.queries)
        self.queries = queries_total
        self.expected += self.told if asked is None else min(self.told, asked)
        self.told = 0.0
        if before is None or hits_total < before:
            self.hits = self.expected = 0.0
            return
        self.hits += hits_total - before
        if max(self.expected, self.hits) > TRUST_WINDOW_TOKENS:
            self.hits, self.expected = self.hits / 2, self.expected / 2
