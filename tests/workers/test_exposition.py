"""Several pages for Prometheus as one: valid, and each sample with who tells it."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.workers.exposition import merged, only

LABELS = st.dictionaries(st.sampled_from("abc"), st.text(max_size=8), min_size=3, max_size=3)


def page(*rows: dict[str, str], gauge: float = 1.5) -> bytes:
    registry = CollectorRegistry()
    counter = Counter("t_requests", "With {braces}.", ["a", "b", "c"], registry=registry)
    for row in rows:
        counter.labels(*(row[name] for name in "abc")).inc()
    Gauge("t_level", "One.", registry=registry).set(gauge)
    Histogram("t_seconds", "Buckets.", registry=registry, buckets=(1, 2)).observe(1.5)
    return generate_latest(registry)


def samples(text: bytes) -> list[Any]:
    found = []
    for family in text_string_to_metric_families(text.decode()):
        found += [(one.name, dict(one.labels), one.value) for one in family.samples]
    return found


def _key(sample: Any) -> str:
    name, labels, value = sample
    return repr((name, sorted(labels.items()), value))


@settings(max_examples=20)
@given(st.lists(LABELS, max_size=4), st.lists(LABELS, max_size=4), st.floats(allow_nan=False))
def test_every_sample_of_every_page_is_there_once_with_its_worker(
    rows: list[dict[str, str]], others: list[dict[str, str]], gauge: float
) -> None:
    pages = {"0": page(*rows, gauge=gauge), "parent": page(*others)}
    told = merged(pages)
    wanted = [(name, {"worker": who, **labels}, value) for who in pages for name, labels, value in samples(pages[who])]
    assert sorted(map(_key, samples(told))) == sorted(map(_key, wanted))
    heads = [line for line in told.decode().split("\n") if line.startswith("# ")]
    assert len(heads) == len(set(heads))


def test_families_stand_together_and_those_of_one_page_alone_too() -> None:
    registry = CollectorRegistry()
    Gauge("t_own", "Of the parent.", registry=registry).set(2)
    told = merged({"0": page(), "1": page(), "parent": generate_latest(registry)}).decode()
    lines = told.splitlines()
    assert lines.index('t_level{worker="1"} 1.5') == lines.index('t_level{worker="0"} 1.5') + 1
    assert lines[-1] == 't_own{worker="parent"} 2.0'


def test_what_is_no_page_makes_none() -> None:
    assert merged({}) == merged({"0": b""}) == merged({"0": b"\xff\xfe nonsense 1\nmore{ 2\n"}) == b""


def test_only_what_is_wanted_is_kept() -> None:
    assert {name for name, _, _ in samples(only(page(), ("t_le", "x")))} == {"t_level"}
