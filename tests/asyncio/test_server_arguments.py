"""Wrong arguments of ``serve`` and related functions: the call raises an error that names the argument."""

from __future__ import annotations

import re
import socket
import ssl
from typing import Any, cast

import pytest

from support.asyncio_tools import SETTINGS as ALL
from support.asyncio_tools import Setting
from support.certificates import Certificates
from support.serving import Raw, echo, idle
from support.serving import serve as start
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed import TLS, Listener, broadcast, serve, sync, unix_serve

SETTINGS = ALL[:1]


def _name(value: Any) -> str:
    """A name that is equal in every process."""
    name = getattr(value, "__name__", None) or ascii(value)
    return "object" if " at 0x" in name else str(name)


WRONG: list[Any] = [
    ("origins", "http://a", TypeError),
    ("origins", b"http://a", TypeError),
    ("origins", 1, TypeError),
    ("origins", ["http://a", 1], TypeError),
    ("origins", [b"http://a"], TypeError),
    ("origins", [re.compile(b"http://a")], TypeError),
    ("origins", ["https://a/"], ValueError),
    ("origins", ["https://a/chat"], ValueError),
    ("origins", ["http://a", "example.com"], ValueError),
    ("origins", ["https://Example.com"], ValueError),
    ("origins", ["https://a:443"], ValueError),
    ("origins", ["https://*.a"], ValueError),
    ("origins", ["*"], ValueError),
    ("origins", [""], ValueError),
    ("subprotocols", "chat", TypeError),
    ("subprotocols", [1], TypeError),
    ("subprotocols", ["a b"], ValueError),
    ("subprotocols", [""], ValueError),
    ("select_subprotocol", "chat", TypeError),
    ("compression", "gzip", ValueError),
    ("compression", True, TypeError),
    ("compression", 9, TypeError),
    ("process_request", "no", TypeError),
    ("process_response", 1, TypeError),
    ("server_header", 1, TypeError),
    ("server_header", b"x", TypeError),
    ("server_header", "a\r\nb: c", ValueError),
    ("server_header", "\u2028", ValueError),
    ("open_timeout", "1", TypeError),
    ("open_timeout", -1, ValueError),
    ("open_timeout", float("nan"), ValueError),
    ("ping_interval", 0, ValueError),
    ("ping_interval", True, TypeError),
    ("ping_timeout", -0.5, ValueError),
    ("close_timeout", [], TypeError),
    ("max_size", "1", TypeError),
    ("max_size", -1, ValueError),
    ("max_size", (1, "2"), TypeError),
    ("max_fragments", 0, ValueError),
    ("max_queue", 1.5, TypeError),
    ("max_queue", (1, 2), ValueError),
    ("max_queue_bytes", -1, ValueError),
    ("write_limit", None, TypeError),
    ("write_limit", (1, 2), ValueError),
    ("write_limit", "1", TypeError),
    ("coalesce", None, TypeError),
    ("yield_after", 0, ValueError),
    ("yield_after", None, TypeError),
    ("max_pending", 0, ValueError),
    ("max_pending", -1, ValueError),
    ("max_pending", "1", TypeError),
    ("max_pending", 1.0, TypeError),
    ("max_pending", True, TypeError),
    ("max_pending", None, TypeError),
    ("io_backend", "tcp", ValueError),
    ("io_backend", 1, ValueError),
    ("zero_copy", 1, TypeError),
    ("zero_copy", True, ValueError),
    ("listener", "Listener", TypeError),
    ("logger", "wirespeed", TypeError),
    ("ssl", True, TypeError),
    ("ssl", "cert.pem", TypeError),
    ("create_connection", "class", TypeError),
]


@pytest.mark.parametrize(("name", "value", "exception"), WRONG, ids=_name)
@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_wrong(name: str, value: Any, exception: type[Exception], unix: bool, tmp_path: Any) -> None:
    """The error is raised without a loop and before listening."""
    with pytest.raises(exception, match=name):
        if unix:
            unix_serve(echo, str(tmp_path / "socket"), **{name: value})
        else:
            serve(echo, "127.0.0.1", 0, **{name: value})


