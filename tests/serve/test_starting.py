"""Where it listens, and what keeps it from starting."""

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from extproc.children import Child
from tests.serve.served import ANY_PORTS, Serve, asked, refusal, reported


async def test_every_server_can_listen_at_a_unix_socket(serve: Serve, tmp_path: Path) -> None:
    listen = {name: f"unix:{tmp_path}/{name}.sock" for name in ANY_PORTS}
    served = await serve(listen=listen)
    assert {name: served.at[name] for name in listen} == listen
    await reported(served)
    assert (await served.get("/readyz"))[0] == 200
    await asked(served.stream())
    await served.child.kill()
    again = await serve(listen=listen)
    assert (await again.get("/readyz"))[0] == 503, "the sockets that the killed process left were replaced"


@pytest.mark.parametrize("server", sorted(ANY_PORTS))
async def test_a_taken_port_is_one_clear_line_and_status_1(start: Callable[..., Awaitable[Child]], server: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        child = await start({"listen": ANY_PORTS | {server: at}})
        assert await refusal(child) == (
            f"listen: wanted an address that can be listened at, got {at}: Address already in use\n"
        )


@pytest.mark.parametrize("server", sorted(ANY_PORTS))
async def test_nobody_can_share_a_port_of_ours(serve: Serve, server: str) -> None:
    host, port = (await serve()).at[server].split(":")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="Address already in use"):
            other.bind((host, int(port)))


@pytest.mark.parametrize("server", sorted(ANY_PORTS))
async def test_a_unix_socket_of_another_serve_and_a_file_are_left_alone(
    serve: Serve, start: Callable[..., Awaitable[Child]], tmp_path: Path, server: str
) -> None:
    path = tmp_path / "a.sock"
    served = await serve(listen=ANY_PORTS | {"extproc": f"unix:{path}"})
    child = await start({"listen": ANY_PORTS | {server: f"unix:{path}"}})
    assert f"got unix:{path}: Address already in use\n" in await refusal(child)
    await asked(served.stream())
    file = tmp_path / "precious"
    file.write_text("kept")
    child = await start({"listen": ANY_PORTS | {server: f"unix:{file}"}})
    assert f"got unix:{file}: not a socket\n" in await refusal(child)
    assert file.read_text() == "kept"


async def test_a_broken_tokenizer_keeps_it_from_starting(
    start: Callable[..., Awaitable[Child]], tmp_path: Path
) -> None:
    (tmp_path / "t.json").write_text("{}")
    child = await start({"tokens": {"models": {"llama-*": {"tokenizer": "t.json"}}}})
    said = await refusal(child)
    assert said.startswith(f"tokens.models.llama-*.tokenizer: wanted a tokenizer.json, got {tmp_path}/t.json: ")
    assert said.count("\n") == 1


async def test_a_faulty_configuration_keeps_it_from_starting(start: Callable[..., Awaitable[Child]]) -> None:
    assert await refusal(await start({"drain_s": -1})) == "drain_s: wanted greater than or equal to 0, got -1\n"


async def test_a_journal_that_cannot_be_written_keeps_it_from_starting(
    start: Callable[..., Awaitable[Child]], tmp_path: Path
) -> None:
    child = await start({"journal": {"path": str(tmp_path / "nowhere" / "serve.journal")}})
    assert "journal.path: wanted a file that can be written" in await refusal(child)
