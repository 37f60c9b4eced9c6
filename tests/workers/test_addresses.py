"""Where workers listen, and what else must not be there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.address import TcpAddress, UnixAddress, of_worker
from extproc.config import WORKERS_MAX, Config, parse
from extproc.workers import addresses


def config(workers: int = 2, /, **listen: str) -> Config:
    found = parse({"workers": workers, "listen": {"insecure": True, **listen}})
    assert isinstance(found, Config), found
    return found


def faults(number: int = 2, /, **listen: str) -> list[str]:
    return [str(one) for one in addresses.faults_of(config(number, **listen))]


def test_ports_are_ten_apart_and_paths_are_numbered() -> None:
    assert [str(one) for one in addresses.of(config(3))] == ["127.0.0.1:9002", "127.0.0.1:9012", "127.0.0.1:9022"]
    found = addresses.of(config(3, extproc="unix:/run/extproc"))
    assert [str(one) for one in found] == ["unix:/run/extproc", "unix:/run/extproc.1", "unix:/run/extproc.2"]
    assert addresses.of(config(2, extproc="127.0.0.1:0")) == [TcpAddress("127.0.0.1", 0)] * 2


def test_the_defaults_have_room_for_all_workers() -> None:
    assert faults(WORKERS_MAX) == []


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ({"admin": "127.0.0.1:9012"}, "listen.admin: wanted an address of its own, not that of worker 1"),
        ({"admin": "0.0.0.0:9012"}, "listen.admin: wanted an address of its own, not that of worker 1"),
        ({"agents": "127.0.0.1:9012"}, "listen.agents: wanted an address of its own, not that of worker 1"),
        ({"scaler": "127.0.0.1:9012"}, "listen.scaler: wanted an address of its own, not that of worker 1"),
        ({"extproc": "127.0.0.1:65530"}, "workers: wanted a port up to 65535 for worker 1, got 65540"),
        (
            {"extproc": "unix:/run/e", "admin": "unix:/run/e.1"},
            "listen.admin: wanted an address of its own, not that of worker 1",
        ),
        ({"extproc": "unix:/" + 106 * "x"}, "workers: wanted a path of at most 107 bytes for worker 1"),
    ],
)
def test_what_meets_or_cannot_be_is_a_fault(listen: dict[str, str], said: str) -> None:
    assert [one[: len(said)] for one in faults(**listen)] == [said]
    assert faults(1, **listen) == []


def test_another_host_or_any_port_meets_nothing() -> None:
    assert faults(admin="127.0.0.2:9012") == []
    assert faults(extproc="127.0.0.1:0", agents="127.0.0.1:0", admin="127.0.0.1:0") == []
    assert faults(extproc="127.0.0.1:65525") == []
    assert faults(extproc="unix:/" + 104 * "x") == []


@given(st.integers(1, 65535), st.integers(0, WORKERS_MAX - 1), st.integers(0, WORKERS_MAX - 1))
def test_no_two_workers_share_an_address(port: int, one: int, other: int) -> None:
    for first in (TcpAddress("127.0.0.1", port), UnixAddress("/run/extproc")):
        assert (of_worker(first, one) == of_worker(first, other)) == (one == other)
