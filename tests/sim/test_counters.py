import pytest

from extproc.sim.counters import Counters, Histogram


@pytest.mark.parametrize(("value", "bucket"), [(0.0, 0), (1.0, 0), (1.001, 1), (2.0, 1), (2.001, 2), (1e9, 2)])
def test_a_bound_belongs_to_its_bucket(value: float, bucket: int) -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(value)
    assert histogram.in_bucket.index(1) == bucket
    assert (histogram.count, histogram.sum) == (1, value)


def test_no_two_engines_share_a_histogram() -> None:
    one, other = Counters(), Counters()
    one.inter_token_latency.observe(1.0)
    assert other.inter_token_latency.count == one.request_time_per_output_token.count == 0


def test_a_value_may_be_counted_many_times_at_once() -> None:
    once, often = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    for _ in range(3):
        often.observe(1.5)
    once.observe(1.5, times=3)
    once.observe(1.5, times=0)
    assert (once.in_bucket, once.sum) == (often.in_bucket, often.sum)