SERVER_ONLY: list[tuple[str, Any]] = [
    ("backlog", "1"),
    ("backlog", None),
]
TCP_ONLY: list[tuple[str, Any]] = [
    ("host", 1),
    ("host", b"localhost"),
    ("host", ["localhost", 1]),
    ("port", "8765"),
    ("port", -1),
    ("port", 65536),
    ("port", 1.5),
    ("family", "inet"),
    ("flags", "x"),
    ("sock", "socket"),
]


@pytest.mark.parametrize(("name", "value"), SERVER_ONLY + TCP_ONLY, ids=str)
def test_wrong_address(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {"host": "127.0.0.1", "port": 0, name: value}
    if name == "sock":
        del arguments["host"], arguments["port"]
    with pytest.raises((TypeError, ValueError), match=name):
        serve(echo, **arguments)


@pytest.mark.parametrize(
    ("arguments", "exception", "words"),
    [
        ({"handler": None}, TypeError, "handler"),
        ({"handler": "echo"}, TypeError, "handler"),
        ({"handler": echo, "listener": lambda: None}, ValueError, "handler and listener"),
        ({"handler": echo, "nonsense": 1}, TypeError, "nonsense"),
        ({"handler": echo, "zero_copy": True}, ValueError, "zero_copy"),
    ],
    ids=lambda value: None,
)
def test_handler(arguments: dict[str, Any], exception: type[Exception], words: str) -> None:
    handler = arguments.pop("handler")
    with pytest.raises(exception, match=words):
        serve(handler, "127.0.0.1", 0, **arguments)
    with pytest.raises(exception, match=words):
        unix_serve(handler, "/nowhere", **arguments)


def test_listener_object_is_no_factory() -> None:
    """One listener object for all connections is refused."""
    with pytest.raises(TypeError, match="listener"):
        serve(None, "127.0.0.1", 0, listener=Listener())  # type: ignore[arg-type]


def test_sock_excludes_addresses() -> None:
    with socket.socket() as sock:
        for arguments in ({"host": "127.0.0.1"}, {"port": 0}, {"host": "", "port": 0}):
            with pytest.raises(ValueError, match="sock excludes host and port"):
                serve(echo, sock=sock, **cast("dict[str, Any]", arguments))
        with pytest.raises(ValueError, match="path and sock"):
            unix_serve(echo, "/nowhere", sock=sock)
    with pytest.raises(ValueError, match="path"):
        unix_serve(echo)


@pytest.mark.parametrize("name", ["host", "port", "family", "flags", "reuse_address", "reuse_port"])
def test_unix_has_no_arguments_of_tcp(name: str) -> None:
    with pytest.raises(TypeError, match=f"unix_serve.*{name}"):
        unix_serve(echo, "/nowhere", **cast("dict[str, Any]", {name: 1}))


def test_ssl_without_certificate(certificates: Certificates) -> None:
    with pytest.raises(ValueError, match="certificate"):
        serve(echo, "127.0.0.1", 0, ssl=TLS())
    with pytest.raises(ValueError, match="certificate"):
        unix_serve(echo, "/nowhere", ssl=TLS(ca=certificates.ca_file))


@pytest.mark.parametrize("options", [{"verify": True}, {"system_roots": True}, {"verify": True, "system_roots": True}])
def test_client_certificates_without_an_authority(certificates: Certificates, options: dict[str, Any]) -> None:
    """A server that requests client certificates must name their authority."""
    cert, key = certificates.server_files()
    tls = TLS(cert=cert, key=key, **options)
    with pytest.raises(ValueError, match=r"ssl: .* ca, .*pass TLS\(ca="):
        serve(echo, "127.0.0.1", 0, ssl=tls)
    with pytest.raises(ValueError, match=r"pass TLS\(ca="):
        unix_serve(echo, "/nowhere", ssl=tls)
    with pytest.raises(ValueError, match=r"pass TLS\(ca="):
        sync.serve(print, "127.0.0.1", 0, ssl=tls)
    serve(echo, "127.0.0.1", 0, ssl=TLS(cert=cert, key=key, ca=certificates.ca_file, **options))
    serve(echo, "127.0.0.1", 0, ssl=TLS(cert=cert, key=key))
    serve(echo, "127.0.0.1", 0, ssl=TLS(cert=cert, key=key, verify=False))


def test_ssl_with_another_key(certificates: Certificates) -> None:
    """The call raises, not the first client."""
    cert, _ = certificates.server_files()
    with pytest.raises((ValueError, ssl.SSLError)):
        serve(echo, "127.0.0.1", 0, ssl=TLS(cert=cert, key=certificates.client_key))


def test_context_of_a_client(certificates: Certificates) -> None:
    with pytest.raises(ValueError, match="ssl"):
        serve(echo, "127.0.0.1", 0, ssl=certificates.client_context())


def test_not_started() -> None:
    """Methods that need the loop raise a clear error."""
    server = serve(echo, "127.0.0.1", 0)
    assert not server.is_serving()
    assert server.sockets == ()
    assert server.connections == set()
    with pytest.raises(RuntimeError, match="await"):
        server.get_loop()
    with pytest.raises(RuntimeError, match="await"):
        server.close_on_signals()
    server.close()


async def test_not_started_serving() -> None:
    server = serve(echo, "127.0.0.1", 0)
    with pytest.raises(RuntimeError, match="await"):
        await server.start_serving()
    with pytest.raises(RuntimeError, match="await"):
        await server.serve_forever()
    server.close()
    await server.wait_closed()


# Methods of existing objects


@pytest.mark.parametrize(
    ("arguments", "exception"),
    [
        ({"code": 999}, Exception),
        ({"code": 1006}, Exception),
        ({"code": "1000"}, TypeError),
        ({"reason": "x" * 124}, Exception),
        ({"reason": 1}, TypeError),
    ],
    ids=str,
)
@pytest.mark.loop(timeout=1)
async def test_close(setting: Setting, arguments: dict[str, Any], exception: type[Exception]) -> None:
    async with start(setting, idle) as server:
        with await Raw.open(server):
            with pytest.raises(exception):
                server.close(**arguments)
            assert server.is_serving()


@pytest.mark.parametrize("slow", ["wait", None, 1, b"skip", "buffer"])
def test_broadcast_slow(slow: Any) -> None:
    with pytest.raises(ValueError, match="slow"):
        broadcast([], "x", slow=slow)


@pytest.mark.parametrize("message", [None, 1, ["x"], {"x": 1}, object()], ids=_name)
def test_broadcast_message(message: Any) -> None:
    with pytest.raises(TypeError, match="message"):
        broadcast([], message)


@pytest.mark.parametrize("connections", [None, 1, [None], ["x"], "abc", [object()]], ids=_name)
def test_broadcast_connections(connections: Any) -> None:
    with pytest.raises(TypeError, match=r"connections|iterable"):
        broadcast(connections, "x")


def test_broadcast_text_of_wrong_bytes() -> None:
    with pytest.raises(UnicodeDecodeError):
        broadcast([], b"\xff", text=True)


@pytest.mark.parametrize("credentials", [("a:b", "c"), [("a", "b"), ("c:", "secret")]], ids=["one", "several"])
def test_basic_auth_with_a_colon(credentials: Any) -> None:
    """RFC 7617 does not allow a colon in a user name: no client could ever log in with it."""
    from wirespeed import basic_auth

    for function in (basic_auth, sync.basic_auth):
        with pytest.raises(ValueError, match="a username must not contain a colon") as raised:
            function("here", credentials=credentials)
        assert "secret" not in str(raised.value)
        function("here", credentials=("name", "pass:word"))
