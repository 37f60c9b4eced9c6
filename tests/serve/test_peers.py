"""Who may call a port: by the certificate that its TLS has checked, over real gRPC."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from extproc.peers.gate import LOG_INTERVAL_S, SHOWN_CHARS_MAX, allowed, names_of
from tests.certificates import Authority, Pair, channel
from tests.serve.secured import KINDS, Port, called, port

REFUSED = "extproc_peers_refused_total"
OURS, STRANGER = Authority(), Authority()
SERVER = OURS.issue("127.0.0.1")
SPIFFE = "spiffe://cluster.local/ns/x/sa/envoy"


def mutual(folder: Path, *names: str) -> dict[str, Any]:
    tls = SERVER.written(folder, "server") | {"client_ca": OURS.written(folder), "peer_names": list(names)}
    return {"tls": {"agents": tls}}


def refused(at: Port, reason: str = "name") -> float:
    return at.sample(REFUSED, port="agents", reason=reason)


@pytest.mark.parametrize("kind", KINDS)
async def test_names_are_checked_for_every_kind_of_rpc(tmp_path: Path, kind: str) -> None:
    async with port(mutual(tmp_path, "envoy.example")) as at:
        good, bad = OURS.issue("envoy.example"), OURS.issue("other.example")
        assert await called(channel(at.address, OURS, good), kind) == "answer"
        assert refused(at) == 0
        assert await called(channel(at.address, OURS, bad), kind) == "PERMISSION_DENIED"
        assert refused(at) == 1


WRONG: dict[str, Callable[[str], Any]] = {
    "no certificate": lambda at: channel(at, OURS),
    "a stranger's certificate": lambda at: channel(at, OURS, STRANGER.issue("envoy.example")),
    "an expired certificate": lambda at: channel(at, OURS, OURS.issue("envoy.example", expired=True)),
    "plain text": lambda at: channel(at, None),
    "a server that is not the client's": lambda at: channel(at, STRANGER, OURS.issue("envoy.example")),
}


@pytest.mark.parametrize("names", [(), ("envoy.example",)])
@pytest.mark.parametrize("wrong", WRONG)
async def test_tls_itself_turns_them_away(tmp_path: Path, wrong: str, names: tuple[str, ...]) -> None:
    async with port(mutual(tmp_path, *names)) as at:
        assert await called(WRONG[wrong](at.address)) == "UNAVAILABLE"
        assert await called(channel(at.address, OURS, OURS.issue("envoy.example"))) == "answer"
        assert refused(at) == 0


async def test_without_peer_names_every_certificate_of_the_authority_will_do(tmp_path: Path) -> None:
    async with port(mutual(tmp_path)) as at:
        assert await called(channel(at.address, OURS, OURS.issue("anybody.example"))) == "answer"


async def test_without_client_ca_anybody_may_call_and_sees_who_we_are(tmp_path: Path) -> None:
    async with port({"tls": {"agents": SERVER.written(tmp_path, "server")}}) as at:
        assert await called(channel(at.address, OURS)) == "answer"
        assert await called(channel(at.address, STRANGER)) == "UNAVAILABLE"
        assert await called(channel(at.address, None)) == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("version", "outcome"),
    [(ssl.TLSVersion.TLSv1_1, "none"), (ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
async def test_old_versions_of_tls_are_not_spoken(tmp_path: Path, version: ssl.TLSVersion, outcome: str) -> None:
    client = ssl.create_default_context(cadata=OURS.certificate.decode())
    client.set_ciphers("ALL:@SECLEVEL=0")  # else our own side would refuse the old one
    client.set_alpn_protocols(["h2"])
    client.minimum_version = client.maximum_version = version
    async with port({"tls": {"agents": SERVER.written(tmp_path, "server")}}) as at:
        host, _, number = at.address.rpartition(":")
        try:
            _, writer = await asyncio.open_connection(host, int(number), ssl=client)
        except (ssl.SSLError, ConnectionResetError):
            spoken = "none"
        else:
            spoken = writer.get_extra_info("ssl_object").version()
            writer.close()
        assert spoken == outcome


URI = x509.UniformResourceIdentifier(SPIFFE)


@pytest.mark.parametrize(
    ("shown", "names", "outcome"),
    [
        (OURS.issue("Envoy.Example"), ["envoy.EXAMPLE"], "answer"),
        (OURS.issue("a.example", "envoy.example"), ["envoy.example"], "answer"),
        (OURS.issue("one.envoy.example"), ["*.envoy.example"], "answer"),
        (OURS.issue("a.one.envoy.example"), ["*.envoy.example"], "PERMISSION_DENIED"),
        (OURS.issue("envoy.example"), ["*.envoy.example"], "PERMISSION_DENIED"),
        (OURS.issue("envoy.example.evil"), ["envoy.example"], "PERMISSION_DENIED"),
        (OURS.issue_odd("", URI), [SPIFFE], "answer"),
        (OURS.issue_odd("", URI), [SPIFFE + "x"], "PERMISSION_DENIED"),
        (OURS.issue_odd("", URI), [SPIFFE.upper()], "PERMISSION_DENIED"),
        (OURS.issue_odd("envoy.example"), ["envoy.example"], "answer"),
        # A common name counts only where there is nothing better, and is no URI.
        (OURS.issue_odd("envoy.example", URI), ["envoy.example"], "PERMISSION_DENIED"),
        (OURS.issue_odd("envoy.example", x509.DNSName("b.example")), ["envoy.example"], "PERMISSION_DENIED"),
        (OURS.issue_odd("envoy.example", x509.RFC822Name("a@b.example")), ["envoy.example"], "PERMISSION_DENIED"),
        (OURS.issue_odd(SPIFFE), [SPIFFE], "PERMISSION_DENIED"),
        # An authority that signs any DNS name must not make services of them, nor mail addresses names.
        (OURS.issue_odd("", x509.DNSName(SPIFFE)), [SPIFFE], "PERMISSION_DENIED"),
        (OURS.issue_odd("", x509.RFC822Name("envoy.example")), ["envoy.example"], "PERMISSION_DENIED"),
        (OURS.issue_odd("x\nevil"), ["x"], "PERMISSION_DENIED"),
    ],
)
async def test_which_names_of_a_certificate_count(tmp_path: Path, shown: Pair, names: list[str], outcome: str) -> None:
    async with port(mutual(tmp_path, *names)) as at:
        assert await called(channel(at.address, OURS, shown)) == outcome


async def test_refusals_are_logged_now_and_then_escaped_and_bounded(tmp_path: Path) -> None:
    async with port(mutual(tmp_path, "envoy.example")) as at:
        evil = OURS.issue_odd("x\n\x1b[31m\u202eévil" + "y" * 40)
        for _ in range(5):
            assert await called(channel(at.address, OURS, evil)) == "PERMISSION_DENIED"
        (entry,) = at.events("peer refused")
        assert entry["names"].isascii()
        assert entry["names"].isprintable()
        assert "vil" in entry["names"]
        assert (entry["port"], entry["reason"], entry["left_out"]) == ("agents", "name", 0)
        assert entry["peer"].startswith("ipv4:127.0.0.1:")
        at.now_s += LOG_INTERVAL_S
        assert await called(channel(at.address, OURS, OURS.issue(*(f"{'z' * 60}{n}.example" for n in range(40))))) == (
            "PERMISSION_DENIED"
        )
        _, entry = at.events("peer refused")
        assert len(entry["names"]) == SHOWN_CHARS_MAX
        assert entry["left_out"] == 4
        assert refused(at) == 6


async def test_a_method_that_does_not_exist_is_no_handler(tmp_path: Path) -> None:
    async with port(mutual(tmp_path, "envoy.example")) as at:
        assert await called(channel(at.address, OURS, OURS.issue("other.example")), "unary_nothing") == "UNIMPLEMENTED"


def test_names_of_peers_without_certificate_are_none() -> None:
    assert names_of({}) == set()
    uris = [b"urn:evil.envoy.example", b"router.example", b"spiffe://cluster.local/ns/a"]
    assert names_of({"peer_uri": uris}) == {"spiffe://cluster.local/ns/a"}, "others could pass for names of hosts"
    assert names_of({"x509_common_name": [b""]}) == set()
    assert not allowed("", frozenset({"*."}))
    assert not allowed(".example", frozenset({"*.example"}))
