"""Who we are to NATS servers, and whom we take for one."""

from pathlib import Path
from typing import Any

import pytest

from extproc.bus import natslogin
from extproc.bus.natslogin import SECRET_CHARS_MAX, faults
from extproc.bus.settings import NatsSettings
from tests.bus.busing import Ears, Told, nats_bus, reached
from tests.bus.natskeys import ACCOUNT, key, operated
from tests.certificates import Authority
from tests.natsserver import NatsServer, nats_server
from tests.waiting import until

USERS = 'authorization { users: [{ user: router, password: "right one" }] }'
OURS = Authority()
OTHERS = Authority()


async def _works(server: NatsServer, **settings: Any) -> None:
    async with reached(nats_bus(server.url, **settings)) as (one,):
        one.bus.publish("loads", b"in")
        await one.hears(b"in")


async def _fails(server: NatsServer, **settings: Any) -> str:
    """The reason that is logged."""
    told = Told()
    bus = nats_bus(server.url, told=told, **settings)
    await bus.open(lambda: None)
    await until(lambda: told.events("bus not reached"))
    await bus.close()
    assert "bus reached" not in told.lines
    return str(told.events("bus not reached")[0]["reason"])


def _faults(**settings: Any) -> list[str]:
    return [str(fault) for fault in faults(NatsSettings.model_validate({"servers": ["nats://127.0.0.1:1"]} | settings))]


def _file(folder: Path, content: str | bytes) -> str:
    path = folder / "secret"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


async def test_a_wrong_password_is_told_once_and_a_right_one_counts_without_a_restart(tmp_path: Path) -> None:
    settings = {"user": "router", "password_file": _file(tmp_path, "wrong one\n")}
    async with nats_server(USERS) as server:
        told = Told()
        bus = nats_bus(server.url, told=told, **settings)
        ears = Ears(bus)
        await bus.open(ears.connect)
        await until(lambda: server.log.count(b"authentication error") >= 2)
        assert [one["reason"] for one in told.events("bus not reached")] == [
            f"Authorization Violation (user router, password in {settings['password_file']})"
        ]
        _file(tmp_path, "right one\r\nanother line\n")
        await until(lambda: ears.reached)
        bus.publish("loads", b"in")
        await ears.hears(b"in")
        # A file that is gone when the server comes back is told too, and the bus is there when it is.
        (tmp_path / "secret").unlink()
        await server.kill()
        await server.start()
        await until(lambda: "password_file" in str(told.events("bus not reached")[-1]["reason"]))
        _file(tmp_path, "right one")
        await until(lambda: ears.reached == 2)
        await bus.close()
        assert b"right one" not in repr(told.events("bus not reached")).encode()


async def test_a_token_lets_in(tmp_path: Path) -> None:
    async with nats_server('authorization { token: "s3cret" }') as server:
        await _works(server, token_file=_file(tmp_path, "s3cret\n"))
        other = _file(tmp_path, "other")
        assert await _fails(server, token_file=other) == f"Authorization Violation (token in {other})"
        assert await _fails(server) == "Authorization Violation (no login)"


async def test_an_nkey_lets_in(tmp_path: Path) -> None:
    mine = key()
    async with nats_server(f"authorization {{ users: [{{ nkey: {mine.public} }}] }}") as server:
        await _works(server, nkey_file=_file(tmp_path, mine.seed + "\n"))
        other = _file(tmp_path, key().seed)
        assert await _fails(server, nkey_file=other) == f"Authorization Violation (nkey in {other})"


async def test_credentials_of_nsc_let_in(tmp_path: Path) -> None:
    ours = operated()
    async with nats_server(ours.config) as server:
        await _works(server, credentials_file=_file(tmp_path, ours.credentials))
        await _works(server, credentials_file=_file(tmp_path, ours.credentials.replace("\n", "\r\n")))
        other = _file(tmp_path, operated().credentials)
        assert await _fails(server, credentials_file=other) == f"Authorization Violation (credentials in {other})"


async def test_permissions_for_the_fleet_alone_are_enough(tmp_path: Path) -> None:
    allowed = 'permissions: { publish: "extproc.default.>", subscribe: "extproc.default.>" }'
    users = f'authorization {{ users: [{{ user: router, password: "right one", {allowed} }}] }}'
    settings = {"user": "router", "password_file": _file(tmp_path, "right one")}
    async with nats_server(users) as server:
        await _works(server, **settings)
        told = Told()
        bus = nats_bus(server.url, told=told, fleet="other", **settings)
        bus.listen("loads", lambda _, __: None)
        await bus.open(lambda: None)
        await until(lambda: told.events("bus complains"))
        assert "permissions violation" in told.events("bus complains")[0]["reason"]
        assert not bus.connected
        await bus.close()


def _tls(folder: Path, *names: str, verify: bool = False, by: Authority = OURS) -> str:
    pair = by.issue(*names).written(folder, "server")
    ca = OURS.written(folder, "of-server")
    files = f'cert_file: "{pair["certificate"]}", key_file: "{pair["key"]}", ca_file: "{ca}"'
    return f"tls {{ {files}, verify: {str(verify).lower()} }}"


