"""Sockets, certificates and the peer's end of the opening handshake: makes two connected ends for a setting."""

from __future__ import annotations

import functools
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from campaigns.common.handshake import acceptance, fresh_request
from support.certificates import Certificates

from .peer import Peer
from .plan import Plan

T = TypeVar("T")
_PATIENCE = 10.0


@functools.cache
def certificates() -> Certificates:
    """Returns the certificates of this process."""
    folder = tempfile.TemporaryDirectory(prefix="liveness-")
    made = Certificates(Path(folder.name))
    made.keep = folder  # type: ignore[attr-defined]  # as long as they live
    return made


@functools.cache
def _contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Returns contexts for a server and a client, which serve either end."""
    return certificates().server_context(), certificates().client_context()


class Pending(threading.Thread, Generic[T]):
    """A function that runs in a thread, and its result."""

    def __init__(self, function: Callable[[], T]) -> None:
        super().__init__(name="liveness-opening", daemon=True)
        self._function = function
        self._result: T | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as exc:
            self._error = exc

    def result(self) -> T:
        self.join(_PATIENCE)
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise TimeoutError("the opening handshake of the peer does not end")
        return self._result


def arguments(plan: Plan) -> dict[str, Any]:
    """Returns the keyword arguments of ``connect`` or ``serve`` for a plan."""
    setting, options = plan.setting, plan.options
    names = ["max_queue", "ping_interval"]
    if not setting.blocking:
        names += ["write_limit"]
        if not setting.dropin:
            names += ["max_queue_bytes", "yield_after"]
    chosen: dict[str, Any] = {name: options[name] for name in names if name in options}
    # Longer than any time limit here: these must not end anything.
    chosen |= {"close_timeout": 60, "ping_timeout": 60, "max_size": None}
    chosen["compression"] = "deflate" if setting.deflate else None
    if setting.io_backend and not setting.dropin:
        chosen["io_backend"] = setting.io_backend
    if setting.tls != "plain":
        chosen["ssl"] = _subject_tls(setting.tls, setting.role)
    return chosen


@functools.cache
def _subject_tls(kind: str, role: str) -> Any:
    server, client = _contexts()
    if kind == "context":
        return server if role == "server" else client
    import wirespeed

    if role == "client":
        return wirespeed.TLS(ca=certificates().ca_file)
    cert, key = certificates().server_files()
    return wirespeed.TLS(cert=cert, key=key)


def uri(plan: Plan) -> str:
    return "ws://localhost/" if plan.setting.tls == "plain" else "wss://localhost/"


def _sized(send: int, receive: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    # With the segments of the loopback, 64 KiB, a receiver with a small buffer announces no room, and the sender probes
    # for it at growing intervals: up to 23 s were seen.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    return sock


def listening_socket(plan: Plan, *, peer: bool) -> socket.socket:
    """Returns a listening socket; its accepted sockets inherit its buffers.

    Args:
        plan: Defines the sizes.
        peer: Whether it is the peer's.
    """
    buffers = plan.options["send_buffer"], plan.options["receive_buffer"]
    sock = _sized(*(reversed(buffers) if peer else buffers))
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


def client_socket(plan: Plan, where: Any, *, peer: bool) -> socket.socket:
    """Returns a connected socket."""
    buffers = plan.options["send_buffer"], plan.options["receive_buffer"]
    sock = _sized(*(reversed(buffers) if peer else buffers))
    sock.settimeout(_PATIENCE)
    sock.connect(where)
    return sock


def _read_head(sock: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(4096)
        if not more:
            raise EOFError("the stream ends in the opening handshake")
        data += more
    head, _, early = data.partition(b"\r\n\r\n")
    return head, early


def _extensions(plan: Plan) -> list[str]:
    return ["Sec-WebSocket-Extensions: permessage-deflate"] if plan.setting.deflate else []


def accept_peer(plan: Plan, listener: socket.socket) -> Peer:
    """Accepts a connection and acts as its server."""
    with listener:
        listener.settimeout(_PATIENCE)
        sock, _ = listener.accept()
    sock.settimeout(_PATIENCE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if plan.setting.tls != "plain":
        sock = _contexts()[0].wrap_socket(sock, server_side=True)
    head, early = _read_head(sock)
    sock.sendall(acceptance(head, *_extensions(plan)))
    return _peer(plan, sock, early, masks=False)


def dial_peer(plan: Plan, where: Any) -> Peer:
    """Connects and acts as the client."""
    sock = client_socket(plan, where, peer=True)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if plan.setting.tls != "plain":
        sock = _contexts()[1].wrap_socket(sock, server_hostname="localhost")
    sock.sendall(fresh_request("/", *_extensions(plan)))
    head, early = _read_head(sock)
    if not head.startswith(b"HTTP/1.1 101"):
        raise ValueError(f"refused: {head!r}")
    return _peer(plan, sock, early, masks=True)


def _peer(plan: Plan, sock: socket.socket, early: bytes, *, masks: bool) -> Peer:
    deflate, threaded = plan.setting.deflate, plan.options["threaded"]
    return Peer(sock, masks=masks, deflate=deflate, early=early, threaded=threaded)
