"""Certificates and tokens that change while a port is open; and which tokens do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extproc.peers.reloaded import FILE_BYTES_MAX, LOOK_INTERVAL_S
from tests.certificates import Authority, Pair, channel
from tests.serve.secured import Port, called, port

ONE, OTHER = "one-0123456789abcdef", "other-0123456789abcd"


def errors(at: Port, where: str) -> float:
    return at.sample("extproc_errors_total", where=where)


async def test_new_connections_get_the_new_certificate_and_old_streams_go_on(tmp_path: Path) -> None:
    before, after = Authority(), Authority()
    tls = before.issue("127.0.0.1").written(tmp_path, "server") | {"client_ca": before.written(tmp_path)}
    async with port({"tls": {"agents": tls}}) as at, channel(at.address, before, before.issue("a")) as old:
        stream: Any = old.stream_stream("/t.T/stream_stream")()
        await stream.write(b"1")
        assert await stream.read() == b"1"
        after.issue("127.0.0.1").written(tmp_path, "server")
        after.written(tmp_path)
        assert await called(channel(at.address, before, before.issue("a"))) == "answer", "not looked at within a second"
        at.now_s += LOOK_INTERVAL_S
        assert await called(channel(at.address, after, after.issue("a"))) == "answer"
        assert await called(channel(at.address, before, before.issue("a"))) == "UNAVAILABLE"
        assert await called(channel(at.address, after, before.issue("a"))) == "UNAVAILABLE", "the old authority"
        await stream.write(b"2")
        assert await stream.read() == b"2"
        assert [entry["files"] for entry in at.events("changed files are in use")] == ["tls"]
        assert errors(at, "tls") == 0


BROKEN: dict[str, Callable[[Path, Pair], object]] = {
    "not PEM": lambda folder, _: (folder / "server.crt").write_text("nonsense"),
    "cut off": lambda folder, pair: (folder / "server.crt").write_bytes(pair.certificate[:200]),
    "gone": lambda folder, _: (folder / "server.key").unlink(),
    "the key of another": lambda folder, pair: (folder / "server.key").write_bytes(pair.key),
    "no authority": lambda folder, _: (folder / "ca.crt").write_bytes(b""),
    "too long": lambda folder, _: (folder / "ca.crt").write_bytes(b"\n" * (FILE_BYTES_MAX + 1)),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_broken_new_files_are_told_once_and_the_old_ones_go_on_serving(tmp_path: Path, broken: str) -> None:
    ours = Authority()
    tls = ours.issue("127.0.0.1").written(tmp_path, "server") | {"client_ca": ours.written(tmp_path)}
    async with port({"tls": {"agents": tls}}) as at:
        BROKEN[broken](tmp_path, ours.issue("127.0.0.1"))
        for _ in range(3):
            at.now_s += LOOK_INTERVAL_S
            assert await called(channel(at.address, ours, ours.issue("a"))) == "answer"
        (entry,) = at.events("changed files cannot be used; what they held before goes on serving")
        assert len(entry["faults"]) == 1
        assert entry["faults"][0].startswith("listen.tls.agents.")
        assert str(tmp_path) in entry["faults"][0]
        assert errors(at, "tls") == 1
        again = Authority()
        again.issue("127.0.0.1").written(tmp_path, "server")
        again.written(tmp_path)
        at.now_s += LOOK_INTERVAL_S
        assert await called(channel(at.address, again, again.issue("a"))) == "answer"


def listen(folder: Path, *lines: str) -> dict[str, Any]:
    (folder / "tokens").write_text("".join(f"{line}\n" for line in lines))
    return {"agent_tokens": str(folder / "tokens")}


async def asked(at: Port, *metadata: tuple[str, str]) -> str:
    return await called(channel(at.address, None), "stream_stream", *metadata)


def bearer(token: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {token}")


@pytest.mark.parametrize(
    ("metadata", "outcome"),
    [
        ([bearer(ONE)], "answer"),
        ([bearer(OTHER)], "answer"),
        ([("authorization", f"bearer {ONE}")], "answer"),
        ([], "UNAUTHENTICATED"),
        ([bearer("wrong-0123456789abcdef")], "UNAUTHENTICATED"),
        ([bearer("")], "UNAUTHENTICATED"),
        ([bearer(ONE[:-1])], "UNAUTHENTICATED"),
        ([bearer(ONE + "x")], "UNAUTHENTICATED"),
        ([bearer("x" * 7000)], "UNAUTHENTICATED"),
        ([("authorization", ONE)], "UNAUTHENTICATED"),
        ([("authorization", f"Basic {ONE}")], "UNAUTHENTICATED"),
        ([bearer(ONE), bearer(ONE)], "UNAUTHENTICATED"),
        ([bearer("# a comment, as long as a token")], "UNAUTHENTICATED"),
    ],
)
async def test_an_agent_shows_one_of_the_tokens(tmp_path: Path, metadata: list[tuple[str, str]], outcome: str) -> None:
    async with port(listen(tmp_path, "# a comment, as long as a token", "", f"  {ONE} ", OTHER)) as at:
        assert await asked(at, *metadata) == outcome
        refusals = int(outcome != "answer")
        assert at.sample("extproc_peers_refused_total", port="agents", reason="token") == refusals
        assert len(at.events("peer refused")) == refusals
        assert ONE not in str(at.logged.entries)


async def test_only_agents_are_asked_for_tokens(tmp_path: Path) -> None:
    async with port(listen(tmp_path, ONE), "extproc") as at:
        assert await asked(at) == "answer"


async def test_tokens_can_be_changed_one_after_the_other(tmp_path: Path) -> None:
    async with port(listen(tmp_path, ONE)) as at:
        listen(tmp_path, ONE, OTHER)
        assert await asked(at, bearer(OTHER)) == "UNAUTHENTICATED", "not looked at within a second"
        at.now_s += LOOK_INTERVAL_S
        assert [await asked(at, bearer(token)) for token in (ONE, OTHER)] == ["answer", "answer"]
        listen(tmp_path, OTHER)
        at.now_s += LOOK_INTERVAL_S
        assert [await asked(at, bearer(token)) for token in (ONE, OTHER)] == ["UNAUTHENTICATED", "answer"]
        listen(tmp_path, "short")
        for _ in range(2):
            at.now_s += LOOK_INTERVAL_S
            assert [await asked(at, bearer(token)) for token in (OTHER, "short")] == ["answer", "UNAUTHENTICATED"]
        assert errors(at, "agent_tokens") == 1


async def test_a_certificate_and_a_token_are_both_needed_where_both_are_asked_for(tmp_path: Path) -> None:
    ours = Authority()
    tls = ours.issue("127.0.0.1").written(tmp_path, "server") | {"client_ca": ours.written(tmp_path)}
    settings = {"tls": {"agents": tls | {"peer_names": ["a.example"]}}} | listen(tmp_path, ONE)
    async with port(settings) as at:
        good, bad = ours.issue("a.example"), ours.issue("b.example")
        assert await called(channel(at.address, ours, good), "unary_unary", bearer(ONE)) == "answer"
        assert await called(channel(at.address, ours, good)) == "UNAUTHENTICATED"
        assert await called(channel(at.address, ours, bad), "unary_unary", bearer(ONE)) == "PERMISSION_DENIED"
