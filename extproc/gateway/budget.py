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

    def claim(self, amount: int) -> bool:
        """Announce a body, or not where it does not fit beside all others."""
        if self.bytes_reserved + amount > self.bytes_max:
            return False
        self.bytes_claimed += amount
        return True

    def hold(self, amount: int) -> bool:
        """Take what has come, or not where it does not fit beside what has come before."""
        if self.bytes_held + amount > self.bytes_max:
            return False
        self.bytes_held += amount
        return True

    def unclaim(self, amount: int) -> None:
        """The announced body has come, or never will."""
        assert 0 <= amount <= self.bytes_claimed, "more than was claimed"
        self.bytes_claimed -= amount

    def release(self, amount: int) -> None:
        """Give back what was held."""
        assert 0 <= amount <= self.bytes_held, "more than was held"
        self.bytes_held -= amount
