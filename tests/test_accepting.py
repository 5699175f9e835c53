"""Servers accept natively, except for replaced sockets."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from wirespeed._server.accept import accepting

pytestmark = pytest.mark.wirespeed_only("ours")


def listener(family: int = socket.AF_INET, address: Any = ("127.0.0.1", 0), kind: type | None = None) -> Any:
    sock = (kind or socket.socket)(family, socket.SOCK_STREAM)
    try:
        sock.bind(address)
    except OSError as exc:
        sock.close()
        if exc.errno == errno.EADDRNOTAVAIL:
            pytest.skip("this machine has no such address")
        raise
    sock.listen()
    sock.setblocking(False)
    return sock


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET6, ("::1", 0))])
def test_waiting_clients_are_accepted(family: int, address: Any) -> None:
    with listener(family, address) as listening, socket.socket(family) as client:
        accept = accepting(listening)
        assert accept() is None
        client.connect(listening.getsockname())
        accepted = accept()
        assert accepted is not None
        sock, remote = accepted
        with sock:
            assert remote == client.getsockname() == sock.getpeername()
            assert (sock.family, sock.type, sock.proto) == (family, socket.SOCK_STREAM, listening.proto)
            assert sock.gettimeout() == 0
            assert not sock.get_inheritable()
            with pytest.raises(BlockingIOError):
                sock.recv(1)
            client.sendall(b"x")
            client.shutdown(socket.SHUT_WR)
            sock.setblocking(True)
            assert (sock.recv(2), sock.recv(2)) == (b"x", b"")
        assert accept() is None


@pytest.mark.skipif(sys.platform == "win32", reason="there are no Unix sockets")
def test_unix_sockets(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with listener(socket.AF_UNIX, path) as listening, socket.socket(socket.AF_UNIX) as client:
        accept = accepting(listening)
        assert accept() is None
        client.connect(path)
        accepted = accept()
        assert accepted is not None
        with accepted[0] as sock:
            assert (sock.getsockname(), accepted[1], sock.gettimeout()) == (path, "", 0)


def test_overridden_accept_is_used() -> None:
    class Counting(socket.socket):
        count = 0

        def accept(self) -> Any:
            Counting.count += 1
            return super().accept()

    with listener(kind=Counting) as listening:
        assert accepting(listening)() is None
        assert Counting.count == 1


class Waiting(socket.socket):
    """Like the class of gevent: it ignores SOCK_NONBLOCK, and only its own timeout decides whether to wait."""

    def __init__(self, family: int = -1, kind: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        super().__init__(family, kind & ~getattr(socket, "SOCK_NONBLOCK", 0) if kind > 0 else kind, proto, fileno)


def test_replaced_sockets_are_accepted_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that such a class considers blocking would wait."""
    monkeypatch.setattr(socket, "socket", Waiting)
    with listener() as listening, socket.socket() as client:
        client.connect(listening.getsockname())
        accepted = accepting(listening)()
        assert accepted is not None
        with accepted[0] as sock:
            assert (type(sock), sock.gettimeout()) == (Waiting, 0)


def test_errors_have_their_numbers() -> None:
    listening = listener()
    accept = accepting(listening)
    listening.close()
    with pytest.raises(OSError):
        accept()
    with socket.socket() as other, pytest.raises(OSError) as raised:
        other.setblocking(False)
        accepting(other)()  # it does not listen
    assert raised.value.errno == errno.EINVAL


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_nothing_leaks() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with listener() as listening, contextlib.ExitStack() as stack:
        accept = accepting(listening)
        for _ in range(50):
            stack.enter_context(socket.create_connection(listening.getsockname()))
            accepted = accept()
            assert accepted is not None
            accepted[0].close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
