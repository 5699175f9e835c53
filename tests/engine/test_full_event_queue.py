"""New clients while the event queue is full, and other clients that fill every free place at that moment."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from wirespeed.engine import Engine

pytestmark = [pytest.mark.wirespeed_only("websockets has no engine"), pytest.mark.timeout(120)]

REQUEST = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
SHORT = b"\x82\x80\0\0\0\0"


def test_waiting_clients_are_admitted_despite_busy_ones() -> None:
    engine = Engine("127.0.0.1", workers=1, max_events=2, open_timeout=60)
    clients: list[socket.socket] = []
    many = SHORT * 5000

    def ask() -> socket.socket:
        client = socket.create_connection(engine.addresses[0])
        client.sendall(REQUEST)
        clients.append(client)
        return client

    with engine:
        batches = engine.batches(timeout=0.05, max_events=100_000)

        def take_all(quiet: float) -> None:
            until = time.monotonic() + quiet
            while time.monotonic() < until:
                if next(batches):
                    until = time.monotonic() + quiet

        for _ in range(20):
            ask()
            take_all(0.06)
        for client in clients:
            assert client.recv(4096).startswith(b"HTTP/1.1 101")
        others = clients.copy()
        for number in range(16):
            others[0].sendall(SHORT * 10)
            time.sleep(0.02)  # the event queue is full: no thread takes events
            waiting = ask()
            time.sleep(0.02)
            start = threading.Barrier(3)

            def flood(some: list[socket.socket], start: threading.Barrier = start) -> None:
                start.wait()
                for client in some:
                    client.sendall(many)

            threads = [threading.Thread(target=flood, args=(others[1 + half :: 2],)) for half in range(2)]
            for thread in threads:
                thread.start()
            start.wait()
            time.sleep(number * 1e-4)
            next(batches)
            for thread in threads:
                thread.join()
            take_all(0.3)
            waiting.settimeout(2)
            assert waiting.recv(4096).startswith(b"HTTP/1.1 101"), number
            take_all(0.1)
    for client in clients:
        client.close()
