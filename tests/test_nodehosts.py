from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.config import Config
from extproc.nodehosts import refusal

DEFAULT = Config().hosts_allowed
ANYWHERE = (ip_network("0.0.0.0/0"), ip_network("::/0"))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:1", "10.1.2.3:8000", "192.168.255.255:65535", "172.31.0.1:80", "[::1]:8000", "[fd00::1:2]:8000"],
)
def test_addresses_of_the_own_network_pass(host: str) -> None:
    assert refusal(host, DEFAULT) is None


@pytest.mark.parametrize("host", [
    "", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:080", "10.0.0.1:+80", "10.0.0.1:8 0",
    "10.0.0.1:80\n", " 10.0.0.1:80", "10.0.0.1:٣٣", "010.0.0.1:80", "10.1:80", "0x0a000001:80", "167772161:80",
    "10.0.0.1:80:90", "10.0.0.1,10.0.0.2:80", "localhost:80", "node.example:80", "http://10.0.0.1:80",
    "fd00::1:80", "[fd00::1]", "[fd00::1]:0", "[FD00::1]:80", "[fd00:0::1]:80", "[10.0.0.1]:80", "[fd00::1%eth0]:80",
    "[fe80::1%1]:80", "[::1:80", "[::1]]:80", "[]:80", "unix:/tmp/socket",
])  # fmt: skip
def test_a_host_has_one_spelling(host: str) -> None:
    assert refusal(host, ANYWHERE) is not None


@pytest.mark.parametrize("host", [
    "0.0.0.0:80", "0.1.2.3:80", "255.255.255.255:80", "224.0.0.1:80", "239.255.255.250:80", "169.254.169.254:80",
    "[::]:80", "[ff02::1]:80", "[fe80::1]:80", "[::ffff:10.0.0.1]:80", "[::ffff:a00:1]:80",
    "[::ffff:169.254.169.254]:80", "[fd00:ec2::254]:80", "[64:ff9b::a9fe:a9fe]:80", "[64:ff9b:1::a9fe:a9fe]:80",
    "[2002:a9fe:a9fe::1]:80", "[64:ff9b::]:80", "100.100.100.200:80", "168.63.129.16:80", "192.0.0.192:80",
    "[64:ff9b::6464:64c8]:80",
])  # fmt: skip
def test_addresses_that_no_node_has_are_refused_even_where_everything_is_allowed(host: str) -> None:
    assert refusal(host, ANYWHERE) is not None


@pytest.mark.parametrize("host", ["[::1]:80", "[64:ff9b::a00:1]:80", "[2002:a00:1::1]:80", "[fd00::a9fe:a9fe]:80"])
def test_addresses_that_are_like_them_are_not(host: str) -> None:
    assert refusal(host, ANYWHERE) is None


@pytest.mark.parametrize("host", ["8.8.8.8:80", "172.32.0.1:80", "[2001:db8::1]:80", "100.64.0.1:80"])
def test_hosts_outside_the_networks_are_refused(host: str) -> None:
    reason = refusal(host, DEFAULT)
    assert reason is not None
    assert reason.startswith("an address within hosts_allowed (127.0.0.0/8, ")
    assert refusal(host, ANYWHERE) is None


@given(st.one_of(st.text(max_size=40), st.from_regex(r"[0-9a-f.:\[\]%]{1,40}:[0-9]{1,6}", fullmatch=True)))
def test_no_text_raises_and_what_passes_is_canonical(host: str) -> None:
    if refusal(host, ANYWHERE) is None:
        address, _, port = host.rpartition(":")
        assert str(int(port)) == port
        assert str(ip_address(address.strip("[]"))) == address.strip("[]")
