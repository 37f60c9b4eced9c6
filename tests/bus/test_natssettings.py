"""What can stand below `nats` in a configuration."""

from typing import Any

import pytest
from pydantic import ValidationError

from extproc import config
from extproc.agent import settings as agentsettings
from extproc.bus.settings import SERVERS_MAX, NatsSettings
from extproc.core.settings import faults_of

FAR = "nats://nats.example:4222"


def _faults(**settings: Any) -> list[str]:
    try:
        NatsSettings.model_validate(settings)
    except ValidationError as error:
        return [f"{fault.path}: {fault.wanted}" for fault in faults_of(error)]
    return []


def test_one_server_or_a_list() -> None:
    assert NatsSettings.model_validate({"servers": FAR}).servers == (FAR,)
    assert not _faults(servers=["nats://10.0.0.1", "tls://[::1]:4222", "nats://localhost:1"])
    assert not _faults(servers=["nats://a"] * SERVERS_MAX)
    assert _faults(servers=["nats://a"] * (SERVERS_MAX + 1))
    assert _faults(servers=[]) == [": one server at least"]


@pytest.mark.parametrize(
    "server",
    [
        *("nats.example:4222", "http://a:1", "nats://", "nats://u:p@a:1"),
        *("nats://a/x", "nats://a?x=1", "nats://a#x", "nats://[::1", "", "nats://a b", "nats://a:1\n"),
    ],
)
def test_other_addresses_are_faults(server: str) -> None:
    assert _faults(servers=[server])[0].endswith("secrets stand in files")


@pytest.mark.parametrize("port", ["0", "65536", "99999", "b", "-1"])
def test_ports_are_those_of_tcp(port: str) -> None:
    assert _faults(servers=[f"nats://a:{port}"]) == ["servers.0: a port from 1 to 65535, or none for 4222"]
    assert not _faults(servers=["nats://a:1", "nats://a:65535", "nats://a"])


@pytest.mark.parametrize("server", ["nats://u:s3cret@a:1", "tls://s3cret@a", "u:s3cret@a:1", "nats://u:s3 cr/s3cret@a"])
def test_what_stands_before_a_host_is_never_shown(server: str) -> None:
    """Of routers and agents, in a list or not, however long; nor the value of a key that there is not."""
    for servers in (server, [server], ["nats://b", server], ["nats://" + "b" * 60, server], {server: 1}):
        for parse in (config.parse, agentsettings.parse):
            found = parse(
                {"nats": {"servers": servers, "password": "s3cret", "token": "s3cret", "token_fil": "s3cret"}}
            )
            assert isinstance(found, list)
            assert {"nats.password", "nats.token", "nats.token_fil"} < {fault.path for fault in found}
            assert "s3c" not in " ".join(map(str, found))


@pytest.mark.parametrize("secret", [{"user": "a", "password_file": "f"}, {"token_file": "f"}])
def test_secrets_do_not_go_to_other_machines_in_plain_text(secret: dict[str, str]) -> None:
    wanted = f": tls beside a secret for {FAR}, which others could read on its way; or nats.insecure: true"
    assert _faults(servers=FAR, **secret) == [wanted]
    assert _faults(servers=["nats://127.0.0.1:4222", FAR], **secret) == [wanted]
    assert not _faults(servers=FAR, **secret, insecure=True)
    assert not _faults(servers=FAR, **secret, tls={"ca": "f"})
    assert not _faults(servers="tls://nats.example:4222", **secret)
    for near in ("nats://127.0.0.1", "nats://[::1]:4222", "nats://localhost:4222"):
        assert not _faults(servers=near, **secret)


def test_keys_only_sign_and_may_go_anywhere() -> None:
    assert not _faults(servers=FAR, nkey_file="f")
    assert not _faults(servers=FAR, credentials_file="f")


def test_one_way_to_log_in() -> None:
    assert _faults(servers="nats://localhost", nkey_file="f", token_file="g")[0].startswith(": one way to log in")
    assert _faults(servers="nats://localhost", user="a") == [": user and password_file, or neither"]
    assert _faults(servers="nats://localhost", password_file="a") == [": user and password_file, or neither"]
    assert _faults(servers="nats://localhost", tls={"ca": "a", "key": "b"}) == ["tls: certificate and key, or neither"]


def test_a_fleet_is_one_token_of_a_subject() -> None:
    assert not _faults(servers=FAR, fleet="eu-west_1")
    for fleet in ("", "a.b", "a b", "*", ">", "ä", "a\n", "a" * 65):
        wanted = "1 to 64 letters, digits, _ and -, as it is one part of the subjects' names"
        assert _faults(servers=FAR, fleet=fleet) == [f"fleet: {wanted}"]
