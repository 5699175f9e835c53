"""Two engines on one broker: a message published on either, or by another process, reaches the clients of both.

The broker is a nats-server, or else a redis-server, started on a free port. Without either, it is a broker inside this
process. Another broker can be named:

    make demo-cluster
    python examples/cluster.py nats://127.0.0.1:4222
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from wirespeed.engine import BrokerEvent, Connected, Engine, Publisher
from wirespeed.sync import ClientConnection, connect

MESSAGES = 1000


@contextlib.contextmanager
def broker() -> Iterator[str]:
    """Starts a broker and yields its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    nats, redis = (shutil.which(name, path=path) for name in ("nats-server", "redis-server"))
    if nats:
        command, url = [nats, "-a", "127.0.0.1", "-p", str(port)], f"nats://127.0.0.1:{port}"
    elif redis:
        command, url = [redis, "--bind", "127.0.0.1", "--port", str(port), "--save", ""], f"redis://127.0.0.1:{port}"
    else:
        yield "memory://demo"
        return
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            yield url
        finally:
            server.terminate()


class Node:
    """An engine whose clients all receive the prices."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.engine = Engine("127.0.0.1", workers=1, broker=url)
        self.engine.on_broker(self.tell)
        self.engine.start()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def tell(self, event: BrokerEvent) -> None:
        """Prints an event of the broker."""
        print(f"{self.name}: {event.kind} {event.reason}".rstrip())

    def serve(self) -> None:
        """Subscribes each new session."""
        for batch in self.engine.batches():
            for event in batch:
                if isinstance(event, Connected):
                    event.session.subscribe("prices.*")
                    event.session.send(f"welcome to {self.name}")

    def client(self) -> ClientConnection:
        """Connects a client, and waits until the broker knows that this engine has a subscriber."""
        host, port = self.engine.addresses[0]
        ws = connect(f"ws://{host}:{port}/", proxy=None)
        print("client:", ws.recv(10))
        while not (status := self.engine.broker_status) or not status.subscriptions:
            time.sleep(0.01)
        return ws

    def stop(self) -> None:
        """Stops the engine."""
        self.engine.stop()
        self.thread.join()


def show(url: str) -> bool:
    """Runs two engines, publishes on one of them and from a separate publisher, and returns whether every message
    arrived.
    """
    nodes = [Node("node one", url), Node("node two", url)]
    try:
        clients = [node.client() for node in nodes]
        published = nodes[0].engine.publish("prices.EURUSD", "1.0831")
        print(f"published on node one: {published} session there, forwarded: {published.forwarded}")
        with Publisher(url) as publisher:
            started = time.perf_counter()
            for number in range(MESSAGES):
                publisher.publish("prices.EURUSD", f"{number}")
            publisher.flush(10)
            print(f"a publisher has sent {MESSAGES} more in {time.perf_counter() - started:.3f} s")
        right = True
        for node, ws in zip(nodes, clients, strict=True):
            got = [ws.recv(10) for _ in range(MESSAGES + 1)]
            # The messages come from two publishers; each publisher's messages are in order.
            others = [message for message in got if message != "1.0831"]
            right &= len(others) == MESSAGES and others == [str(number) for number in range(MESSAGES)]
            status = node.engine.broker_status
            assert status is not None
            print(f"{node.name}: its client got {len(got)}, from the broker came {status.received}, lost {status.lost}")
            ws.close()
        return right
    finally:
        for node in nodes:
            node.stop()


def main() -> None:
    """Runs with the named broker, or with one of its own."""
    with contextlib.nullcontext(sys.argv[1]) if len(sys.argv) > 1 else broker() as url:
        print("broker:", "as named" if len(sys.argv) > 1 else url)
        right = show(url)
    print("everything came, in order" if right else "something is missing")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
