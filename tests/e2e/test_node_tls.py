"""Envoy, rendered with `node_tls`: one name for all nodes, their certificates checked, and one of its own to show.

ORIGINAL_DST knows an address and no name, so every engine's certificate has the same name: that the peer is an engine
is proved, and not which one.
"""

import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import trustme

from tests.e2e.edited import Edited, by_override, engine, gateway
from tests.rendered import rendered

ENGINE, GATEWAY = "engine.internal", "gateway.internal"


@dataclass(frozen=True)
class Certificates:
    """An authority, what it gave to Envoy, and another authority that nobody trusts."""

    folder: Path
    authority: trustme.CA
    other: trustme.CA

    @classmethod
    def made(cls, folder: Path) -> "Certificates":
        made = cls(folder, trustme.CA(), trustme.CA())
        made.authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        own = made.authority.issue_cert(GATEWAY)
        own.private_key_pem.write_to_path(str(folder / "key.pem"))
        own.cert_chain_pems[0].write_to_path(str(folder / "certificate.pem"))
        return made

    def settings(self, *, own: bool = True) -> dict[str, str]:
        """Those of `node_tls`."""
        files = {"ca": "ca.pem", **({"certificate": "certificate.pem", "key": "key.pem"} if own else {})}
        return {"name": ENGINE, **{setting: str(self.folder / file) for setting, file in files.items()}}

    def server(self, name: str, *, trusted: bool = True) -> ssl.SSLContext:
        """For an engine with a certificate of this name, that wants one of its client as a mesh does."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        (self.authority if trusted else self.other).issue_cert(name).configure_cert(context)
        self.authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        return context


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates.made(tmp_path)


Server = Callable[[Certificates], ssl.SSLContext | None]
REJECTED: dict[str, tuple[Server, str]] = {
    "another's name": (lambda made: made.server("somebody.internal"), "SAN_matcher"),
    "an unknown authority": (lambda made: made.server(ENGINE, trusted=False), "unable_to_get_local_issuer_certificate"),
    "plain text": (lambda _: None, "WRONG_VERSION_NUMBER"),
}
"""Nodes that must not get a request, and Envoy's word for it."""


def original_dst(certificates: Certificates, *, own: bool = True) -> Edited:
    return Edited(rendered(node_tls=certificates.settings(own=own)))


def listed(certificates: Certificates) -> Edited:
    return by_override(node_tls=certificates.settings())


@pytest.mark.parametrize("destination", [original_dst, listed])
async def test_a_node_is_reached_over_mutual_tls(
    client: aiohttp.ClientSession, tmp_path: Path, certificates: Certificates, destination: Callable[..., Edited]
) -> None:
    async with AsyncExitStack() as stack:
        node, got = await stack.enter_async_context(engine("node", tls=certificates.server(ENGINE)))
        running = await stack.enter_async_context(gateway(client, tmp_path, destination(certificates), [node]))
        await running.reporter.report("node", node)
        await running.ready("node")
        answer = await running.ask("demo")
        assert answer.as_chosen, answer
        assert [one["peer"]["subjectAltName"] for one in got] == [(("DNS", GATEWAY),)]
        await running.all_closed()


@pytest.mark.parametrize("kind", REJECTED)
@pytest.mark.parametrize("destination", [original_dst, listed])
async def test_a_node_that_cannot_prove_to_be_an_engine_gets_no_request(
    client: aiohttp.ClientSession,
    tmp_path: Path,
    certificates: Certificates,
    destination: Callable[..., Edited],
    kind: str,
) -> None:
    server, words = REJECTED[kind]
    async with AsyncExitStack() as stack:
        node, got = await stack.enter_async_context(engine("node", tls=server(certificates)))
        running = await stack.enter_async_context(gateway(client, tmp_path, destination(certificates), [node]))
        await running.reporter.report("node", node)
        await running.ready("node")
        answer = await running.ask("demo")
        assert (answer.status, answer.chosen, got) == (503, "node", []), answer
        line = await running.log_of("/v1/completions")
        assert "UF" in line["flags"].split(","), line
        assert words in line["details"], line
        await running.all_closed()


async def test_without_a_certificate_of_its_own_envoy_is_rejected_by_the_node(
    client: aiohttp.ClientSession, tmp_path: Path, certificates: Certificates
) -> None:
    async with AsyncExitStack() as stack:
        node, got = await stack.enter_async_context(engine("node", tls=certificates.server(ENGINE)))
        edited = original_dst(certificates, own=False)
        running = await stack.enter_async_context(gateway(client, tmp_path, edited, [node]))
        await running.reporter.report("node", node)
        await running.ready("node")
        answer = await running.ask("demo")
        assert (answer.status, got) == (503, []), answer


async def test_the_known_nodes_and_their_health_checks_are_reached_so_too(
    client: aiohttp.ClientSession, tmp_path: Path, certificates: Certificates
) -> None:
    async with AsyncExitStack() as stack:
        node, got = await stack.enter_async_context(engine("node", tls=certificates.server(ENGINE)))
        edited = original_dst(certificates)
        running = await stack.enter_async_context(gateway(client, tmp_path, edited, [node]))

        async def healthy() -> bool:
            return await running.envoy_stat("cluster.known-nodes.membership_healthy") == 1

        await running.fleet.until("the known node", healthy)
        answer = await running.ask("demo")
        assert (answer.status, answer.chosen, answer.engine, len(got)) == (200, None, "node", 1), answer
