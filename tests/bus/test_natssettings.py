"""What can stand below `nats` in a configuration."""

from typing import Any

import pytest
from pydantic import ValidationError

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
        *("nats.example:4222", "http://a:1", "nats://", "nats://a:0", "nats://a:99999", "nats://a:b", "nats://u:p@a:1"),
        *("nats://a/x", "nats://a?x=1", "nats://a#x", "nats://[::1", ""),
    ],
)
def test_other_addresses_are_faults(server: str) -> None:
    assert _faults(servers=[server])[0].endswith("secrets stand in files")


@pytest.mark.parametrize("secret", [{"user": "a", "password_file": "f"}, {"token_file": "f"}])
def test_secrets_do_not_go_to_other_machines_in_plain_text(secret: dict[str, str]) -> None:
    wanted = f": tls beside a secret for {FAR}, which others could read on its way; or insecure: true"
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
        assert _faults(servers=FAR, fleet=fleet)
