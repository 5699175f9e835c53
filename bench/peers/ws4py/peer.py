"""ws4py, its client without the thread that it can bring."""

from __future__ import annotations

import contextlib
import functools
import ssl
from collections.abc import Iterator
from typing import Any

from models.connection import Client, Connection
from models.peer import main
from models.program import Library


@functools.cache
def client() -> Any:
    """Returns the class of clients that hand out one message after the other."""
    from ws4py.client import WebSocketBaseClient

    # As its documentation recommends: without it, a mask is applied byte by byte, in Python.
    with contextlib.suppress(ModuleNotFoundError):
        import wsaccel

        wsaccel.patch_ws4py()

    class Receiving(WebSocketBaseClient):
        connected = False
        message: Any = None

        def received_message(self, message: Any) -> None:
            self.message = message.data

        def process(self, data: bytes) -> Any:
            """Keeps what came together with the handshake's answer: the library would parse one message of it."""
            if self.connected:
                return super().process(data)
            self.buf += data
            return True

        def recv(self) -> Any:
            self.message = None
            while self.message is None:
                if not self.once():
                    raise ConnectionError("the connection ended")
            return self.message

        def __iter__(self) -> Iterator[Any]:
            while True:
                yield self.recv()

    return Receiving


def connect(url: str, ca: str | None, size: int) -> Connection:
    """Connects with the defaults, in which keepalive is off; compression it has none."""
    ws = client()(url, ssl_options={"ca_certs": ca, "cert_reqs": ssl.CERT_REQUIRED})
    ws.connect()
    ws.connected = True

    def close() -> None:
        ws.close()
        while ws.once():
            pass
        ws.terminate()

    send = functools.partial(ws.send, binary=True)
    return Connection(ws, send, ws.recv, send_text=ws.send, messages=ws, close=close)


if __name__ == "__main__":
    # No compression, no keepalive that would notice; on a closed connection it raises RuntimeError and OSError.
    main(Library("ws4py", "ws4py", ("wsaccel",)), Client(connect))
