"""Views of received bytes when the connection ends while they are delivered: ``zero_copy``."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.asyncio_tools import Run
from support.connecting import Connect
from support.frames import binary, close
from support.scripted import accept_key
from support.subject import IS_WIRESPEED
from support.tls_settings import Settings

pytestmark = pytest.mark.wirespeed_only("callbacks are ours")

if IS_WIRESPEED:
    from wirespeed import Listener
else:
    Listener = object


# Longer than any wait here, shorter than the time limit of a test.
PATIENCE = 5.0

MESSAGES = [b"%d" % number * 50 for number in range(5)]


class Ending:
    """A server that sends the messages, a close frame and, with TLS, the close_notify, all in one write.

    Args:
        sock: The connection.
        context: For TLS.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        self.sock = sock
        sock.settimeout(PATIENCE)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls: ssl.SSLObject | None = None
        if context is not None:
            self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def _pump(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self.sock.sendall(self.outgoing.read())
                data = self.sock.recv(1 << 16)
                if not data:
                    raise EOFError from None
                self.incoming.write(data)
                continue
            self.sock.sendall(self.outgoing.read())
            return result

    def _read(self) -> bytes:
        tls = self.tls
        data: bytes = self.sock.recv(1 << 16) if tls is None else self._pump(lambda: tls.read(1 << 16))
        return data

    def run(self) -> None:
        tls = self.tls
        if tls is not None:
            self._pump(tls.do_handshake)
        request = b""
        while b"\r\n\r\n" not in request:
            request += self._read()
        key = re.search(rb"(?i)sec-websocket-key: *(\S+)", request)
        assert key is not None
        accept = accept_key(key.group(1).decode())
        fields = ["Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}"]
        response = "\r\n".join(["HTTP/1.1 101 Switching Protocols", *fields, "", ""]).encode()
        everything = b"".join(map(binary, MESSAGES)) + close(4001, "bye")
        if tls is None:
            self.sock.sendall(response)
            self._read()
            self.sock.sendall(everything)
            self.sock.shutdown(socket.SHUT_WR)
        else:
            self._pump(lambda: tls.write(response))
            self._read()
            tls.write(everything)
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.unwrap()
            self.sock.sendall(self.outgoing.read())
        with contextlib.suppress(OSError):
            while self.sock.recv(1 << 16):
                pass


@contextlib.contextmanager
def ending(context: ssl.SSLContext | None) -> Iterator[int]:
    """Serves one connection and yields the port."""
    with socket.socket() as listener, concurrent.futures.ThreadPoolExecutor(1) as pool:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(PATIENCE)

        def serve() -> None:
            with listener.accept()[0] as sock:
                Ending(sock, context).run()

        serving = pool.submit(serve)
        yield listener.getsockname()[1]
        serving.result(2 * PATIENCE)


class Recording(Listener):
    """Keeps the views and their bytes, and performs an action at the first.

    Args:
        act: The action.
    """

    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.act = act
        self.views: list[memoryview] = []
        self.shown: list[bytes] = []
        self.closes: list[tuple[int, str]] = []
        self.doing: list[Any] = []

    def on_message(self, ws: Any, message: Any) -> None:
        assert isinstance(message, memoryview)
        self.views.append(message)
        self.shown.append(bytes(message))
        if len(self.views) == 1:
            self.doing.append(self.act(ws))

    def on_close(self, ws: Any, code: int, reason: str) -> None:
        self.closes.append((code, reason))


def close_within(ws: Any) -> None:
    """Begins to close within the callback, as an eager task does."""
    closing = ws.close()
    with contextlib.suppress(StopIteration):
        closing.send(None)
    closing.close()


# Actions at the first message.
ACTS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda ws: None,
    "close": close_within,
    "close soon": lambda ws: asyncio.ensure_future(ws.close()),
    "send": lambda ws: ws.send_nowait("thanks"),
    "abort": lambda ws: ws.abort(),
}


async def receive(connect: Connect, uri: str, act: str, **options: Any) -> Recording:
    recording = Recording(ACTS[act])
    ws = await connect(uri, listener=recording, zero_copy=True, compression=None, close_timeout=PATIENCE, **options)
    await ws.send("go")
    await asyncio.wait_for(ws.wait_closed(), PATIENCE)
    for future in recording.doing:
        if future is not None:
            await asyncio.wait_for(future, PATIENCE)
    if act != "abort":
        assert ws.close_code == 4001
    return recording


def check(recording: Recording, act: str) -> None:
    if act == "abort":
        assert recording.shown == MESSAGES[: len(recording.shown)]
    else:
        assert recording.shown == MESSAGES
        assert recording.closes == [(4001, "bye")]
    assert len(recording.closes) == 1
    # Kept views stay valid.
    assert [bytes(view) for view in recording.views] == recording.shown
    assert all(view.readonly for view in recording.views)


@pytest.mark.parametrize("act", ACTS)
def test_plain(run: Run, connect: Connect, act: str) -> None:
    with ending(None) as port:
        check(run(lambda: receive(connect, f"ws://127.0.0.1:{port}/", act)), act)


@pytest.mark.parametrize("act", ACTS)
def test_tls(run: Run, connect: Connect, tls: Settings, act: str) -> None:
    """Messages, the close frame and the end of TLS come at once: every message is delivered, then the end."""
    with ending(tls.certificates.server_context()) as port:
        check(run(lambda: receive(connect, f"wss://localhost:{port}/", act, ssl=tls.trusting())), act)
