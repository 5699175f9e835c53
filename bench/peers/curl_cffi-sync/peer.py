"""curl_cffi, its blocking `WebSocket`."""

from __future__ import annotations

from models.abilities import Abilities
from models.blocking import Blocking, main


def connect(url: str, ca: str | None, size: int) -> Blocking:
    """Connects with the defaults; TLS is that of the library. `recv` returns payload and flags: both are compared.

    `close` sends a close frame, but does not wait for that of the server.
    """
    from curl_cffi import CurlWsFlag, WebSocket

    ws = WebSocket()
    ws.connect(url, verify=ca or True)

    def report() -> bytes:
        ws.send_str("report")
        return ws.recv()[0]

    return Blocking(
        send=ws.send,
        recv=ws.recv,
        report=report,
        send_text=ws.send_str,
        messages=ws,
        close=ws.close,
        encode=lambda message: (message, (message, CurlWsFlag.BINARY)),
    )


CLOSED = "curl_cffi:WebSocketClosed"
# It has neither compression nor keepalive.
ABILITIES = Abilities(closed={"recv": CLOSED, "send": CLOSED})

if __name__ == "__main__":
    main("curl_cffi", "curl_cffi", connect, abilities=ABILITIES)
