"""What `extproc check --envoy` finds of destinations is what the real Envoy does."""

import copy
from pathlib import Path
from typing import Any

from extproc.address import Address, TcpAddress
from extproc.config import Config
from extproc.envoycheck import trust
from extproc.envoycheck.destinations import faults_in
from extproc.envoycheck.file import Warned
from extproc.envoycheck.processors import Processors, processors_of
from tests.bootstraps import (
    DESTINATION,
    FILTER,
    HOST,
    LISTEN,
    ROUTE,
    TYPE,
    bootstrap,
    cluster,
    complete,
    complete_clusters,
    configured,
    early,
    in_metadata,
    original_dst,
    override_host,
    put,
    without,
)
from tests.envoytrial import Trial, trial

Json = Any

PICKED = "x-gateway-destination-endpoint"
EARLY, REMOVED = "early_header_mutation_extensions", "request_headers_to_remove"
RECEIVING = f"{FILTER}metadata_options.receiving_namespaces"
OTHERS = {"untyped": ["extproc"]}
MUTATION = {
    "@type": f"{TYPE}extensions.filters.http.header_mutation.v3.HeaderMutation",
    "mutations": {"request_mutations": [{"remove": DESTINATION}]},
}


def single(name: str) -> Json:
    return put(complete(), f"{HOST}routes", [{"match": {"prefix": "/"}, "route": {"cluster": name}}])


def filtering(at: int) -> Json:
    made = copy.deepcopy(without(complete(), EARLY))
    made["http_filters"].insert(at, {"name": "mutation", "typed_config": MUTATION})
    return made


MATCHING = {"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}}
TRIED: dict[str, Json] = {
    "two routes": complete(),
    "one route": single("chosen"),
    "not removed": without(complete(), EARLY),
    "not removed, one route": without(single("chosen"), EARLY),
    "from outside": put(without(complete(), EARLY), "use_remote_address", True),
    "another one is removed": put(complete(), EARLY, early({"remove": PICKED})),
    "removed by a pattern": put(complete(), EARLY, early(MATCHING)),
    "removed by a filter": filtering(0),
    "removed by a filter too late": filtering(1),
    "removed by the route": put(complete(), f"{ROUTE}{REMOVED}", [DESTINATION]),
    "removed by the host": put(complete(), f"{HOST}{REMOVED}", [DESTINATION.upper()]),
    "removed by the table": put(complete(), f"route_config.{REMOVED}", [DESTINATION]),
    "route kept": put(complete(), f"{FILTER}route_cache_action", "RETAIN"),
    "route kept by the older name": put(complete(), f"{FILTER}disable_clear_route_cache", True),
    "route not kept": put(complete(), f"{FILTER}route_cache_action", "CLEAR"),
    "route kept, and one enough": put(single("chosen"), f"{FILTER}route_cache_action", "RETAIN"),
    "past the choice": put(complete(), f"{ROUTE}match.prefix", "/v2"),
    "a second route elsewhere": put(complete(), f"{HOST}routes.1.match.prefix", "/v2"),
    "no ORIGINAL_DST": single("engines"),
    "another header": single("other"),
    "no header": single("address"),
    "metadata alone": single("metadata"),
    "metadata too": single("both"),
    "endpoint picker": single("picking"),
    "no namespace, metadata": put(single("metadata"), RECEIVING, OTHERS),
    "no namespace, both": put(single("both"), RECEIVING, OTHERS),
    "no namespace, endpoint picker": put(single("picking"), RECEIVING, OTHERS),
    "no namespace, endpoint picker by metadata": put(single("picking-metadata"), RECEIVING, OTHERS),
    "endpoint picker by metadata": single("picking-metadata"),
    "endpoint picker, removed": put(single("picking"), EARLY, early({"remove": PICKED})),
}
SAYING: dict[str, Config] = {
    f"header:{DESTINATION}": Config(),
    f"metadata:{DESTINATION}": configured(policies={"default": {"destination": "original-dst-metadata"}}),
    f"both:{PICKED}": configured(policies={"default": {"destination": "override-host"}}),
}
"""How choices are said, with the configuration that says them so."""


def clusters(processor: Address, known: Address, chosen: TcpAddress) -> list[Json]:
    both = cluster("picking", known, http2=False)
    both["load_assignment"]["endpoints"] += cluster("", chosen)["load_assignment"]["endpoints"]
    both["load_assignment"]["endpoints"][1]["priority"] = 1  # without a choice all go to the first one
    return [
        *complete_clusters(processor, known),
        original_dst("other", use_http_header=True, http_header_name="x-other"),
        original_dst("address", use_http_header=False),
        original_dst("metadata", metadata_key=in_metadata(DESTINATION)),
        original_dst("both", metadata_key=in_metadata(DESTINATION), use_http_header=True),
        override_host(both, {"header": PICKED}),
        override_host(both | {"name": "picking-metadata"}, {"metadata": in_metadata(PICKED)}),
    ]


def found(manager: Json, settings: Config) -> dict[str, bool]:
    """What is said of choices, of clients, and of the time without `serve`."""
    made = bootstrap(manager, clusters=clusters(LISTEN, LISTEN, LISTEN))
    processors = processors_of(made, LISTEN)
    assert isinstance(processors, Processors)
    faults = [*faults_in(processors, settings), *trust.faults_in(processors)]
    trusting = [one for one in faults if one.path == EARLY or one.path.endswith(f".{EARLY}")]
    failing = [one for one in faults if "serve is away" in one.wanted]
    lost = [one for one in faults if one not in trusting and not isinstance(one, Warned)]
    return {"lost": bool(lost), "trusting": bool(trusting), "failing": bool(failing)}


async def heeded(made: Trial, name: str, headers: dict[str, str]) -> bool:
    return await made.ask(name, headers=headers) == (200, "chosen.")


async def test_what_is_found_is_where_requests_go_in_the_real_envoy(tmp_path: Path) -> None:
    lost: dict[tuple[str, str], bool] = {}
    trusting: dict[str, bool] = {}
    failing: dict[str, bool] = {}
    async with trial(tmp_path, TRIED, clusters) as made:
        clients = dict.fromkeys((DESTINATION, PICKED), str(made.chosen))
        for name in TRIED:
            lost |= {(name, says): not await heeded(made, name, {"x-does": says}) for says in SAYING}
            trusting[name] = await heeded(made, name, {"x-does": "nothing"} | clients)
        await made.stop_processor()
        for name in TRIED:
            failing[name] = await made.ask(name) != (200, "known.")
            assert await heeded(made, name, clients) == trusting[name], name
        await made.start_processor()
    for name, manager in TRIED.items():
        for says, settings in SAYING.items():
            came = {"lost": lost[name, says], "trusting": trusting[name], "failing": failing[name]}
            assert found(manager, settings) == came, (name, says)
