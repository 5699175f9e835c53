"""Wrong arguments: the call raises an exception that names the argument, without an event loop."""

from __future__ import annotations

import socket
import ssl
from typing import Any, cast

import pytest

from support.asyncio_subject import connect, unix_connect
from support.asyncio_tools import Run
from support.certificates import Certificates
from support.checks import no_leaks
from support.connecting import ONE_PORT, echo
from support.options import GOOD, HANDSHAKE_HEADERS, WRONG_TYPES, WRONG_VALUES, cases
from support.servers import WebSocketsServer
from support.subject import exceptions

pytestmark = pytest.mark.wirespeed_only("websockets does not check its arguments")

SETTINGS = ONE_PORT


URI = "ws://127.0.0.1:1/"


class Callbacks:
    pass


MORE_WRONG_TYPES: dict[str, list[Any]] = {
    "host": [1, b"localhost"],
    "port": [1.5, b"80", [80], "fd"],
    "family": ["AF_INET", 1.5],
    "happy_eyeballs_delay": ["1", True],
    "proxy_ssl": [1, "yes"],
    "proxy_server_hostname": [1],
    "process_exception": [1, None],
    "reconnect_delays": [1, [1, 2], None],
    "reconnect_after_close": [1, None],
    "refresh": [1, {"X": "y"}],
    "max_queue_bytes": ["1", 1.5],
    "write_limit": ["1", 1.5, None, (None, 1)],
    "coalesce": [1, None],
    "yield_after": ["1", 1.5, None],
    "listener": [Callbacks],
    "zero_copy": [1, None],
    "create_connection": [1, "Connection"],
}

MORE_WRONG_VALUES: dict[str, list[Any]] = {
    "port": [-1, 65536],
    "io_backend": ["tcp", "", 80],
    "family": [-1],
    "happy_eyeballs_delay": [-1],
    "max_queue": [(1, 2), (-1, None)],
    "max_queue_bytes": [-1],
    "write_limit": [-1, (1, 2)],
    "yield_after": [0, -1],
    "zero_copy": [True],  # without a listener
    "proxy": ["ftp://127.0.0.1", "127.0.0.1:80"],
    "ssl": [True, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)],  # with a ws URI
}


@pytest.mark.parametrize(("name", "value"), [*cases(WRONG_TYPES), *cases(MORE_WRONG_TYPES)])
def test_wrong_type(name: str, value: Any) -> None:
    with no_leaks(), pytest.raises(TypeError, match=name):
        connect(URI, **{name: value})


@pytest.mark.parametrize(("name", "value"), [*cases(WRONG_VALUES), *cases(MORE_WRONG_VALUES)])
def test_wrong_value(name: str, value: Any) -> None:
    expected = exceptions.InvalidProxy if name == "proxy" else ValueError
    with no_leaks(), pytest.raises(expected, match=name):
        connect(URI, **{name: value})


def test_ssl_false() -> None:
    with pytest.raises(ValueError, match="ssl=False"):
        connect("wss://127.0.0.1:1/", ssl=False)


def test_proxy_ssl_with_a_plain_proxy(certificates: Certificates) -> None:
    with pytest.raises(ValueError, match="proxy_ssl"):
        connect(URI, proxy="http://127.0.0.1:1", proxy_ssl=certificates.client_context())


def test_bad_certificate_settings(certificates: Certificates) -> None:
    """Errors that the core finds are raised by the call, too."""
    import wirespeed

    tls = wirespeed.TLS(cert=certificates.client_cert, key=certificates.stranger_key)
    with pytest.raises(ValueError, match="key"):
        connect("wss://127.0.0.1:1/", ssl=tls)


@pytest.mark.parametrize("uri", ["http://localhost/", "ws://", "localhost:80", "", "ws://localhost/#x", "ws://[::1/"])
def test_bad_uri(uri: str) -> None:
    with pytest.raises(exceptions.InvalidURI) as raised:
        connect(uri)
    assert raised.value.uri == uri


@pytest.mark.parametrize("uri", [1, None, b"ws://localhost/"])
def test_uri_of_wrong_type(uri: Any) -> None:
    with pytest.raises(TypeError, match="uri"):
        connect(uri)


@pytest.mark.parametrize("name", HANDSHAKE_HEADERS)
def test_handshake_headers_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="(?i)" + name):
        connect(URI, additional_headers={name: "spam"})


def test_unknown_option() -> None:
    with pytest.raises(TypeError, match="ping_intervall"):
        connect(URI, ping_intervall=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="ping_intervall"):
        unix_connect("/tmp/socket", ping_intervall=1)  # type: ignore[call-arg]


def test_positional_options() -> None:
    with pytest.raises(TypeError):
        connect(URI, None)  # type: ignore[call-arg]


def test_socket_that_is_closed() -> None:
    sock = socket.socket()
    sock.close()
    with pytest.raises(ValueError, match="sock is closed"):
        connect(URI, sock=sock)


def test_socket_with_tls_of_its_own() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    sock = context.wrap_socket(socket.socket(), do_handshake_on_connect=False)
    with sock, pytest.raises(TypeError, match="sock must be a plain socket"):
        connect(URI, sock=sock)


