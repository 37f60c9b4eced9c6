"""What others cost, measured for a few nodes."""

import pytest

from bench import peerwords
from bench.peerwords import measured


def test_each_part_is_measured_and_a_word_only_where_somebody_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peerwords, "ROUNDS", 1)  # each collects garbage, of all that other tests have made here
    alone, heard = measured(2, 0), measured(2, 2)
    assert heard.keys() - alone.keys() == {"word heard"}
    assert min(heard.values()) > 0
