"""Does Envoy ask every worker of `serve`, and nobody who is not there?

A worker that Envoy has no endpoint for gets no request. An endpoint where nobody listens costs each request that is
sent there a try, until health checks see it.
"""

from collections.abc import Iterator
from typing import Final

from extproc.address import PORT_MAX, TcpAddress, of_worker
from extproc.config import WORKERS_MAX, Config
from extproc.core.settings import Fault
from extproc.envoycheck.file import At, Warned
from extproc.envoycheck.processors import Processors, endpoints_of, place_of

_LISTED_MAX: Final = 5


def faults_in(found: Processors, settings: Config) -> Iterator[Fault]:
    """Workers without an endpoint, and endpoints without a worker, of each host that has worker 0. Never raises."""
    first = settings.listen.extproc
    if isinstance(first, TcpAddress) and first.port == 0:
        return
    everybody = [of_worker(first, number) for number in range(WORKERS_MAX)]
    places = [place_of(one) for one in everybody if not isinstance(one, TcpAddress) or one.port <= PORT_MAX]
    wanted, absent = places[: settings.workers], places[settings.workers :]
    for cluster in found.their_clusters():
        hosts: dict[str, dict[int | str, At]] = {}
        for at, host, place in endpoints_of(cluster):
            hosts.setdefault(host, {})[place] = at
        for host, told in hosts.items():
            if wanted[0] not in told:
                continue
            missing = [one for one in wanted if one not in told]
            if missing:
                what = ", ".join(_shown(host, one) for one in missing[:_LISTED_MAX])
                why = f"{what} as well (workers is {settings.workers}: who has no endpoint gets no request)"
                yield Fault(cluster.of("load_assignment").path, why, f"{_shown(host, wanted[0])} and not these")
            for one in absent:
                if one in told:
                    why = f"no endpoint there, or another serve's (workers is {settings.workers})"
                    yield Warned(told[one].path, why, _shown(host, one))


def _shown(host: str, place: int | str) -> str:
    return f"{host}:{place}" if host else str(place)
