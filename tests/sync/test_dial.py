"""Connecting: all addresses in their order, deadlines, and no leaked socket."""

from __future__ import annotations

import errno
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.addresses import Resolve, full_listener
from support.checks import no_leaks, within
from wirespeed.sync._dial import dial, dial_address, dial_unix


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture
def port(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def in_seconds(seconds: float) -> float:
    return time.monotonic() + seconds


def test_connect(listener: socket.socket, port: int) -> None:
    with dial("127.0.0.1", port, deadline=None) as sock:
        with listener.accept()[0] as accepted:
            assert accepted.getpeername() == sock.getsockname()
            accepted.sendall(b"hello")
            assert sock.recv(5) == b"hello"
        assert sock.gettimeout() is None
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_connect_by_name(port: int) -> None:
    with no_leaks(), dial("localhost", port, deadline=in_seconds(5)) as sock:
        assert sock.getpeername() == ("127.0.0.1", port)


def test_connect_by_ipv6() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as exc:
        pytest.skip(f"this machine has no IPv6 loopback: {exc}")
    with listener, dial("::1", listener.getsockname()[1], deadline=None) as sock:
        assert sock.family == socket.AF_INET6


def test_family(port: int) -> None:
    with dial("localhost", port, deadline=None, family=socket.AF_INET) as sock:
        assert sock.family == socket.AF_INET
    with pytest.raises(socket.gaierror):
        dial("127.0.0.1", port, deadline=None, family=socket.AF_INET6)


# Failures


def test_refused(closed_port: int) -> None:
    with no_leaks(), pytest.raises(ConnectionRefusedError) as raised:
        dial("127.0.0.1", closed_port, deadline=in_seconds(5))
    assert raised.value.errno == errno.ECONNREFUSED
    assert f"cannot connect to 127.0.0.1:{closed_port}" in str(raised.value)
    assert "Connection refused" in str(raised.value)


def test_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with no_leaks(), pytest.raises(socket.gaierror, match=r"cannot resolve host 'host\.invalid': Name or") as raised:
        dial("host.invalid", 80, deadline=None)
    assert raised.value.errno == socket.EAI_NONAME


def test_no_address(resolve: Resolve) -> None:
    resolve()
    with pytest.raises(OSError, match="there is no address"):
        dial("host.invalid", 80, deadline=None)


def test_all_refused(resolve: Resolve, closed_port: int) -> None:
    resolve(("127.0.0.1", closed_port), ("127.0.0.2", closed_port))
    with no_leaks(), pytest.raises(ConnectionRefusedError) as raised:
        dial("example.com", 80, deadline=None)
    for address in ("example.com:80", f"127.0.0.1:{closed_port}: ", f"127.0.0.2:{closed_port}: "):
        assert address in str(raised.value)


def test_different_causes(resolve: Resolve, closed_port: int) -> None:
    # The kernel refuses a broadcast address by itself: nothing leaves the machine.
    resolve(("127.0.0.1", closed_port), ("255.255.255.255", 80))
    with no_leaks(), pytest.raises(OSError, match="Connection refused") as raised:
        dial("example.com", 80, deadline=None)
    assert type(raised.value) is OSError
    assert "255.255.255.255:80: " in str(raised.value)


def test_address_named_twice_is_tried_once(resolve: Resolve, closed_port: int) -> None:
    resolve(("127.0.0.1", closed_port), ("127.0.0.1", closed_port))
    with pytest.raises(ConnectionRefusedError) as raised:
        dial("example.com", 80, deadline=None)
    assert str(raised.value).count("127.0.0.1") == 1


# Several addresses


def test_next_address_at_once_when_one_fails(resolve: Resolve, closed_port: int, port: int) -> None:
    resolve(("127.0.0.1", closed_port), ("255.255.255.255", 80), ("127.0.0.1", port))
    with no_leaks(), within(5), dial("example.com", 80, deadline=None, happy_eyeballs_delay=60) as sock:
        assert sock.getpeername()[1] == port


@pytest.mark.parametrize("host", ["127.0.0.1", "255.255.255.255"], ids=["later", "in the call"])
def test_next_address_at_once_when_one_fails_beside_another(
    monkeypatch: pytest.MonkeyPatch, resolve: Resolve, silent_port: int, closed_port: int, port: int, host: str
) -> None:
    """The failure of the second attempt starts the third one, independently of the first."""
    real = socket.socket.connect

    def connect(sock: socket.socket, address: Any) -> None:
        # The kernel may report a refusal immediately or not: delay it.
        try:
            real(sock, address)
        except ConnectionRefusedError:
            raise BlockingIOError from None

    monkeypatch.setattr(socket.socket, "connect", connect)
    resolve(("127.0.0.1", silent_port), (host, closed_port), ("127.0.0.1", port))
    with (
        no_leaks(),
        within(1.9, at_least=1),
        dial("example.com", 80, deadline=None, happy_eyeballs_delay=1) as sock,
    ):
        assert sock.getpeername()[1] == port


def test_next_address_after_the_delay(resolve: Resolve, silent_port: int, port: int) -> None:
    resolve(("127.0.0.1", silent_port), ("127.0.0.1", port))
    with no_leaks(), within(1, at_least=0.1), dial("example.com", 80, deadline=None, happy_eyeballs_delay=0.1) as sock:
        assert sock.getpeername()[1] == port


def test_slow_address_can_still_win(resolve: Resolve, closed_port: int) -> None:
    """The first attempt is in progress while the second one fails."""
    with full_listener() as (port, make_room):
        resolve(("127.0.0.1", port), ("127.0.0.1", closed_port))
        timer = threading.Timer(0.1, make_room)
        timer.start()
        try:
            with dial("example.com", 80, deadline=in_seconds(20), happy_eyeballs_delay=0.01) as sock:
                assert sock.getpeername()[1] == port
        finally:
            timer.join()


def test_no_second_attempt_without_a_delay(resolve: Resolve, silent_port: int, port: int) -> None:
    resolve(("127.0.0.1", silent_port), ("127.0.0.1", port))
    with no_leaks(), within(3, at_least=0.3), pytest.raises(TimeoutError):
        dial("example.com", 80, deadline=in_seconds(0.3), happy_eyeballs_delay=None)


def refuse(sock: socket.socket, address: Any) -> None:
    raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@pytest.mark.parametrize(
    ("interleave", "order"),
    [
        (0, ["[::1]", "[::2]", "[::3]", "127.0.0.1", "127.0.0.2"]),
        (1, ["[::1]", "127.0.0.1", "[::2]", "127.0.0.2", "[::3]"]),
        (2, ["[::1]", "[::2]", "127.0.0.1", "[::3]", "127.0.0.2"]),
        (9, ["[::1]", "[::2]", "[::3]", "127.0.0.1", "127.0.0.2"]),
    ],
)
def test_order(
    monkeypatch: pytest.MonkeyPatch, resolve: Resolve, closed_port: int, interleave: int, order: list[str]
) -> None:
    resolve(*((host, closed_port) for host in ("::1", "::2", "::3", "127.0.0.1", "127.0.0.2")))
    # Only the order matters; IPv6 may be missing here.
    monkeypatch.setattr(socket.socket, "connect", refuse)
    with no_leaks(), pytest.raises(OSError, match="cannot connect") as raised:
        dial("example.com", 80, deadline=None, interleave=interleave)
    text = str(raised.value)
    assert sorted(order, key=lambda host: text.index(f"{host}:")) == order


# Deadlines


def test_deadline(silent_port: int) -> None:
    with no_leaks(), within(3, at_least=0.2), pytest.raises(TimeoutError, match=f"127.0.0.1:{silent_port}"):
        dial("127.0.0.1", silent_port, deadline=in_seconds(0.2))


def test_deadline_names_earlier_failures(resolve: Resolve, silent_port: int, closed_port: int) -> None:
    resolve(("127.0.0.1", closed_port), ("127.0.0.1", silent_port))
    with no_leaks(), pytest.raises(TimeoutError, match=f"127.0.0.1:{closed_port}: Connection refused"):
        dial("example.com", 80, deadline=in_seconds(0.1))


def test_deadline_that_has_passed(port: int) -> None:
    with no_leaks(), pytest.raises(TimeoutError):
        dial("127.0.0.1", port, deadline=time.monotonic())


# A numeric address, without a resolver and without a race


def test_numeric_address(listener: socket.socket, port: int) -> None:
    with no_leaks():
        connected = dial_address("127.0.0.1", port, deadline=in_seconds(5))
        assert connected is not None
        with socket.socket(fileno=connected.detach()) as sock, listener.accept()[0] as accepted:
            assert sock.getsockname() == accepted.getpeername()
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert not sock.get_inheritable()
        connected.close()  # it has been reused
        with pytest.raises(OSError, match="closed"):
            connected.fileno()


@pytest.mark.parametrize(
    ("host", "family"),
    [
        ("localhost", 0),
        ("127.1", 0),
        ("127.0.0.1", socket.AF_INET6),
        ("::1", socket.AF_INET),
        ("fe80::1%lo", 0),
        ("", 0),
    ],
)
def test_invalid_numeric_address(host: str, family: int, port: int) -> None:
    with no_leaks():
        assert dial_address(host, port, deadline=None, family=family) is None


class Refusing(socket.socket):
    """Sockets of a proxy that is unreachable: their exception has no number."""

    def connect(self, address: Any) -> None:
        raise OSError("no proxy is there")


def test_failure_of_replaced_sockets_without_a_number(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", Refusing)
    assert dial_address("127.0.0.1", port, deadline=None) is None
    with no_leaks(), pytest.raises(OSError, match=rf"^cannot connect to 127.0.0.1:{port} .*no proxy is there"):
        dial("127.0.0.1", port, deadline=in_seconds(5))


@pytest.mark.parametrize("call", [dial, dial_address])
def test_failures_have_equal_texts(call: Callable[..., Any], closed_port: int, silent_port: int) -> None:
    with no_leaks(), pytest.raises(ConnectionRefusedError) as refused:
        call("127.0.0.1", closed_port, deadline=in_seconds(5))
    text = f"cannot connect to 127.0.0.1:{closed_port} (127.0.0.1:{closed_port}: Connection refused)"
    assert refused.value.args == (errno.ECONNREFUSED, text)
    with no_leaks(), pytest.raises(OSError) as unreachable:
        call("255.255.255.255", 1, deadline=in_seconds(5))
    assert "cannot connect to 255.255.255.255:1 (255.255.255.255:1: " in str(unreachable.value)
    with no_leaks(), within(3, at_least=0.1), pytest.raises(TimeoutError) as late:
        call("127.0.0.1", silent_port, deadline=in_seconds(0.1))
    assert str(late.value) == f"timed out while connecting to 127.0.0.1:{silent_port}"


# Interruption


@pytest.mark.parametrize("moment", ["connect", "select"])
def test_interrupt(monkeypatch: pytest.MonkeyPatch, silent_port: int, moment: str) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    if moment == "connect":
        monkeypatch.setattr(socket.socket, "connect", interrupt)
    else:
        monkeypatch.setattr(selectors.DefaultSelector, "select", interrupt)
    with no_leaks(), pytest.raises(KeyboardInterrupt):
        dial("127.0.0.1", silent_port, deadline=None)


# Local address


def test_local_addr(listener: socket.socket, port: int) -> None:
    with dial("127.0.0.1", port, deadline=None, local_addr=("127.0.0.1", 0)) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127/8")
def test_local_addr_is_used(listener: socket.socket, port: int) -> None:
    with dial("127.0.0.1", port, deadline=None, local_addr=("127.0.0.5", 0)) as sock, listener.accept()[0] as accepted:
        assert sock.getsockname()[0] == accepted.getpeername()[0] == "127.0.0.5"


def test_local_addr_taken(port: int) -> None:
    with no_leaks(), pytest.raises(OSError, match=f"cannot bind to local_addr 127.0.0.1:{port}") as raised:
        dial("127.0.0.1", port, deadline=None, local_addr=("127.0.0.1", port))
    assert raised.value.errno == errno.EADDRINUSE


def test_local_addr_of_another_family(port: int) -> None:
    with no_leaks(), pytest.raises(OSError, match="local_addr has no address of this family"):
        dial("127.0.0.1", port, deadline=None, local_addr=("::1", 0))


# Unix sockets


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


@pytest.fixture
def unix_listener(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen(0)
        yield sock


@pytest.mark.parametrize("timeout", [None, 5])
@pytest.mark.parametrize("kind", [str, Path, str.encode], ids=["str", "Path", "bytes"])
def test_unix(unix_listener: socket.socket, path: str, kind: Any, timeout: float | None) -> None:
    deadline = None if timeout is None else in_seconds(timeout)
    with dial_unix(kind(path), deadline=deadline) as sock, unix_listener.accept()[0] as accepted:
        assert sock.gettimeout() is None
        accepted.sendall(b"hello")
        assert sock.recv(5) == b"hello"


@pytest.mark.parametrize("timeout", [None, 5])
def test_unix_missing(path: str, timeout: float | None) -> None:
    deadline = None if timeout is None else in_seconds(timeout)
    with no_leaks(), pytest.raises(FileNotFoundError) as raised:
        dial_unix(path, deadline=deadline)
    assert raised.value.filename == path


def test_unix_refused(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
    with no_leaks(), pytest.raises(ConnectionRefusedError):
        dial_unix(path, deadline=in_seconds(5))


def test_unix_deadline(unix_listener: socket.socket, path: str) -> None:
    filler = dial_unix(path, deadline=None)
    with filler, no_leaks(), within(3, at_least=0.1), pytest.raises(TimeoutError, match=path):
        dial_unix(path, deadline=in_seconds(0.1))


def test_unix_waits_for_room(unix_listener: socket.socket, path: str) -> None:
    with dial_unix(path, deadline=None):
        timer = threading.Timer(0.05, lambda: unix_listener.accept()[0].close())
        timer.start()
        try:
            dial_unix(path, deadline=in_seconds(10)).close()
        finally:
            timer.join()


def test_unix_interrupt(monkeypatch: pytest.MonkeyPatch, unix_listener: socket.socket, path: str) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(socket.socket, "connect_ex", interrupt)
    with no_leaks(), pytest.raises(KeyboardInterrupt):
        dial_unix(path, deadline=None)
