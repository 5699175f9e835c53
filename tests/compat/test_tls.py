"""TLS, with contexts of ssl, by all combinations of clients and servers."""

from __future__ import annotations

import asyncio
import ssl
import threading
from typing import Any

import pytest

from interop.certificates import Certificates

pytest.importorskip("websockets", minversion="17")


async def echo(ws: Any) -> None:
    async for message in ws:
        await ws.send(message)


def test_asyncio(client: Any, server: Any, certificates: Certificates) -> None:
    async def main() -> None:
        async with server.asyncio.server.serve(echo, "127.0.0.1", 0, ssl=certificates.server_context()) as running:
            port = running.sockets[0].getsockname()[1]
            for address, options in (
                (f"wss://localhost:{port}", {}),
                ("wss://example.invalid", {"host": "127.0.0.1", "port": port, "server_hostname": "localhost"}),
                (f"wss://localhost:{port}", {"ssl_handshake_timeout": 5, "ssl_shutdown_timeout": 5}),
            ):
                async with client.asyncio.client.connect(address, ssl=certificates.client_context(), **options) as ws:
                    await ws.send("x" * 100_000)
                    assert await ws.recv() == "x" * 100_000
                    assert ws.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
                    assert ws.transport.get_extra_info("ssl_object").selected_alpn_protocol() is None
            with pytest.raises(ssl.SSLCertVerificationError):
                await client.asyncio.client.connect(f"wss://localhost:{port}")
            with pytest.raises(ssl.SSLCertVerificationError):
                await client.asyncio.client.connect(
                    f"wss://localhost:{port}", ssl=certificates.client_context(), server_hostname="example.com"
                )

    asyncio.run(asyncio.wait_for(main(), 20))


def test_threads(client: Any, server: Any, certificates: Certificates) -> None:
    def handler(ws: Any) -> None:
        for message in ws:
            ws.send(message)

    context = certificates.client_context()
    if repr(client) == "theirs":
        # It reads and writes one TLS connection from two threads. What TLS 1.3 sends beside messages, tickets, makes
        # one of some thousand of its connections wait for ever, whatever the server.
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    with server.sync.server.serve(handler, "127.0.0.1", 0, ssl=certificates.server_context()) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        address = f"wss://localhost:{running.socket.getsockname()[1]}"
        try:
            with client.sync.client.connect(address, ssl=context) as ws:
                ws.send("x" * 100_000)
                assert ws.recv() == "x" * 100_000
            with pytest.raises(ssl.SSLCertVerificationError):
                client.sync.client.connect(address)
        finally:
            running.shutdown()
            thread.join()
