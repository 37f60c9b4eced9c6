"""Names to addresses: snapshots carry `ip:port` only, in the spelling that routers take."""

import asyncio
import socket
from ipaddress import ip_address

from extproc.address import TcpAddress


async def resolve(host: TcpAddress, within_s: float) -> str | None:
    """`ip:port` or `[ipv6]:port` of a host, asked off the loop; `None` when the name has no address, or not in time."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(within_s):
            found = await loop.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)
    except (TimeoutError, OSError, UnicodeError):
        return None
    for _, _, _, _, sockaddr in found:
        try:
            address = ip_address(sockaddr[0])
        except ValueError:
            continue
        return f"{address}:{host.port}" if address.version == 4 else f"[{address}]:{host.port}"
    return None
