"""Rates learned from what the nodes report."""

from extproc.core.settings import ExpectedRates
from extproc.core.snapshot import Snapshot


class LearnedRates:
    """The fleet's mean decode time; the configured one until a node reports it.

    State: each node's latest report. The mean is made anew with each report, so that it costs a request nothing.
    The prefill rate is the configured one: no report tells tokens and time of the same prefills.
    """

    def __init__(self, expected: ExpectedRates) -> None:
        self._expected = expected
        self._decode_ms: dict[str, float] = {}
        self.rates = expected
        """What a request is assumed to cost now."""

    def observe(self, snapshot: Snapshot) -> None:
        """Take a node's latest report; a node that reports none keeps its last."""
        reported_ms = snapshot.decode_ms_per_token
        if reported_ms and self._decode_ms.get(snapshot.node_id) != reported_ms:
            self._decode_ms[snapshot.node_id] = reported_ms
            self._renew()

    def forget(self, node_id: str) -> None:
        """The node is a member no more."""
        if self._decode_ms.pop(node_id, None) is not None:
            self._renew()

    def _renew(self) -> None:
        if not self._decode_ms:
            self.rates = self._expected
            return
        mean_s = sum(self._decode_ms.values()) / len(self._decode_ms) / 1000
        self.rates = self._expected.model_copy(update={"decode_s_per_token": mean_s})
