"""Admission to an engine: limits in total, for an address and for a user, and the treatment of other clients."""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import wirespeed
from support.certificates import Certificates
from support.load_scaling import load_scaled
from wirespeed.engine import JWT, Connected, Disconnected, Engine, Event, Message
from wirespeed.sync import ClientConnection, connect

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

SECRET = b"a secret of at least thirty-two bytes"


def token(user: str, **claims: Any) -> dict[str, str]:
    """Returns the header with a token for a user."""

    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    head = encode(json.dumps({"alg": "HS256"}).encode())
    body = encode(json.dumps({"sub": user, "exp": time.time() + 60, **claims}).encode())
    signature = encode(hmac.digest(SECRET, f"{head}.{body}".encode(), "sha256"))
    return {"Authorization": f"Bearer {head}.{body}.{signature}"}


def dial(engine: Engine, source: str = "127.0.0.1", path: str = "/", **options: Any) -> ClientConnection:
    host, port = engine.addresses[0]
    sock = socket.create_connection((host, port), source_address=(source, 0))
    return connect(f"ws://{host}:{port}{path}", sock=sock, proxy=None, **options)


def refused(engine: Engine, source: str = "127.0.0.1", **options: Any) -> wirespeed.Response:
    with pytest.raises(wirespeed.InvalidStatus) as info:
        dial(engine, source, **options)
    return info.value.response


def take(engine: Engine, count: int) -> list[Event]:
    events: list[Event] = []
    for batch in engine.batches(timeout=20):
        assert batch, f"only {events}"
        events += batch
        if len(events) >= count:
            break
    assert len(events) == count
    return events


def host_of(event: Event) -> str | None:
    address = event.session.remote_address
    return None if address is None else address[0]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def gone(engine: Engine, *reasons: str) -> int:
    return sum(engine.stats()["handshakes_failed_by_reason"][reason] for reason in reasons)


@contextlib.contextmanager
def slow_openings(engine: Engine, source: str, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(engine.addresses[0], source_address=(source, 0)))
            for _ in range(count)
        ]


def test_max_connections() -> None:
    with Engine("127.0.0.1", max_connections=2, retry_after=3) as engine:
        with dial(engine), dial(engine):
            response = refused(engine)
            assert (response.status_code, response.headers["Retry-After"]) == (503, "3")
            until(lambda: engine.stats()["handshakes_failed_by_reason"]["full"] == 1)
        until(lambda: engine.stats()["sessions"] == 0)
        with dial(engine):
            assert engine.stats()["sessions"] == 1


def test_max_connections_over_tls(certificates: Certificates) -> None:
    cert, key = certificates.server_files()
    tls, client = wirespeed.TLS(cert=cert, key=key), wirespeed.TLS(ca=certificates.ca_file)
    with Engine("127.0.0.1", ssl=tls, max_connections=1) as engine:
        uri = "wss://{}:{}/".format(*engine.addresses[0])
        with connect(uri, ssl=client, proxy=None):
            with pytest.raises(wirespeed.InvalidStatus) as info:
                connect(uri, ssl=client, proxy=None)
            assert info.value.response.status_code == 503
            # Some requests are answered, however many there are, and silent clients do not delay the others for long.
            with slow_openings(engine, "127.0.0.2", 100) as clients:
                # On a slow machine a client that was silent for 20 ms is evicted for the next: "crowded".
                until(lambda: gone(engine, "full", "crowded") >= 36)
                closed = select.select(clients, [], [], 20)[0]
                assert closed
        until(lambda: engine.stats()["sessions"] == 0)
        with connect(uri, ssl=client, proxy=None):
            pass


