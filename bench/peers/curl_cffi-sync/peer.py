"""curl_cffi, its blocking `WebSocket`."""

from __future__ import annotations

from peers.blocking import Blocking, main


def connect(url: str, ca: str | None, size: int) -> Blocking:
    """Connects with the defaults; TLS is that of the library. `recv` returns payload and flags: both are compared."""
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
        messages=ws,
        encode=lambda message: (message, (message, CurlWsFlag.BINARY)),
    )


if __name__ == "__main__":
    main("curl_cffi", "curl_cffi", connect)
