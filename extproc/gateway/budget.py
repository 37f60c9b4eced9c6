"""The memory that request bodies may fill."""


class BodyBudget:
    """Bytes of all streams' bodies: held, because they have come, and claimed, because large ones are on their way.

    A claim keeps further claims out, so that Envoy need not buffer what we could not take. It does not keep out what
    has come: a client that claims much and sends nothing must not shut out the others.
    """

    __slots__ = ("bytes_claimed", "bytes_held", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_claimed = 0
        self.bytes_held = 0

    @property
    def bytes_reserved(self) -> int:
        """All that has to be given back some time."""
        return self.bytes_claimed + self.bytes_held


class BodyShare:
    """One stream's share of the budget. `give_back` must be called in the end; it may be called again."""

    __slots__ = ("_budget", "_claimed", "_held")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._claimed = 0
        self._held = 0

    def claim(self, amount: int) -> bool:
        """Announce the body, or not where it does not fit beside all others. Once, before any of it has come."""
        if self._budget.bytes_reserved + amount > self._budget.bytes_max:
            return False
        self._budget.bytes_claimed += amount
        self._claimed = amount
        return True

    def hold(self, amount: int) -> bool:
        """Take so many more bytes that have come, or not where they do not fit beside what has come before."""
        self._unclaim()
        if self._budget.bytes_held + amount > self._budget.bytes_max:
            return False
        self._budget.bytes_held += amount
        self._held += amount
        return True

    def give_back(self) -> None:
        """The body is dropped, or will not come."""
        self._unclaim()
        self._budget.bytes_held -= self._held
        self._held = 0

    def _unclaim(self) -> None:
        self._budget.bytes_claimed -= self._claimed
        self._claimed = 0
