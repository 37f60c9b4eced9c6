"""Does Envoy ask every worker of `serve`, and nobody who is not there?

A worker that Envoy has no endpoint for gets no request. An endpoint where nobody listens costs each request that is
sent there a try, until health checks see it.

Ports are told otherwise where something stands between, as a Service or a container's published port. So that none is
`serve`'s is known only where Envoy asks on its own machine, and sure only where `serve` listens for its own alone.
"""

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

from extproc.address import PORT_MAX, Address, TcpAddress, of_worker
from extproc.config import WORKERS_MAX, Config
from extproc.core.settings import Fault
from extproc.envoycheck.file import At, Warned
from extproc.envoycheck.processors import Processors, endpoints_of, place_of

_LISTED_MAX: Final = 5


def faults_in(found: Processors, settings: Config) -> Iterator[Fault]:
    """Workers without an endpoint, and endpoints without a worker, of each host that has one; or none at all.

    Never raises.
    """
    first = settings.listen.extproc
    if isinstance(first, TcpAddress) and first.port == 0:
        return
    everybody = [of_worker(first, number) for number in range(WORKERS_MAX)]
    places = [place_of(one) for one in everybody if not isinstance(one, TcpAddress) or one.port <= PORT_MAX]
    wanted, absent = places[: settings.workers], places[settings.workers :]
    yield from _asking_others(found, first, set(wanted))
    for cluster in found.their_clusters():
        hosts: dict[str, dict[int | str, At]] = {}
        for at, host, place in endpoints_of(cluster):
            hosts.setdefault(host, {})[place] = at
        for host, told in hosts.items():
            there = [one for one in wanted if one in told]
            if not there:
                continue
            missing = [one for one in wanted if one not in told]
            if missing:
                what = ", ".join(_shown(host, one) for one in missing[:_LISTED_MAX])
                why = f"{what} as well (workers is {settings.workers}: who has no endpoint gets no request)"
                yield Fault(cluster.of("load_assignment").path, why, f"{_shown(host, there[0])} and not these")
            for one in absent:
                if one in told:
                    why = f"no endpoint there, or another serve's (workers is {settings.workers})"
                    yield Warned(told[one].path, why, _shown(host, one))


def _asking_others(found: Processors, first: Address, wanted: set[int | str]) -> Iterator[Fault]:
    """Where all endpoints are told, on Envoy's own machine, and nobody listens at one of them."""
    clusters = found.their_clusters()
    told = [list(endpoints_of(cluster)) for cluster in clusters]
    each = {(host, place): None for endpoints in told for _, host, place in endpoints}
    is_told = bool(each) and all(told) and all(_is_near(host) for host, _ in each)
    if not is_told or any(place in wanted for _, place in each):
        return
    kind = Fault if not isinstance(first, TcpAddress) or _is_near(first.host) else Warned
    got = ", ".join(_shown(host, place) for host, place in list(each)[:_LISTED_MAX])
    why = f"{first} among them (listen.extproc: else nobody asks serve)"
    yield kind(clusters[0].of("load_assignment").path, why, got)


def _is_near(host: str) -> bool:
    """Whether it is of the same machine; a unix path has no host."""
    if host in ("", "localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(host: str, place: int | str) -> str:
    return f"{host}:{place}" if host else str(place)
