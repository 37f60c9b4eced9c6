"""The memory that request bodies may fill."""


class BodyBudget:
    """Bytes that the bodies of all streams together may hold."""

    __slots__ = ("bytes_max", "bytes_reserved")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_reserved = 0

    def reserve(self, amount: int) -> bool:
        """Take this many bytes, or none where they do not fit."""
        if self.bytes_reserved + amount > self.bytes_max:
            return False
        self.bytes_reserved += amount
        return True

    def release(self, amount: int) -> None:
        """Give back what was reserved."""
        assert 0 <= amount <= self.bytes_reserved, "released more than reserved"
        self.bytes_reserved -= amount
