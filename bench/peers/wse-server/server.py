"""A server on wse-server, whose threads are its own: messages are drained in batches, or each is called back.

In the style `topics`, who connects subscribes to a topic, to which what is text is published; in `decode`, a sink
decodes what it drains. Both drain, as does `jwt`.

Without a secret, clients connect without a token and are not greeted. With one (the style jwt, which drains), they
need a token, which is printed behind the port, and are notified when they are ready. Both pass binary messages on
unchanged. Its applications see no path: an option names the kind of load.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from wse_server import RustWSEServer, rust_jwt_encode

from serving.server import TOKEN_SECONDS, decoder, parse, prepare, ready, report, report_sum

OPTIONS = parse()
CONNECTIONS = 100_000
# Of what waits for the application: above it, messages are dropped. The default is an eighth of it.
QUEUE = 1 << 20
# The loop is that of its documentation, whose batches are of 256: larger ones are faster here.
BATCH, WAIT_MILLISECONDS = 4096, 50
TOPIC = "everybody"
# Before the first broadcast: a client that has just finished the handshake may not be included yet.
SETTLE_SECONDS = 0.5

OnMessage = Callable[[str, Any], None]
"""Takes a message of a connection. Text is handed on as a dict where it is a JSON object, and as it is otherwise."""


def echo(server: Any) -> OnMessage:
    def on_message(connection: str, data: Any) -> None:
        if isinstance(data, bytes):
            server.send_bytes(connection, data)
        else:
            server.send(connection, data if isinstance(data, str) else json.dumps(data, separators=(",", ":")))

    return on_message


def sink(server: Any) -> OnMessage:
    taken: dict[str, list[int]] = {}
    # Callbacks run in many threads.
    lock = threading.Lock()

    def on_message(connection: str, data: Any) -> None:
        with lock:
            tally = taken.setdefault(connection, [0, 0])
            if isinstance(data, bytes):
                tally[0] += 1
                tally[1] += len(data)
                return
        server.send(connection, report(*tally))

    return on_message


def fan_out(server: Any) -> OnMessage:
    settled = False

    def on_message(connection: str, data: Any) -> None:
        nonlocal settled
        if not settled:
            time.sleep(SETTLE_SECONDS)
            settled = True
        if OPTIONS.style == "topics":
            server.broadcast_local(TOPIC, data)
        else:
            server.broadcast_all_bytes(data)

    return on_message


def drain(server: Any, on_message: OnMessage) -> None:
    """Answers what comes, a batch at a time."""
    while True:
        for kind, connection, data in server.drain_inbound(BATCH, WAIT_MILLISECONDS):
            if kind in ("bin", "msg", "raw"):
                on_message(connection, data)
            elif kind == "connect" and OPTIONS.style == "topics":
                server.subscribe_connection(connection, [TOPIC])


def drain_to_sink(server: Any) -> None:
    """Counts what comes, a batch at a time, in one thread: without calls and locks."""
    decode = decoder(OPTIONS.format) if OPTIONS.style == "decode" else None
    told = report if decode is None else report_sum
    taken: dict[str, list[int]] = {}
    while True:
        for kind, connection, data in server.drain_inbound(BATCH, WAIT_MILLISECONDS):
            if kind == "bin":
                tally = taken[connection]
                tally[0] += 1
                tally[1] += len(data) if decode is None else decode(data).number
            elif kind in ("msg", "raw"):
                server.send(connection, told(*taken[connection]))
            elif kind == "connect":
                taken[connection] = [0, 0]
            elif kind == "disconnect":
                taken.pop(connection, None)


def main() -> None:
    prepare()
    # The library does not tell which port it was given.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    secret = secrets.token_bytes(32) if OPTIONS.style == "jwt" else None
    limits = {"max_connections": CONNECTIONS, "max_inbound_queue_size": QUEUE}
    server: Any = RustWSEServer("127.0.0.1", port, jwt_secret=secret, **limits)
    on_message = {"echo": echo, "sink": sink, "fan-out": fan_out}[OPTIONS.role](server)
    drains = OPTIONS.style != "callbacks"
    if drains:
        server.enable_drain_mode()
    else:
        server.set_callbacks(lambda connection, cookies: None, on_message, lambda connection: None)
    server.start()
    now, token = int(time.time()), None
    if secret is not None:
        token = str(rust_jwt_encode({"sub": "load", "iat": now, "exp": now + TOKEN_SECONDS}, secret))
    ready(port, token)
    if drains and OPTIONS.role == "sink":
        drain_to_sink(server)
    elif drains:
        drain(server, on_message)
    threading.Event().wait()


if __name__ == "__main__":
    main()
