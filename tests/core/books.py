"""A ledger of one node, for tests: requests and samples in one line each."""

from extproc.core.ledger import Ledger
from extproc.core.nodeledger import Reservation, Sample


class Books(Ledger):
    """A ledger with one node."""

    def send(self, request_id: str, at_s: float, tokens: int = 100, sequences: int = 1, kv_blocks: int = 10) -> None:
        self.open(Reservation(request_id, "a", sequences, kv_blocks, at_s, tokens))

    def sample(self, at_s: float = 10.0, pending: int = 0, delay_s: float = 0.0, *, idle: bool = False) -> None:
        self.sampled("a", Sample(at_s, delay_s, pending, idle))

    def repeat(self, at_s: float, *, idle: bool = False) -> None:
        """A sample that says what the one before said."""
        self.sampled("a", Sample(at_s, idle=idle, unchanged=True))

    @property
    def extra(self) -> int:
        """What is put on top of the sample's count."""
        return self.load("a").sequences_unseen - self.load("a").sequences_finished

    @property
    def tokens(self) -> int:
        return self.load("a").prefill_tokens

    @property
    def others(self) -> int:
        return self.load("a").prefills_of_others
