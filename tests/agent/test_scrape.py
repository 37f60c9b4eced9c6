import asyncio

import pytest

from extproc.agent.scrape import Answer, EnginePages, Unanswered
from tests.agent import engine
from tests.agent.engine import Handler, vllm_engine


async def get(url: str, path: str = "/metrics", within_s: float = 5.0, bytes_max: int = 100_000) -> Answer | Unanswered:
    async with EnginePages(url, bytes_max) as pages:
        return await pages.get(path, asyncio.get_running_loop().time() + within_s)


async def test_a_page_is_its_status_and_text() -> None:
    async with vllm_engine() as server:
        server.pages |= {"/metrics": "é", "/health": 503}
        assert await get(server.url) == Answer(200, "é")
        assert await get(server.url, "/health") == Answer(503, "")
        assert await get(server.url + "/base", "/metrics") == Answer(404, "")


@pytest.mark.parametrize("handler", [engine.never, engine.drip])
async def test_a_slow_page_is_given_up(handler: Handler) -> None:
    async with vllm_engine() as server:
        server.pages["/metrics"] = handler
        assert await get(server.url, within_s=0.2) == Unanswered("/metrics does not answer in time", late=True)


async def test_an_endless_page_is_given_up_at_the_limit() -> None:
    async with vllm_engine() as server:
        server.pages["/metrics"] = engine.endless
        assert await get(server.url) == Unanswered("/metrics has over 100000 bytes")


async def test_a_page_at_the_limit_is_read() -> None:
    async with vllm_engine() as server:
        server.pages["/metrics"] = "x" * 1000
        assert await get(server.url, bytes_max=1000) == Answer(200, "x" * 1000)
        assert isinstance(await get(server.url, bytes_max=999), Unanswered)


async def test_a_page_that_breaks_off_is_no_answer() -> None:
    async with vllm_engine() as server:
        server.pages["/metrics"] = engine.cut
        assert await get(server.url) == Unanswered("/metrics is no HTTP answer")


async def test_a_compressed_page_is_not_unpacked() -> None:
    async with vllm_engine() as server:
        server.pages["/metrics"] = engine.bomb
        answer = await get(server.url)
        assert isinstance(answer, Answer)
        assert len(answer.text) < 100_000


async def test_a_redirect_is_not_followed() -> None:
    async with vllm_engine() as server:
        server.pages["/metrics"] = engine.elsewhere
        answer = await get(server.url)
        assert isinstance(answer, Answer)
        assert answer.status == 302
        assert server.asked == ["/metrics"]


async def test_what_is_no_http_is_no_answer() -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x00\xffSSH-2.0 garbage\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(garbage, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await get(f"http://127.0.0.1:{port}") == Unanswered("/metrics is no HTTP answer")


async def test_a_port_where_nobody_listens_is_refused() -> None:
    async with vllm_engine() as server:
        await server.kill()
        assert await get(server.url) == Unanswered("the engine cannot be reached", refused=True)
        await server.start()


async def test_a_name_without_an_address_is_not_reached() -> None:
    assert await get("http://nowhere.invalid:80") == Unanswered("the engine's host has no address")