async def test_tls_takes_the_server_of_our_authority_only(tmp_path: Path) -> None:
    ours, others = OURS.written(tmp_path), OTHERS.written(tmp_path, "others")
    async with nats_server(_tls(tmp_path, "127.0.0.1")) as server:
        await _works(server, tls={"ca": ours})
        assert "certificate verify failed" in await _fails(server, tls={"ca": others})
        assert "certificate verify failed" in await _fails(server)


async def test_tls_takes_a_name_other_than_the_host(tmp_path: Path) -> None:
    ours = OURS.written(tmp_path)
    async with nats_server(_tls(tmp_path, "nats.example")) as server:
        await _works(server, tls={"ca": ours, "server_name": "nats.example"})
        assert "certificate is not valid for" in await _fails(server, tls={"ca": ours})


async def test_tls_shows_our_certificate_and_reads_it_anew(tmp_path: Path) -> None:
    ours = OURS.written(tmp_path)
    mine = OTHERS.issue("router.example").written(tmp_path, "mine")
    async with nats_server(_tls(tmp_path, "127.0.0.1", verify=True)) as server:
        told = Told()
        bus = nats_bus(server.url, told=told, tls={"ca": ours} | mine)
        ears = Ears(bus)
        await bus.open(ears.connect)
        await until(lambda: told.events("bus not reached"))
        assert not ears.reached
        OURS.issue("router.example").written(tmp_path, "mine")
        await until(lambda: ears.reached)
        await bus.close()


async def test_no_password_goes_to_a_server_without_tls_where_tls_is_wanted(tmp_path: Path) -> None:
    settings = {"tls": {"ca": OURS.written(tmp_path)}, "user": "router"}
    async with nats_server(USERS) as server:
        told = await _fails(server, **settings, password_file=_file(tmp_path, "right one"))
        assert told == "the server has no TLS"
        assert b"authentication error" not in server.log


@pytest.mark.parametrize("setting", ["password_file", "token_file", "nkey_file", "credentials_file"])
def test_files_that_cannot_be_read_are_faults(tmp_path: Path, setting: str) -> None:
    user = {"user": "a"} if setting == "password_file" else {}
    for content, got in ((None, "No such file"), (b"", ""), (b"\xff\xfe\n", ""), (b"\nsecond line", "")):
        path = str(tmp_path / "none") if content is None else _file(tmp_path, content)
        told = _faults(**user, **{setting: path})
        assert len(told) == 1
        assert told[0].startswith(f"nats.{setting}: wanted a file ")
        assert got in told[0]
    assert "Is a directory" in _faults(**user, **{setting: str(tmp_path)})[0]


def test_secrets_are_bounded_and_never_repeated(tmp_path: Path) -> None:
    assert _faults(token_file=_file(tmp_path, "x" * SECRET_CHARS_MAX)) == []
    told = _faults(token_file=_file(tmp_path, "x" * (SECRET_CHARS_MAX + 1)))
    assert told[0].endswith(f"got {tmp_path}/secret: {SECRET_CHARS_MAX + 1}")


def test_keys_of_another_kind_are_faults(tmp_path: Path) -> None:
    good = key()
    assert _faults(nkey_file=_file(tmp_path, good.seed)) == []
    changed = good.seed[:20] + ("A" if good.seed[20] != "A" else "B") + good.seed[21:]
    for seed in (key(ACCOUNT).seed, good.public, good.seed[:-1], changed):
        told = _faults(nkey_file=_file(tmp_path, seed))
        assert told[0].startswith("nats.nkey_file: wanted a file with the seed")
        assert seed not in told[0]
    credentials = operated().credentials
    assert _faults(credentials_file=_file(tmp_path, credentials)) == []
    for broken in (credentials[:300], credentials.replace("SEED", "SED"), credentials.replace("JWT", "JW")):
        assert _faults(credentials_file=_file(tmp_path, broken))[0].startswith("nats.credentials_file: wanted a file")


def test_certificates_that_cannot_be_read_are_faults(tmp_path: Path) -> None:
    ours, mine = OURS.written(tmp_path), OURS.issue("a.example").written(tmp_path, "mine")
    other = OURS.issue("a.example").written(tmp_path, "other")
    assert _faults(tls={"ca": ours} | mine) == []
    assert _faults(tls={"ca": mine["key"]})[0].startswith("nats.tls.ca: wanted a PEM file of certificates")
    mixed = _faults(tls={"ca": ours, "certificate": mine["certificate"], "key": other["key"]})
    assert mixed[0].startswith("nats.tls.key: wanted the key of")


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natslogin, "find_spec", lambda _: None)
    assert _faults()[0].startswith("nats: wanted the extra `nats` (pip install '.[nats]' in a clone)")


async def test_a_missing_extra_is_logged_by_a_bus_that_is_opened_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natslogin, "find_spec", lambda _: None)
    async with nats_server() as server:
        assert "the extra `nats`" in await _fails(server)
