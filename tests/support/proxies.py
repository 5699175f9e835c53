"""Proxies: real ones of each kind in a process of their own, and misbehaving ones as scripts."""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
from pathlib import Path

from .children import Child
from .scripted import Wire

__all__ = ["PASSWORD", "USER", "Proxy", "relay"]

USER, PASSWORD = "someone", "open sesame"
# As it is written in a URL.
USER_INFO = "someone:open%20sesame@"


class Proxy:
    """A running proxy; ``url()`` is the value for ``proxy=``."""

    def __init__(self, kind: str, *, login: bool = False, certificate: tuple[str, str] | None = None) -> None:
        self.kind = kind
        self.login = login
        command = [sys.executable, str(Path(__file__).with_name("proxy_main.py")), kind]
        if login:
            command += ["--user", f"{USER}:{PASSWORD}"]
        if certificate is not None:
            command += ["--cert", certificate[0], "--key", certificate[1]]
        self.child = Child(command)
        try:
            self.port = int(self.child.read_until("listening "))
        except BaseException:
            self.child.stop()
            raise

    def url(self, scheme: str | None = None, user_info: str | None = None) -> str:
        """Returns the proxy's address; by default with the right credentials if it requires some."""
        if user_info is None:
            user_info = USER_INFO if self.login else ""
        host = "localhost" if self.kind == "https" else "127.0.0.1"
        return f"{scheme or self.kind}://{user_info}{host}:{self.port}"

    def read_connection(self, port: int | None = None) -> tuple[str, int]:
        """Waits for the next connection that the proxy made; returns the host, as the client named it, and the port.

        With ``port``, of the next one to that port: the proxy may still be busy with an earlier test.
        """
        while True:
            host, to = self.child.read_until("connect ").split()
            if port is None or int(to) == port:
                return host, int(to)

    def read_resolution(self) -> str:
        """Waits for the next name that a SOCKS 4a client requested, and returns it."""
        return self.child.read_until("resolve ")

    def stop(self) -> None:
        self.child.stop()


def relay(wire: Wire, port: int) -> None:
    """For scripted proxies: forwards bytes between the client and a local port until either end closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as target, selectors.DefaultSelector() as selector:
        ends = {wire.sock: target, target: wire.sock}
        for sock in ends:
            selector.register(sock, selectors.EVENT_READ)
        if wire.buffer:
            target.sendall(wire.buffer)
        with contextlib.suppress(OSError):
            while True:
                for key, _ in selector.select(20):
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data:
                        return
                    ends[key.fileobj].sendall(data)  # type: ignore[index]
