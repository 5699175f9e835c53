"""curl_cffi, its blocking `WebSocket`."""

from __future__ import annotations

from models.connection import Client, Connection
from models.peer import main
from models.program import Library


def connect(url: str, ca: str | None, size: int) -> Connection:
    """Connects with the defaults: it has no queue, nor a limit on size. TLS is that of the library.

    `recv` returns payload and flags: both are compared. Iteration would leave out the flags. `close` sends a
    close frame, but does not wait for that of the server.
    """
    from curl_cffi import CurlWsFlag, WebSocket

    ws = WebSocket()
    ws.connect(url, verify=ca or True)
    how = {"send_text": ws.send_str, "messages": iter(ws.recv, None), "close": ws.close}
    return Connection(ws, ws.send, ws.recv, **how, encode=lambda message: (message, CurlWsFlag.BINARY))


if __name__ == "__main__":
    # It has neither compression nor keepalive.
    client = Client(connect, closed=dict.fromkeys(("recv", "send"), "curl_cffi:WebSocketClosed"))
    main(Library("curl_cffi", "curl_cffi"), client)