def test_socket_of_wrong_arguments_stays_open() -> None:
    """The socket belongs to the caller until the call has returned."""
    with socket.socket() as sock:
        with pytest.raises(TypeError):
            connect(URI, sock=sock, origin=1)  # type: ignore[arg-type]
        assert sock.fileno() >= 0


# Unix sockets


def test_unix_arguments(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="path is missing"):
        unix_connect()
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(ValueError, match="exclude each other"):
        unix_connect(f"{tmp_path}/s", sock=sock)
    with pytest.raises(TypeError, match="host"):
        unix_connect(f"{tmp_path}/s", host="localhost")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="port"):
        unix_connect(f"{tmp_path}/s", port=80)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="ssl"):
        unix_connect(f"{tmp_path}/s", "ws://localhost/", ssl=True)
    with pytest.raises(TypeError, match="refresh"):
        unix_connect(f"{tmp_path}/s", refresh=1)  # type: ignore[arg-type]


# Right arguments


@pytest.mark.parametrize(
    "options",
    [
        *GOOD,
        {"max_queue": (16, 4), "max_queue_bytes": 1000, "write_limit": (1000, 10)},
        {"max_queue": None, "max_queue_bytes": None},
        {"write_limit": 0},
        {"write_limit": (1000, None)},
        {"happy_eyeballs_delay": None, "family": socket.AF_INET},
        {"refresh": None, "reconnect_delays": list, "process_exception": repr, "reconnect_after_close": True},
        {"listener": None, "zero_copy": False},
    ],
    ids=str,
)
async def test_good_options(server: WebSocketsServer, options: dict[str, Any]) -> None:
    async with connect(server.uri, **options) as ws:
        await echo(ws)


@pytest.mark.no_leaks
async def test_create_connection(server: WebSocketsServer) -> None:
    import wirespeed

    class Mine(wirespeed.ClientConnection):
        pass

    async with connect(server.uri, create_connection=Mine) as ws:
        assert type(ws) is Mine
        await echo(ws)


@pytest.mark.parametrize("later", [False, True], ids=["in-the-class", "later"])
def test_iteration_calls_an_overridden_recv(server: WebSocketsServer, run: Run, later: bool) -> None:
    import wirespeed

    class Mine(wirespeed.ClientConnection):
        pass

    async def recv(self: Any, decode: bool | None = None) -> Any:
        return f"mine: {await wirespeed.ClientConnection.recv(self, True)}"

    async def main() -> list[Any]:
        async with connect(f"{server.uri}/count?n=2", create_connection=Mine) as ws:
            if later:
                monkey.setattr(Mine, "recv", recv)
            return [message async for message in ws]

    with pytest.MonkeyPatch.context() as monkey:
        if not later:
            monkey.setattr(Mine, "recv", recv)
        assert run(main) == ["mine: 0", "mine: 1"]


def test_iteration_uses_a_recv_that_was_set_on_the_connection(server: WebSocketsServer, run: Run) -> None:
    async def main() -> list[Any]:
        async with connect(f"{server.uri}/count?n=2") as ws:
            original = ws.recv

            async def recv(*_: Any) -> Any:
                return f"mine: {await original()!s}"

            setattr(ws, "recv", recv)  # noqa: B010
            return [message async for message in ws]

    assert run(main) == ["mine: 0", "mine: 1"]


@pytest.mark.no_leaks
async def test_create_connection_of_something_else(server: WebSocketsServer) -> None:
    with pytest.raises(TypeError, match="create_connection"):
        await connect(server.uri, create_connection=cast(Any, lambda *args, **kwargs: None))


@pytest.mark.wirespeed_only("create_connection is not called so by websockets")
@pytest.mark.parametrize("how", ["function", "class", "other type"])
@pytest.mark.no_leaks
async def test_create_connection_that_fails(scripted: Any, connect: Any, how: str) -> None:
    """The server sees the end, although the exception, and thus its frames, are kept."""
    import wirespeed

    class Failing(wirespeed.ClientConnection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            raise LookupError("mine")

    def fail(*args: Any, **options: Any) -> Any:
        raise LookupError("mine")

    def server_connection(*args: Any, **options: Any) -> Any:
        return wirespeed.ServerConnection(*args, **options)

    def script(wire: Any) -> bytes:
        wire.accept()
        return wire.read_to_end()  # type: ignore[no-any-return]

    server = scripted(script)
    kept: list[Exception] = []
    made = {"function": fail, "class": Failing, "other type": server_connection}[how]
    try:
        await connect(server.uri, create_connection=made)
    except (LookupError, TypeError) as exc:
        kept.append(exc)
    server.join()
    assert server.results == [b""]
    assert type(kept[0]) is (TypeError if how == "other type" else LookupError)


@pytest.mark.wirespeed_only("websockets passes them on to the event loop")
@pytest.mark.parametrize("name", ["proxy", "port", "uri_", "happy_eyeballs_delay"])
def test_unknown_option_of_unix_connect(name: str) -> None:
    with pytest.raises(TypeError, match=rf"unix_connect\(\) got an unexpected keyword argument '{name}'"):
        unix_connect("/nowhere", **cast("dict[str, Any]", {name: None}))
