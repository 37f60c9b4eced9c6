"""The connection below a NATS client, towards servers that send without end, in plain text and over TLS."""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import pytest

from extproc.bus.natstransport import READ_BYTES_MAX, NatsTransport
from tests.bus.busing import nats_bus, reached
from tests.certificates import Authority
from tests.natsserver import nats_server
from tests.waiting import until

OURS = Authority()
BUFFER_BYTES = 32 * 1024
"""As the client has it."""
SYSTEM_BYTES_MAX = 24 * 1024 * 1024
"""What the system may hold on the way, of both sides' sockets."""


@dataclass
class Sender:
    sent_bytes: int = 0


@asynccontextmanager
async def _sending(folder: Path, *, is_tls: bool) -> AsyncIterator[tuple[Sender, NatsTransport]]:
    """A server that sends as long as anybody takes it, and one who is connected."""
    sender = Sender()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = OURS.issue("127.0.0.1").written(folder, "server")
    context.load_cert_chain(pair["certificate"], pair["key"])

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            if is_tls:
                await writer.start_tls(context)
            while True:
                writer.write(bytes(65536))
                await writer.drain()
                sender.sent_bytes += 65536
        writer.transport.abort()

    server = await asyncio.start_server(send, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = NatsTransport(tls_only=is_tls)
    try:
        await transport.connect(urlparse(f"nats://127.0.0.1:{port}"), BUFFER_BYTES, 5)
        if is_tls:
            trusted = ssl.create_default_context(cadata=OURS.certificate.decode())
            await transport.connect_tls("127.0.0.1", trusted, BUFFER_BYTES, 5)
        yield sender, transport
    finally:
        transport.abort()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("is_tls", [False, True])
async def test_what_nobody_reads_stays_with_the_server(tmp_path: Path, is_tls: bool) -> None:
    async with _sending(tmp_path, is_tls=is_tls) as (sender, transport):
        seen = -1
        while seen != sender.sent_bytes:  # until it is held up for a while
            seen = sender.sent_bytes
            assert seen < SYSTEM_BYTES_MAX
            await asyncio.sleep(0.2)
        assert len(await transport.read(10**6)) == READ_BYTES_MAX
        taken = READ_BYTES_MAX
        while taken < 2 * SYSTEM_BYTES_MAX:  # and goes on when it is read
            taken += len(await transport.read(10**6))
        assert sender.sent_bytes > SYSTEM_BYTES_MAX


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_parser_that_has_much_to_do_leaves_the_loop_to_others(tmp_path: Path, is_tls: bool) -> None:
    async with _sending(tmp_path, is_tls=is_tls) as (_, transport):
        first_s, worked_s = time.monotonic(), 0.0
        for _ in range(100):
            assert await transport.read(BUFFER_BYTES)
            began_s = time.monotonic()
            while time.monotonic() < began_s + 0.001:
                pass
            worked_s += time.monotonic() - began_s
        assert time.monotonic() - first_s > 2 * worked_s


async def test_the_end_over_tls_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever ends it."""
    pair, ours = OURS.issue("127.0.0.1").written(tmp_path, "server"), OURS.written(tmp_path)
    config = f'tls {{ cert_file: "{pair["certificate"]}", key_file: "{pair["key"]}" }}'
    with caplog.at_level(logging.WARNING):
        async with nats_server(config) as server, reached(nats_bus(server.url, tls={"ca": ours})) as (one,):
            await server.stop()
            await until(lambda: not one.bus.connected)
            await server.start()
            await until(lambda: one.reached == 2)
            await one.bus.close()
    assert not caplog.messages
