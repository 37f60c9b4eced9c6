"""Who may connect, as far as the configuration says it; and files that it names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization

from extproc import cli
from extproc.config import Config, Listen, parse, read
from extproc.peers.ports import PORTS, faults_of
from extproc.peers.reloaded import FILE_BYTES_MAX
from extproc.peers.tlssettings import PortTls
from extproc.peers.tokens import TOKEN_CHARS_MAX, TOKEN_CHARS_MIN, TOKENS_MAX, TokenSet, tokens_of
from tests.certificates import Authority
from tests.parsing import faults, whole, written

OURS = Authority()
SERVER = OURS.issue("serve.example")
TLS = {"certificate": "a.crt", "key": "a.key"}
FAR = ["0.0.0.0:9002", "[::]:9002", "10.0.0.1:9002", "serve.example:9002"]
NEAR = ["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/x"]


def listened(**settings: Any) -> Listen:
    return whole(parse({"listen": settings})).listen


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("address", FAR)
def test_plain_text_for_other_machines_must_be_asked_for(port: str, address: str) -> None:
    assert faults(parse({"listen": {port: address}})) == [
        (
            f"listen.{port}: wanted an address on loopback, a unix socket, listen.tls.{port}, "
            f"or listen.insecure: true, got {address!r}"
        )
    ]
    listened(**{port: address, "insecure": True})
    listened(**{port: address, "tls": {port: TLS}})
    elsewhere = next(one for one in PORTS if one != port)
    assert faults(parse({"listen": {port: address, "tls": {elsewhere: TLS}}}))


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("address", NEAR)
def test_plain_text_for_this_machine_needs_no_word(port: str, address: str) -> None:
    listened(**{port: address})


def test_the_admin_pages_are_as_they_are() -> None:
    listened(admin="0.0.0.0:9090")


@pytest.mark.parametrize(
    ("tls", "fault"),
    [
        ({}, "certificate: wanted a value, got nothing"),
        ({"certificate": "a"}, "key: wanted a value, got nothing"),
        (TLS | {"ca": "b"}, "ca: wanted a known key, got 'b'"),
        (TLS | {"client_ca": 5}, "client_ca: wanted a path, got 5"),
        (TLS | {"client_ca": "c", "peer_names": "x"}, "peer_names: wanted a list, got 'x'"),
        *(
            (
                TLS | {"client_ca": "c", "peer_names": ["ok", name]},
                (
                    "peer_names.1: wanted a DNS name as envoy.example or *.example, or a URI as "
                    f"spiffe://cluster.local/ns/a/sa/b, got {name!r}"
                ),
            )
            for name in ("", "*", "*.", "a.*.b", "a*.b", "**.b", "a b", "é.b", "a\n")
        ),
    ],
)
def test_a_fault_in_tls_names_its_path(tls: dict[str, Any], fault: str) -> None:
    # A port that is far says nothing of its own while its TLS has faults.
    told = faults(parse({"listen": {"agents": "0.0.0.0:1", "tls": {"agents": tls}}}))
    assert f"listen.tls.agents.{fault}" in told
    assert all(line.startswith("listen.tls.agents.") for line in told)


def test_names_without_an_authority_are_a_fault() -> None:
    (told,) = faults(parse({"listen": {"tls": {"agents": TLS | {"peer_names": ["a"]}}}}))
    assert told.startswith("listen.tls.agents: wanted client_ca beside peer_names")


def test_paths_start_at_the_files_folder(tmp_path: Path) -> None:
    text = "listen: {tls: {extproc: {certificate: a.crt, key: /b/key, client_ca: c}}, agent_tokens: t}"
    listen = whole(read(written(tmp_path, text))).listen
    assert listen.tls.extproc == PortTls(
        certificate=tmp_path / "a.crt", key=Path("/b/key"), client_ca=tmp_path / "c", peer_names=()
    )
    assert listen.agent_tokens == tmp_path / "t"


def instead_a_folder(folder: Path) -> None:
    (folder / "server.key").unlink()
    (folder / "server.key").mkdir()


def encrypted(folder: Path) -> None:
    key = serialization.load_pem_private_key(SERVER.key, None)
    made = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    (folder / "server.key").write_bytes(made)


KEY = "key: wanted a PEM file of an unencrypted private key, got {folder}/server.key: "
CERTIFICATE = "certificate: wanted a PEM file of certificates, got {folder}/server.crt: "
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no certificate": (lambda folder: (folder / "server.crt").unlink(), CERTIFICATE + "No such file or directory"),
    "a folder": (
        instead_a_folder,
        KEY + "Is a directory",
    ),
    "not PEM": (
        lambda folder: (folder / "server.crt").write_bytes(b"\x30\x82\xff"),
        CERTIFICATE + "no certificate that can be read",
    ),
    "a key for a certificate": (
        lambda folder: (folder / "server.crt").write_bytes(SERVER.key),
        CERTIFICATE + "no certificate that can be read",
    ),
    "a key with a password": (encrypted, KEY + "no such key that can be read"),
    "too long": (
        lambda folder: (folder / "server.crt").write_bytes(b"\n" * (FILE_BYTES_MAX + 1)),
        CERTIFICATE + f"more than {FILE_BYTES_MAX} bytes",
    ),
    "the key of another": (
        lambda folder: (folder / "server.key").write_bytes(OURS.issue("b").key),
        "key: wanted the key of {folder}/server.crt, got {folder}/server.key: the key of another certificate",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_cannot_be_used_are_faults_before_anything_starts(tmp_path: Path, name: str) -> None:
    listen = listened(tls={"scaler": SERVER.written(tmp_path, "server")})
    assert faults_of(listen) == []
    spoil, told = FILES[name]
    spoil(tmp_path)
    assert [str(fault) for fault in faults_of(listen)] == [f"listen.tls.scaler.{told.format(folder=tmp_path)}"]


TOKEN = "a" * TOKEN_CHARS_MIN
WANTED = "a file with a token of 16 to 512 letters, digits or ._~+/=- on each line"


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("", "0"),
        ("# none\n\n", "0"),
        ("\n".join(f"{TOKEN}{n}" for n in range(TOKENS_MAX + 1)), "257"),
        (f"{TOKEN}\n{TOKEN[1:]}\n", "something else on line 2"),
        ("a" * (TOKEN_CHARS_MAX + 1), "something else on line 1"),
        (f"{TOKEN} {TOKEN}", "something else on line 1"),
        (f"name: {TOKEN}", "something else on line 1"),
        (b"\xff" * 20, "something else on line 1"),
    ],
)
def test_a_file_of_tokens_is_refused_without_a_word_of_its_content(tmp_path: Path, text: str | bytes, got: str) -> None:
    listen = listened(agent_tokens=str(written(tmp_path, text, "tokens")))
    (fault,) = faults_of(listen)
    wanted = WANTED if "line" in got else "1 to 256 tokens"
    assert str(fault) == f"listen.agent_tokens: wanted {wanted}, got {tmp_path}/tokens: {got}"


def test_as_many_and_as_long_tokens_as_may_be(tmp_path: Path) -> None:
    tokens = [f"{n:0{TOKEN_CHARS_MAX}}" for n in range(TOKENS_MAX)]
    path = written(tmp_path, "\n".join(tokens), "tokens")
    assert tokens_of(path, "x") == tuple(tokens)
    found = TokenSet(tokens)
    assert all(token in found for token in tokens)
    assert "0" * (TOKEN_CHARS_MAX - 1) not in found
    assert "\udcff" not in found


def test_the_example_of_the_page_is_a_configuration(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "config.md").read_text()
    example = page.partition("## Who may connect")[2].partition("```yaml\n")[2].partition("```")[0]
    config = whole(read(written(tmp_path, example)))
    assert isinstance(config, Config)
    assert config.listen.tls.extproc is not None
    assert config.listen.tls.agents is not None
    assert config.listen.agent_tokens == tmp_path / "agent-tokens"


def test_check_tries_the_files_of_ports(tmp_path: Path) -> None:
    path = tmp_path / "extproc.yaml"
    path.write_text("listen: {tls: {agents: {certificate: nowhere.pem, key: nowhere.key}}}")
    found = CliRunner().invoke(cli.main, ["check", str(path)])
    assert found.exit_code == 1
    assert [line.partition(":")[0] for line in found.stderr.splitlines()] == [
        "listen.tls.agents.certificate",
        "listen.tls.agents.key",
    ]
