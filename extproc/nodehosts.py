"""Which hosts a node may have. Whoever writes the table can aim Envoy, so this is the gate.

A host passes in one spelling only, and only inside the networks of the configuration. Addresses that no inference
node has are refused even there.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Network = IPv4Network | IPv6Network

WANTED = "ip:port or [ipv6]:port, in canonical spelling"

_HOST = re.compile(r"(?:([0-9.]{7,15})|\[([0-9a-f:.]{2,45})\]):([1-9][0-9]{0,4})")
_PORT_MAX = 65535
_NETWORKS_SHOWN = 6
_NEVER = (
    # Metadata services of clouds hand out credentials; the usual one, 169.254.169.254, is link-local.
    IPv6Network("fd00:ec2::254/128"),
    IPv4Network("100.100.100.200/32"),
    IPv4Network("168.63.129.16/32"),
    IPv4Network("192.0.0.192/32"),
    IPv4Network("0.0.0.0/8"),
    IPv4Network("255.255.255.255/32"),
)

_TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
"""In whose last 32 bits an IPv4 address stands."""


def refusal(host: str, allowed: Sequence[Network] | None) -> str | None:
    """What a host should have been, or `None` if Envoy may be sent there. `allowed` may be `None`: any network."""
    spelled = _HOST.fullmatch(host)
    if spelled is None or int(spelled[3]) > _PORT_MAX:
        return WANTED
    address = _address(spelled[1] or spelled[2])
    if address is None or (address.version == 4) != (spelled[1] is not None):
        return WANTED
    if address.version == 6 and address.ipv4_mapped is not None:
        # It is the IPv4 address by another name, which would slip past the networks.
        return "an IPv4 address in its own spelling"
    if any(map(_never, (address, *_inside(address)))):
        return "an address that a node can have"
    if allowed is not None and not _within(address, allowed):
        networks = ", ".join(map(str, allowed[:_NETWORKS_SHOWN])) + (", …" if len(allowed) > _NETWORKS_SHOWN else "")
        return f"an address within hosts_allowed ({networks})"
    return None


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return address if str(address) == text else None


def _never(address: IPv4Address | IPv6Address) -> bool:
    return address.is_unspecified or address.is_multicast or address.is_link_local or _within(address, _NEVER)


def _inside(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """The IPv4 address to which networks translate one of IPv6: by NAT64 (RFC 6052) or 6to4."""
    if address.version == 4:
        return []
    inside = [] if address.sixtofour is None else [address.sixtofour]
    if _within(address, _TRANSLATED):
        inside.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return inside


def _within(address: IPv4Address | IPv6Address, networks: Sequence[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
