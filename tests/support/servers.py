"""A third-party server: the asyncio server of ``websockets``, in a thread with an event loop of its own.

The path of the request selects the behaviour; ``WebSocketsServer.requests`` keeps every request for inspection.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import ssl
import threading
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any

from websockets.asyncio.server import ServerConnection, basic_auth, serve, unix_serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.http11 import Request, Response

__all__ = ["SUBPROTOCOLS", "Serving", "WebSocketsServer"]

DEADLINE = 20.0
SUBPROTOCOLS = ["superchat", "chat"]

# Failed handshakes are the subject of some tests: they are kept out of the captured log.
LOGGER = logging.getLogger("support.server")
LOGGER.addHandler(logging.NullHandler())
LOGGER.propagate = False


class WebSocketsServer:
    """Serve on loopback, or on a Unix socket, until left.

    Paths:
        /                       echo each message
        /fragments?n=N&size=S   one text message of N fragments of S characters for each message received
        /binary?size=N          one binary message of N bytes
        /count?n=N              the texts 0 to N-1, then close
        /ping?data=X            ping, wait for the pong, send "pong X"
        /close?code=N&reason=X  close at once
        /abort                  end the TCP connection without a close frame
        /sink                   read everything; on "?" answer with the number of bytes so far
        /stalled                read nothing until the test sets ``release``
        /headers                the request's headers, one "Name: value" text each, then close
        /peer                   the client's address as the server sees it
        /negotiated             the extensions of the response, or an empty text
        /auth                   echo, for the user "hello" with the password "iloveyou:)"
        /status/N[?retry=S]     reject with status N and a body
        /redirect?to=URI[&status=N]  redirect
        /hop/N                  redirect to /hop/N-1, and so on to /
        /loop                   redirect to itself
        /slow?seconds=S         answer the handshake late
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext | None = None,
        unix_path: str | None = None,
        subprotocols: list[str] | None = None,
        deflate: dict[str, Any] | bool | None = True,
        max_size: int | None = None,
    ) -> None:
        self.ssl_context = ssl_context
        self.unix_path = unix_path
        self.options: dict[str, Any] = {
            "subprotocols": subprotocols,
            "max_size": max_size,
            "logger": LOGGER,
            "ping_interval": None,
            "close_timeout": 5,
            "process_request": self._process_request,
            "ssl": ssl_context,
        }
        if deflate is False or deflate is None:
            self.options["compression"] = None
        elif isinstance(deflate, dict):
            self.options["compression"] = None
            self.options["extensions"] = [ServerPerMessageDeflateFactory(**deflate)]
        self.requests: list[Request] = []
        self.port = 0
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="websockets-server", daemon=True)

    # Addresses

    @property
    def uri(self) -> str:
        """The address of the echo, without the slash at the end."""
        return f"wss://localhost:{self.port}" if self.ssl_context else f"ws://127.0.0.1:{self.port}"

    # From other threads

    def release(self) -> None:
        """Lets the handlers of /stalled read."""
        self.loop.call_soon_threadsafe(self._released.set)

    def connections(self) -> int:
        """Returns the number of connections that the server holds now."""
        return asyncio.run_coroutine_threadsafe(self._count(), self.loop).result(DEADLINE)

    async def _count(self) -> int:
        return len(self._open)

    # Life

    def __enter__(self) -> WebSocketsServer:  # noqa: PYI034 - typing.Self needs Python 3.11
        self._thread.start()
        if not self._ready.wait(DEADLINE):
            raise TimeoutError("the websockets server did not start")
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE)
        if self._thread.is_alive():
            raise TimeoutError("the websockets server did not stop")

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as exc:
            self._error = exc
            self._ready.set()

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._released = asyncio.Event()
        self._open: set[ServerConnection] = set()
        if self.unix_path is not None:
            server = unix_serve(self._handle, self.unix_path, **self.options)
        else:
            server = serve(self._handle, "127.0.0.1", 0, **self.options)
        async with server as running:
            if self.unix_path is None:
                self.port = next(iter(running.sockets)).getsockname()[1]
            self._ready.set()
            await self._stop.wait()
            self._released.set()
            for connection in list(self._open):
                connection.transport.abort()

    # Requests

    async def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        url = urllib.parse.urlparse(request.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if url.path == "/auth":
            check = basic_auth(realm="tests", credentials=("hello", "iloveyou:)"))
            answer = check(connection, request)
            return await answer if isinstance(answer, Awaitable) else answer
        if url.path.startswith("/status/"):
            status = http.HTTPStatus(int(url.path[8:]))
            response = connection.respond(status, f"{status.phrase}: ask again\n")
            if "retry" in query:
                response.headers["Retry-After"] = query["retry"]
            return response
        if url.path == "/redirect":
            return self._redirect(query["to"], int(query.get("status", "302")))
        if url.path.startswith("/hop/"):
            left = int(url.path[5:])
            return self._redirect(f"/hop/{left - 1}" if left > 1 else "/", 301)
        if url.path == "/loop":
            return self._redirect("/loop", 307)
        if url.path == "/slow":
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), float(query["seconds"]))
        return None

    def _redirect(self, location: str, status: int) -> Response:
        headers = Headers({"Location": location, "Content-Length": "0"})
        return Response(status, http.HTTPStatus(status).phrase, headers, b"")

    # Connections

    async def _handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        url = urllib.parse.urlparse(connection.request.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        name = url.path.strip("/").replace("/", "_") or "echo"
        handler: Callable[..., Awaitable[None]] = getattr(self, f"_on_{name}", self._on_echo)
        self._open.add(connection)
        try:
            with contextlib.suppress(ConnectionClosed):
                await handler(connection, **query)
        finally:
            self._open.discard(connection)

    async def _on_echo(self, connection: ServerConnection, **_: str) -> None:
        async for message in connection:
            await connection.send(message)

    async def _on_fragments(self, connection: ServerConnection, n: str, size: str) -> None:
        async for _ in connection:
            await connection.send(chr(ord("a") + index % 26) * int(size) for index in range(int(n)))

    async def _on_binary(self, connection: ServerConnection, size: str) -> None:
        await connection.send(bytes(int(size)))
        await connection.wait_closed()

    async def _on_count(self, connection: ServerConnection, n: str) -> None:
        for number in range(int(n)):
            await connection.send(str(number))

    async def _on_ping(self, connection: ServerConnection, data: str) -> None:
        await (await connection.ping(data))
        await connection.send(f"pong {data}")
        await connection.wait_closed()

    async def _on_close(self, connection: ServerConnection, code: str, reason: str = "") -> None:
        await connection.close(int(code), reason)

    async def _on_abort(self, connection: ServerConnection) -> None:
        connection.transport.abort()

    async def _on_sink(self, connection: ServerConnection) -> None:
        total = 0
        async for message in connection:
            if message == "?":
                await connection.send(str(total))
            else:
                total += len(message)

    async def _on_stalled(self, connection: ServerConnection) -> None:
        connection.transport.pause_reading()
        await self._released.wait()
        connection.transport.resume_reading()
        await self._on_echo(connection)

    async def _on_headers(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        for header, value in connection.request.headers.raw_items():
            await connection.send(f"{header}: {value}")

    async def _on_peer(self, connection: ServerConnection) -> None:
        host, port, *_ = connection.remote_address
        await connection.send(f"{host} {port}")
        await connection.wait_closed()

    async def _on_negotiated(self, connection: ServerConnection) -> None:
        assert connection.response is not None
        await connection.send(connection.response.headers.get("Sec-WebSocket-Extensions", ""))
        await connection.wait_closed()


# The fixture ``serving``.
Serving = Callable[..., WebSocketsServer]
