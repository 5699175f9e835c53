"""An echo server on wse-server, whose threads are its own: messages are drained in batches, or each is called back.

It has no secret, so that anybody may connect without a token, is not greeted, and binary messages are passed on as
they are. Its applications see no path: where the load is that of a fan-out, everybody gets what anybody sends.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from wse_server import RustWSEServer

from peers.server_program import parse, prepare, ready

OPTIONS = parse()
CONNECTIONS = 100_000
# As in the loop that its documentation shows.
BATCH, WAIT_MILLISECONDS = 256, 50
# Before the first message is sent to everybody: who has just finished the handshake may not be among them yet.
SETTLE_SECONDS = 0.5
settled = False


def free_port() -> int:
    """Returns a port that nobody has: the library does not tell which one it was given."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def drain(server: Any) -> None:
    """Answers what comes, a batch at a time."""
    while True:
        for kind, connection, data in server.drain_inbound(BATCH, WAIT_MILLISECONDS):
            if kind == "bin":
                answer(server, connection, data)


def answer(server: Any, connection: str, data: Any) -> None:
    """Sends a message back, or to everybody."""
    global settled
    if OPTIONS.fan_out:
        if not settled:
            time.sleep(SETTLE_SECONDS)
            settled = True
        server.broadcast_all_bytes(data)
    else:
        server.send_bytes(connection, data)


def main() -> None:
    prepare()
    port = free_port()
    server: Any = RustWSEServer("127.0.0.1", port, max_connections=CONNECTIONS)
    if OPTIONS.style == "drain":
        server.enable_drain_mode()
    else:
        server.set_callbacks(
            lambda connection, cookies: None,
            lambda connection, data: answer(server, connection, data),
            lambda connection: None,
        )
    server.start()
    ready(port)
    if OPTIONS.style == "drain":
        drain(server)
    threading.Event().wait()


if __name__ == "__main__":
    main()
