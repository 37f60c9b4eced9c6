"""What an operator sees of other routers."""

import re
from functools import partial
from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, generate_latest

from extproc import exchange
from extproc.bus.bus import ENDS, LOADS, PLACEMENTS, ROUTERS
from extproc.core.peershares import NodeShare, PeerTold, Word
from extproc.ops import admin
from extproc.ops.exchangemetrics import DROPPED, KINDS, RECEIVED, SENT, ExchangeMetrics
from extproc.ops.exchangepage import ExchangeState, PeerRow, peers_page
from extproc.ops.metrics import Metrics
from tests.ops.pages import Admin, Client, page

STATE = ExchangeState(
    "ab12", True, None, 61.5, None, False, [PeerRow("cd34", 0.25, 7, True), PeerRow("ef56")], {"sent": {"x": 1}}
)


async def test_the_page_shows_the_bus_and_every_router() -> None:
    of = Admin()
    app = admin.build(of.balancer, Metrics(), lambda: 0.0, lambda: False, tuple, partial(peers_page, "ab12", STATE))
    async with TestClient(TestServer(app)) as client:
        assert await page(client, "/peers") == {
            "router": "ab12",
            "connected": True,
            "reason": None,
            "for_s": 61.5,
            "way_s": None,
            "ends_are_told": False,
            "peers": [
                {"router": "cd34", "age_s": 0.25, "requests": 7, "same_key": True},
                {"router": "ef56", "age_s": None, "requests": None, "same_key": None},
            ],
            "messages": {"sent": {"x": 1}},
        }


async def test_a_router_without_a_bus_says_so(client: Client) -> None:
    assert await page(client, "/peers") == {"router": "", "bus": False, "peers": []}
    async with client.get("/") as response:
        assert "/peers" in await response.text()


async def test_nodes_show_what_is_ours_and_what_is_others_and_decisions_rest_on_both(of: Admin, client: Client) -> None:
    of.report("a", requests_running=5, requests_waiting=0)
    of.route("r1")
    share = NodeShare("a", of.now_s - 0.5, requests_held=2, sequences_open=3, sequences_unseen=2, requests_unseen=2)
    assert of.balancer.peer(PeerTold("other", 1, of.now_s, Word(True, (share,))), of.now_s)
    (node,) = (await page(client, "/nodes"))["nodes"]
    assert (node["own"]["sequences_open"], node["own"]["requests_held"]) == (1, 1)
    assert (node["peers"]["sequences_open"], node["peers"]["requests_held"]) == (3, 2)
    assert node["in_flight"] == 5 + 1 + 2
    assert all(isinstance(number, int) for number in node["peers"].values())
    async with client.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    assert 'extproc_node_sequences_open{node="a"} 1.0' in lines
    assert 'extproc_node_peers_sequences_open{node="a"} 3.0' in lines
    assert 'extproc_node_in_flight{node="a"} 8.0' in lines


def test_messages_are_counted_for_the_metrics_and_for_the_page() -> None:
    registry = CollectorRegistry()
    metrics = ExchangeMetrics(registry)
    metrics.message(SENT, "loads", 100)
    metrics.message(SENT, "loads", 50)
    metrics.message(RECEIVED, "ends", 7)
    metrics.refused("ends")
    metrics.dropped("placements_budget", 3)
    metrics.dropped("placements_budget", 0)
    metrics.dropped("ends_late", 0)
    assert metrics.counts == {
        "sent": {"loads": 2},
        "received": {"ends": 1},
        "refused": {"ends": 1},
        "dropped": {"placements_budget": 3},
    }
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        'extproc_exchange_messages_total{direction="sent",kind="loads"} 2.0',
        'extproc_exchange_bytes_total{direction="sent",kind="loads"} 150.0',
        'extproc_exchange_bytes_total{direction="received",kind="ends"} 7.0',
        'extproc_exchange_refused_total{kind="ends"} 1.0',
        'extproc_exchange_dropped_total{reason="placements_budget"} 3.0',
    ):
        assert line in lines
    assert not any(line.startswith(("extproc_bus", "extproc_peers ")) for line in lines), "there is no bus"


def test_every_count_is_on_the_page_before_it_has_counted() -> None:
    """Else nobody sees the first one come: `increase()` wants two values."""
    registry = CollectorRegistry()
    metrics = ExchangeMetrics(registry)
    metrics.watch(lambda: True, lambda: 0.0, lambda: 0, dict)
    before = {line.rpartition(" ")[0] for line in generate_latest(registry).decode().splitlines()}
    for kind in KINDS:
        metrics.message(SENT, kind, 1)
        metrics.message(RECEIVED, kind, 1)
        metrics.refused(kind)
    for reason in DROPPED:
        metrics.dropped(reason)
    after = {line.rpartition(" ")[0] for line in generate_latest(registry).decode().splitlines()}
    assert after == before
    assert set(KINDS) == {LOADS, PLACEMENTS, ROUTERS, ENDS}
    written = {
        name
        for file in (Path(exchange.__file__).parent).glob("*.py")
        for name in re.findall(r'dropped\(\s*"(\w+)"', file.read_text())
    }
    assert set(DROPPED) == written


def test_the_bus_is_looked_at_for_each_page() -> None:
    registry = CollectorRegistry()
    metrics, lost = ExchangeMetrics(registry), {"slow": 0}
    metrics.watch(lambda: True, lambda: 0.002, lambda: 3, lambda: lost)
    lost["slow"] = 9
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        "extproc_bus_connected 1.0",
        "extproc_bus_way_seconds 0.002",
        "extproc_peers 3.0",
        'extproc_bus_lost_total{reason="slow"} 9.0',
    ):
        assert line in lines