@pytest.mark.serial
def test_honest_clients_are_admitted_beside_slow_handshakes() -> None:
    delays = []
    with Engine("127.0.0.1", max_pending=128) as engine:
        for _ in range(20):
            with slow_openings(engine, "127.0.0.2", 100) as clients:
                for client in clients[::2]:
                    client.send(b"GET / HT")
                begin = time.monotonic()
                with dial(engine, "127.0.0.3"):
                    delays.append(time.monotonic() - begin)
        with slow_openings(engine, "127.0.0.2", 2000):
            for _ in range(20):
                begin = time.monotonic()
                with dial(engine, "127.0.0.3"):
                    delays.append(time.monotonic() - begin)
            until(lambda: engine.stats()["handshakes_failed_by_reason"]["crowded"] >= 2000 - 128)
            assert engine.stats()["connections"] <= 130
    delays.sort()
    # 100 ms, plus delays by other load of the machine.
    assert delays[len(delays) // 2] < 0.1, delays
    assert delays[-1] < 1, delays


@contextlib.contextmanager
def few_descriptors() -> Iterator[int]:
    """Starts an engine with a hundred descriptors; yields its port."""
    script = """
import resource, sys
from wirespeed.engine import Engine
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
engine = Engine("127.0.0.1", workers=2)
engine.echo("/echo")
with engine:
    print(engine.addresses[0][1], flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


def echoed(port: int) -> float:
    """Returns the seconds until an honest client has its first echo."""
    begin = time.monotonic()
    with connect(f"ws://127.0.0.1:{port}/echo", proxy=None) as ws:
        ws.send("hello")
        assert ws.recv(20) == "hello"
    return time.monotonic() - begin


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is that of Linux")
def test_honest_clients_are_admitted_without_descriptors() -> None:
    """Slow clients lose their descriptors."""
    with few_descriptors() as port, contextlib.ExitStack() as stack:
        for _ in range(300):
            address = ("127.0.0.1", port)
            stack.enter_context(socket.create_connection(address, source_address=("127.0.0.2", 0)))
        for _ in range(5):
            assert echoed(port) < 9  # after ten seconds they would be closed in any case


@pytest.mark.serial
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is that of Linux")
def test_honest_clients_are_admitted_beside_refused_ones() -> None:
    """More of them connect in a second than the thousand that one at a time, a millisecond each, would allow."""
    ended = threading.Event()

    def attack(port: int) -> None:
        with contextlib.ExitStack() as stack:
            while not ended.is_set():
                for _ in range(20):
                    sock = stack.enter_context(socket.socket())
                    sock.bind(("127.0.0.2", 0))
                    sock.setblocking(False)
                    sock.connect_ex(("127.0.0.1", port))
                    refused_ones.append(sock)
                time.sleep(0.005)
                for sock in refused_ones[-20:]:
                    with contextlib.suppress(OSError):
                        sock.send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
                for sock in refused_ones[:-600]:
                    sock.close()
                del refused_ones[:-600]

    refused_ones: list[socket.socket] = []
    with few_descriptors() as port:
        thread = threading.Thread(target=attack, args=(port,))
        thread.start()
        try:
            time.sleep(1)
            delays = [echoed(port) for _ in range(20)]
        finally:
            ended.set()
            thread.join()
    delays.sort()
    assert delays[len(delays) // 2] < 0.1, delays
    assert delays[-1] < 2, delays


def test_sessions_of_an_address() -> None:
    with Engine("127.0.0.1", max_connections_per_address=1) as engine, dial(engine, "127.0.0.2"):
        response = refused(engine, "127.0.0.2")
        assert (response.status_code, response.headers["Retry-After"]) == (429, "5")
        with dial(engine, "127.0.0.3"):
            assert engine.stats()["sessions"] == 2
        until(lambda: engine.stats()["handshakes_failed_by_reason"]["address"] == 1)


def test_connections_per_second_of_an_address() -> None:
    limits = {"connections_per_second_per_address": 0.5, "connection_burst_per_address": 3}
    with Engine("127.0.0.1", **limits) as engine:  # type: ignore[arg-type]
        for _ in range(3):
            dial(engine, "127.0.0.2").close()
        response = refused(engine, "127.0.0.2")
        assert (response.status_code, response.headers["Retry-After"]) == (429, "2")
        dial(engine, "127.0.0.3").close()
        until(lambda: engine.stats()["handshakes_failed_by_reason"]["rate_limited"] == 1)


def test_sessions_of_a_user() -> None:
    auth = JWT(key=SECRET, algorithms="HS256")
    with Engine("127.0.0.1", auth=auth, max_sessions_per_user=1) as engine:
        with dial(engine, additional_headers=token("ann")), dial(engine, additional_headers=token("bob")):
            assert refused(engine, additional_headers=token("ann")).status_code == 429
        until(lambda: engine.stats()["sessions"] == 0)
        with dial(engine, additional_headers=token("ann")):
            assert {event.session.user for event in take(engine, 5) if isinstance(event, Connected)} == {"ann", "bob"}


@pytest.mark.parametrize(
    ("argument", "value", "text"),
    [
        ("max_connections", 0, "max_connections must be 1 or more"),
        ("max_pending", 0, "max_pending must be 1 or more"),
        ("max_connections_per_address", 0, "max_connections_per_address must be 1 or more"),
        ("max_sessions_per_user", 0, "max_sessions_per_user must be 1 or more"),
        ("connections_per_second_per_address", 0, "connections_per_second_per_address must be a number above 0"),
        ("connection_burst_per_address", 5, "connection_burst_per_address needs connections_per_second_per_address"),
        ("retry_after", -1, "retry_after must be a number of seconds from 0 up"),
    ],
)
def test_invalid_limits(argument: str, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Engine("127.0.0.1", **{argument: value})


def through(engine: Engine, header: bytes, source: str = "127.0.0.2", **options: Any) -> ClientConnection:
    """Connects like a proxy for another address."""
    sock = socket.create_connection(engine.addresses[0], source_address=(source, 0))
    sock.sendall(header)
    host, port = engine.addresses[0]
    scheme = "wss" if "ssl" in options else "ws"
    return connect(f"{scheme}://{host}:{port}/", sock=sock, proxy=None, **options)


def v2(source: bytes, port: int, command: int = 0x21) -> bytes:
    addresses = source + bytes(len(source)) + port.to_bytes(2, "big") + b"\0\0"
    family = 0x11 if len(source) == 4 else 0x21
    extra = b"\x04\0\x03abc"  # PP2_TYPE_NOOP
    length = (len(addresses) + len(extra)).to_bytes(2, "big")
    return b"\r\n\r\n\0\r\nQUIT\n" + bytes([command, family]) + length + addresses + extra


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize(
    ("header", "address"),
    [
        (b"PROXY TCP4 203.0.113.9 127.0.0.1 4711 80\r\n", ("203.0.113.9", 4711)),
        (b"PROXY TCP6 2001:db8::9 ::1 4711 80\r\n", ("2001:db8::9", 4711)),
        (b"PROXY UNKNOWN\r\n", None),
        (v2(bytes([203, 0, 113, 9]), 4711), ("203.0.113.9", 4711)),
        (v2(socket.inet_pton(socket.AF_INET6, "2001:db8::9"), 4711), ("2001:db8::9", 4711)),
        (v2(bytes([203, 0, 113, 9]), 4711, command=0x20), None),
    ],
)
def test_proxy_protocol(
    header: bytes, address: tuple[str, int] | None, encrypted: bool, certificates: Certificates
) -> None:
    cert, key = certificates.server_files()
    tls = wirespeed.TLS(cert=cert, key=key) if encrypted else None
    options: Any = {"ssl": wirespeed.TLS(ca=certificates.ca_file)} if encrypted else {}
    with (
        Engine("127.0.0.1", ssl=tls, proxy_protocol=["127.0.0.2"]) as engine,
        through(engine, header, **options) as ws,
    ):
        (event,) = take(engine, 1)
        assert event.session.remote_address == (address or ws.local_address)
        ws.send("text")
        (event,) = take(engine, 1)


def test_proxy_header_must_be_first() -> None:
    with Engine("127.0.0.1", proxy_protocol=True, trusted_proxies=["127.0.0.2/32"], open_timeout=0.5) as engine:
        for first in b"GET / HTTP/1.1\r\n", b"PROXY TCP4 1", b"PROXY TCP4 " + b"1" * 200, b"":
            with socket.create_connection(engine.addresses[0], source_address=("127.0.0.2", 0)) as sock:
                sock.sendall(first)
                sock.settimeout(20)
                assert sock.recv(1) == b""
        until(lambda: engine.stats()["handshakes_failed"] == 4)
        failed = engine.stats()["handshakes_failed_by_reason"]
        assert (failed["proxy"], failed["timeout"]) == (2, 2)
        with dial(engine, "127.0.0.3"):
            (event,) = take(engine, 1)
            assert host_of(event) == "127.0.0.3"


@pytest.mark.parametrize(
    ("header", "name", "value", "source", "address"),
    [
        ("x-forwarded-for", "X-Forwarded-For", "6.6.6.6, 203.0.113.9, 127.0.0.4", "127.0.0.2", "203.0.113.9"),
        ("x-forwarded-for", "X-Forwarded-For", "203.0.113.9", "127.1.0.1", "127.1.0.1"),
        ("x-forwarded-for", "Forwarded", "for=203.0.113.9", "127.0.0.2", "127.0.0.2"),
        ("forwarded", "Forwarded", 'for="[2001:db8::9]:1";proto=https', "127.0.0.2", "2001:db8::9"),
        ("forwarded", "X-Forwarded-For", "203.0.113.9", "127.0.0.2", "127.0.0.2"),
    ],
)
def test_forwarded(header: Any, name: str, value: str, source: str, address: str) -> None:
    with (
        Engine("127.0.0.1", trusted_proxies=["127.0.0.0/24"], forwarded_header=header) as engine,
        dial(engine, source, additional_headers={name: value}),
    ):
        (event,) = take(engine, 1)
        assert host_of(event) == address


def test_limits_apply_to_the_forwarded_address() -> None:
    options: Any = {"max_connections_per_address": 1, "connections_per_second_per_address": 100}
    with Engine("127.0.0.1", trusted_proxies=["127.0.0.2"], **options) as engine, contextlib.ExitStack() as stack:
        for number in range(5):
            fields = {"X-Forwarded-For": f"203.0.113.{number}"}
            stack.enter_context(dial(engine, "127.0.0.2", additional_headers=fields))
        assert refused(engine, "127.0.0.2", additional_headers={"X-Forwarded-For": "203.0.113.4"}).status_code == 429


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"proxy_protocol": True}, ValueError, "proxy_protocol=True needs trusted_proxies"),
        ({"proxy_protocol": ["10.0.0.0/33"]}, ValueError, 'proxy_protocol: "10.0.0.0/33" is no address or network'),
        ({"trusted_proxies": ["localhost"]}, ValueError, 'trusted_proxies: "localhost" is no address or network'),
        ({"trusted_proxies": "10.0.0.0/8"}, TypeError, "trusted_proxies must be a list of networks, not str"),
        ({"forwarded_header": "x-real-ip"}, ValueError, "forwarded_header must be"),
    ],
)
def test_invalid_proxies(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Engine("127.0.0.1", **options)


def messages(engine: Engine) -> list[str | bytes]:
    """Returns the messages up to the end of a session."""
    found: list[str | bytes] = []
    for batch in engine.batches(timeout=20):
        assert batch, f"only {len(found)}"
        for event in batch:
            if isinstance(event, Message):
                found.append(event.data)
            elif isinstance(event, Disconnected):
                return found
    raise AssertionError


@pytest.mark.parametrize(
    "limits",
    [
        {"max_messages_per_second": 200, "message_burst": 50},
        {"max_bytes_per_second": 2000, "byte_burst": 500},
    ],
)
def test_session_over_its_rate_is_delayed(limits: Any) -> None:
    with Engine("127.0.0.1", **limits) as engine:
        begin = time.monotonic()
        with dial(engine) as ws:
            ws.send_many(f"{number:0>10}" for number in range(250))
        assert messages(engine) == [f"{number:0>10}" for number in range(250)]
        assert 0.9 < time.monotonic() - begin < load_scaled(5)
        stats = engine.stats()
        assert stats["reads_delayed"] > 0
        assert stats["messages_limited"] == 0


@pytest.mark.serial
def test_flooding_session_does_not_delay_others() -> None:
    engine = Engine("127.0.0.1", max_messages_per_second=100, workers=1)
    engine.echo("/echo")
    with engine, dial(engine, path="/echo") as flooder, dial(engine, path="/echo") as other:
        flooder.send_many("x" for _ in range(500))
        slowest = 0.0
        for number in range(30):
            begin = time.monotonic()
            other.send(str(number))
            assert other.recv(20) == str(number)
            slowest = max(slowest, time.monotonic() - begin)
        assert slowest < 0.5


def test_messages_over_the_rate_are_dropped() -> None:
    with Engine("127.0.0.1", max_messages_per_second=1, message_burst=10, rate_policy="drop") as engine:
        with dial(engine) as ws:
            ws.send_many(str(number) for number in range(500))
        found = messages(engine)
        assert found[:10] == [str(number) for number in range(10)]
        assert len(found) < 20
        assert engine.stats()["messages_limited"] == 500 - len(found)


def test_session_over_its_rate_is_disconnected() -> None:
    with Engine("127.0.0.1", max_bytes_per_second=10, byte_burst=100, rate_policy="disconnect") as engine:
        with dial(engine) as ws:
            for _ in range(11):
                ws.send("0123456789")
            with pytest.raises(wirespeed.ConnectionClosedError) as info:
                ws.recv(20)
            assert info.value.rcvd == wirespeed.Close(1008, "too many messages")
        assert len(messages(engine)) == 10


def test_topic_permissions() -> None:
    auth = JWT(key=SECRET, algorithms="HS256")
    rights = {"subscribe": {"allow": ["prices.*"]}, "publish": {"allow": ["chat.{user}"]}}
    with Engine("127.0.0.1", auth=auth) as engine, dial(engine, additional_headers=token("ann", topics=rights)) as ws:
        (event,) = take(engine, 1)
        session = event.session
        assert session.may_publish("chat.ann")
        assert not session.may_publish("chat.bob")
        assert not session.may_subscribe("chat.ann")
        with pytest.raises(PermissionError, match="allows this"):
            session.subscribe("chat.ann")
        with pytest.raises(PermissionError, match="allows this"):
            session.publish("prices.a", "1")
        session.allow("chat.{user}", "news.>", publish=False)
        session.deny("prices.secret", "news.internal.>")
        assert session.subscribe("chat.ann")
        assert not session.may_publish("news.a")
        for topic in "prices.secret", "prices.*", "news.>", "news.internal.a":
            assert not session.may_subscribe(topic)
        session.allow("prices.secret")
        assert not session.may_subscribe("prices.secret")
        assert session.publish("chat.ann", "for all") == 1
        assert session.publish("chat.ann", b"for others", exclude_self=True) == 0
        assert ws.recv(20) == "for all"
        with pytest.raises(ValueError, match=r'"a\.\.b" is not a pattern'):
            session.allow("good", "a..b")
        assert not session.may_publish("good")
        with pytest.raises(ValueError, match="topic"):
            session.may_publish("prices.*")


def test_topics_by_default() -> None:
    with Engine("127.0.0.1", topics_by_default="none") as engine, dial(engine):
        (event,) = take(engine, 1)
        session = event.session
        assert not session.may_subscribe("a")
        session.allow("a")
        assert session.subscribe("a")
        assert session.publish("a", "1") == 1
    with pytest.raises(wirespeed.InvalidState):
        session.publish("a", "1")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_messages_per_second": 0}, "max_messages_per_second must be a number above 0"),
        ({"max_bytes_per_second": float("inf")}, "max_bytes_per_second must be a number above 0"),
        ({"message_burst": 5}, "message_burst needs max_messages_per_second"),
        ({"max_bytes_per_second": 5, "byte_burst": 0}, "byte_burst must be 1 or more"),
        ({"rate_policy": "ignore"}, 'rate_policy must be "delay", "drop" or "disconnect", not "ignore"'),
        ({"topics_by_default": "some"}, 'topics_by_default must be "all" or "none", not "some"'),
    ],
)
def test_invalid_rates(options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Engine("127.0.0.1", **options)
