"""What a configuration makes of the bus and of the seed of hashes."""

import re
from pathlib import Path
from typing import Any

import pytest
import structlog
from xxhash import xxh3_64_intdigest

from extproc.bus.localbus import LocalBus
from extproc.bus.natsbus import NatsBus
from extproc.config import Config, parse
from extproc.exchange import joining
from extproc.exchange.joining import SECRET_BYTES_MAX, SECRET_BYTES_MIN
from tests.exchange.scripted import Line, Router

NATS = {"servers": "nats://127.0.0.1:4222"}


def config(**mapping: Any) -> Config:
    parsed = parse(mapping)
    assert isinstance(parsed, Config)
    return parsed


def test_routers_of_a_fleet_have_one_seed_and_others_another(tmp_path: Path) -> None:
    seed = joining.prefix_seed(config(nats=NATS))
    assert isinstance(seed, int)
    assert joining.prefix_seed(config(nats=NATS | {"fleet": "default"})) == seed
    assert joining.prefix_seed(config(nats=NATS | {"fleet": "other"})) not in {seed, None}
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * SECRET_BYTES_MIN)
    kept = joining.prefix_seed(config(nats=NATS, prefix_secret=str(secret)))
    assert kept not in {seed, None}
    secret.write_bytes(b"S" * SECRET_BYTES_MAX)
    assert joining.prefix_seed(config(nats=NATS, prefix_secret=str(secret))) not in {seed, kept, None}


def test_chance_keys_what_nobody_is_told(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s" * SECRET_BYTES_MIN)
    assert joining.prefix_seed(config()) is None
    assert joining.prefix_seed(config(prefix_secret=str(tmp_path / "secret"))) is None


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (None, "No such file"),
        (b"", "0 bytes"),
        (b"s" * (SECRET_BYTES_MIN - 1), "15 bytes"),
        (b"s" * (SECRET_BYTES_MAX + 1), "65537 bytes"),
    ],
)
def test_a_secret_that_is_none_is_a_fault(tmp_path: Path, content: bytes | None, got: str) -> None:
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_bytes(content)
    (fault,) = joining.faults(config(nats=NATS, prefix_secret=str(secret)))
    assert fault.path == "prefix_secret"
    assert fault.wanted == "a file of 16 to 65536 bytes"
    assert got in fault.got


def test_a_key_marks_a_seed_and_does_not_tell_it() -> None:
    seeds = [0, 1, 2**64 - 1, xxh3_64_intdigest(b"default")]
    keys = [joining.key_of(seed) for seed in seeds]
    assert len(set(keys)) == len(seeds)
    assert keys == [joining.key_of(seed) for seed in seeds]
    for seed, key in zip(seeds, keys, strict=True):
        assert re.fullmatch("[0-9a-f]{8}", key)
        assert key not in f"{seed:016x}"
    assert joining.key_of(None) == ""


def test_faults_of_the_bus_are_told_too(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    faults = joining.faults(config(nats=NATS | {"token_file": absent}, prefix_secret=absent))
    assert [fault.path for fault in faults] == ["nats.token_file", "prefix_secret"]
    assert joining.faults(config()) == []
    assert joining.faults(config(nats=NATS)) == []


def test_nats_goes_before_the_workers_own_bus(tmp_path: Path) -> None:
    log = structlog.get_logger()
    nats = config(nats=NATS).nats
    assert joining.bus_of(None, None, lambda: 0.0, log) is None
    assert isinstance(joining.bus_of(nats, None, lambda: 0.0, log), NatsBus)
    assert isinstance(joining.bus_of(nats, (tmp_path, 0), lambda: 0.0, log), NatsBus)
    assert isinstance(joining.bus_of(None, (tmp_path, 0), lambda: 0.0, log), LocalBus)


async def test_who_has_joined_leaves_at_the_end() -> None:
    line = Line()
    one, other = Router(line, "one"), Router(line, "other")
    other.connect()
    async with joining.joined(one.bus, one.exchange):
        assert other.exchange.state(other.now_s).peers
        assert not one.bus.closed
    assert other.exchange.state(other.now_s).peers == []
    assert one.bus.closed
    async with joining.joined(None, None):
        pass
