"""A server on wse-server, whose threads are its own: messages are drained in batches, or each is called back.

In the style `topics`, who connects subscribes to a topic, to which what is text is published; in `decode`, a sink
decodes what it drains. Both drain, as does `jwt`.

Without a secret anybody may connect without a token and is not greeted; with one (the style jwt, which drains),
clients need a token, which is printed behind the port, and are told when they are ready. Binary messages are passed on
as they are in both. Its applications see no path: they are told what the load is for.
"""

from __future__ import annotations

import abc
import json
import secrets
import socket
import threading
import time
from typing import Any

from wse_server import RustWSEServer, rust_jwt_encode

from serving.documents import decoder
from serving.server import parse, prepare, ready, report, report_sum

OPTIONS = parse()
CONNECTIONS = 100_000
# Of what waits for the application: above it, messages are dropped. The default is an eighth of it.
QUEUE = 1 << 20
# The loop is that of its documentation, whose batches are of 256: larger ones are faster here.
BATCH, WAIT_MILLISECONDS = 4096, 50
TOPIC = "everybody"
# Before the first message is sent to everybody: who has just finished the handshake may not be among them
# yet.
SETTLE_SECONDS = 0.5
TOKEN_SECONDS = 24 * 3600


class Application(abc.ABC):
    """What is done with messages. Text is handed on as a dict where it is a JSON object, and as it is otherwise."""

    def __init__(self, server: Any) -> None:
        self.server = server

    @abc.abstractmethod
    def on_message(self, connection: str, data: Any) -> None:
        """Takes a message."""


class Echo(Application):
    def on_message(self, connection: str, data: Any) -> None:
        if isinstance(data, bytes):
            self.server.send_bytes(connection, data)
        else:
            self.server.send(connection, data if isinstance(data, str) else json.dumps(data, separators=(",", ":")))


class Sink(Application):
    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self.taken: dict[str, list[int]] = {}
        # Callbacks run in many threads.
        self.lock = threading.Lock()

    def on_message(self, connection: str, data: Any) -> None:
        with self.lock:
            tally = self.taken.setdefault(connection, [0, 0])
            if isinstance(data, bytes):
                tally[0] += 1
                tally[1] += len(data)
                return
        self.server.send(connection, report(*tally))


class FanOut(Application):
    settled = False

    def on_message(self, connection: str, data: Any) -> None:
        if not self.settled:
            time.sleep(SETTLE_SECONDS)
            self.settled = True
        if OPTIONS.style == "topics":
            self.server.broadcast_local(TOPIC, data)
        else:
            self.server.broadcast_all_bytes(data)


APPLICATIONS = {"echo": Echo, "sink": Sink, "fan-out": FanOut}


def free_port() -> int:
    """Returns a port that nobody has: the library does not tell which one it was given."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def token(secret: bytes) -> str:
    """Returns a token for the load generator, which is valid longer than any run."""
    now = int(time.time())
    return str(rust_jwt_encode({"sub": "load", "iat": now, "exp": now + TOKEN_SECONDS}, secret))


def drain(server: Any, application: Application) -> None:
    """Answers what comes, a batch at a time."""
    on_message = application.on_message
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
    port = free_port()
    secret = secrets.token_bytes(32) if OPTIONS.style == "jwt" else None
    server: Any = RustWSEServer(
        "127.0.0.1",
        port,
        max_connections=CONNECTIONS,
        max_inbound_queue_size=QUEUE,
        jwt_secret=secret,
    )
    application = APPLICATIONS[OPTIONS.role](server)
    drains = OPTIONS.style != "callbacks"
    if drains:
        server.enable_drain_mode()
    else:
        server.set_callbacks(
            lambda connection, cookies: None,
            application.on_message,
            lambda connection: None,
        )
    server.start()
    ready(port, None if secret is None else token(secret))
    if drains and OPTIONS.role == "sink":
        drain_to_sink(server)
    elif drains:
        drain(server, application)
    threading.Event().wait()


if __name__ == "__main__":
    main()
