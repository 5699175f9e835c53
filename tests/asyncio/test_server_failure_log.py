"""Log records about clients that do not get a connection: address, reason, and number."""

from __future__ import annotations

import logging
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from support.asyncio_tools import Setting, soon
from support.serving import LOGGER, ONE_OF_EACH_PORT, Raw, idle, logged, request, serve
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the server is ours")

SETTINGS = ONE_OF_EACH_PORT

if IS_WIRESPEED:
    from wirespeed import Headers, Response
    from wirespeed._connection import address_text
    from wirespeed._server.accept import AcceptedSocket
    from wirespeed._server.log import log_handshake_error, log_hint

else:
    Headers = Response = Any


HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [text for text in logged(caplog, level) if not text.startswith("server ")]


async def ask(server: Any, data: bytes, times: int) -> None:
    for _ in range(times):
        with await Raw.connect(server) as raw:
            await raw.send(data)
            await raw.rest()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"garbage\r\n\r\n", "opening handshake failed (127.0.0.1:"),
        (request("/chat?token=secret", "Origin: https://evil.example"), "/chat?*** refused: invalid Origin header"),
        (request("/denied"), "/denied refused: HTTP 401: who are you"),
        (HELLO, "a client speaks TLS to a port without TLS (127.0.0.1:"),
    ],
    ids=["garbage", "origin", "hook", "tls"],
)
@pytest.mark.no_leaks
async def test_cause_is_logged_once(setting: Setting, caplog: pytest.LogCaptureFixture, data: bytes, text: str) -> None:
    """The first failure is logged immediately, later ones as a number: not a record for each client."""
    caplog.set_level(logging.INFO, LOGGER)

    def process_request(ws: Any, request: Any) -> Any:
        return ws.respond(401, "who are you\n") if request.path == "/denied" else None

    options: dict[str, Any] = {"origins": ["https://good.example", None], "process_request": process_request}
    async with serve(setting, idle, **options) as server:
        await ask(server, data, 1)
        await soon(lambda: any(text in line for line in lines(caplog)) and not server._tasks)
        first = len(lines(caplog))
        for number in range(10):
            # Random data of a client does not make another reason.
            await ask(server, data.replace(bytes(9), bytes([number] * 9)), 1)
        await soon(lambda: not server._tasks)
        assert len(lines(caplog)) == first
    told = [line for line in lines(caplog) if text in line]
    assert len(told) == 2
    assert told[1].endswith("; 10 more like it")
    assert "more like it" not in told[0]
    assert "secret" not in caplog.text


async def test_other_causes_are_logged(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with serve(setting, idle, origins=[None]) as server:
        for number in range(3):
            await ask(server, request("/", f"Origin: https://{number}.example"), 1)
        await soon(lambda: len(lines(caplog)) == 3)
    assert [line.rpartition("https://")[2] for line in lines(caplog)] == [f"{number}.example" for number in range(3)]


def hook_options(kind: str) -> dict[str, Any]:
    """A server whose application fails for certain data of a client."""

    def fail(*_arguments: Any, **_options: Any) -> Any:
        raise KeyError("oops")

    async def later(ws: Any, request: Any) -> Any:
        fail()

    if kind == "response":
        return {"process_request": lambda ws, request: Response(99, "x", Headers())}
    return {kind.rstrip("+"): later if kind.endswith("+") else fail}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("process_request", "process_request failed"),
        ("process_request+", "process_request failed"),
        ("process_response", "process_response failed"),
        ("select_subprotocol", "opening handshake failed"),
        ("response", "the response cannot be sent"),
        ("create_connection", "opening handshake failed"),
    ],
)
@pytest.mark.no_leaks
async def test_hook_that_raises(setting: Setting, caplog: pytest.LogCaptureFixture, kind: str, text: str) -> None:
    """Any client can trigger the hook often: a traceback for each would flood the log."""
    caplog.set_level(logging.ERROR, LOGGER)
    async with serve(setting, idle, **hook_options(kind)) as server:
        await ask(server, request(), 1)
        await soon(lambda: lines(caplog) and not server._tasks)
        assert len(lines(caplog)) == 1
        await ask(server, request(), 10)
        await soon(lambda: not server._tasks)
        assert len(lines(caplog)) == 1
    first, last = caplog.records
    assert first.exc_info is not None
    assert first.getMessage().startswith(f"{text} (")
    assert first.getMessage().count("more like it") == 0
    assert last.levelno == logging.ERROR
    assert last.getMessage().startswith(f"{text} (")
    assert last.getMessage().endswith("; 10 more like it")
    assert not last.exc_info


async def test_hook_that_raises_at_other_places(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """Each place in the code has its own traceback, even if the exception comes from the same line of a shared
    function.
    """
    caplog.set_level(logging.ERROR, LOGGER)

    def process_request(ws: Any, request: Any) -> None:
        if request.path == "/name":
            raise TypeError("one")
        if request.path == "/type":
            raise ValueError("other")
        if request.path == "/first":
            int(request.headers["X-Twice"])
        str(request.headers["X-Twice"])

    async with serve(setting, idle, process_request=process_request) as server:
        for _ in range(2):
            for path in ("/name", "/type", "/first", "/second"):
                await ask(server, request(path, "X-Twice: 1", "X-Twice: 2"), 1)
        await soon(lambda: not server._tasks)
        assert len(lines(caplog)) == 4
    assert [type(record.exc_info[1]).__name__ for record in caplog.records if record.exc_info] == [
        "TypeError",
        "ValueError",
        "MultipleValuesError",
        "MultipleValuesError",
    ]


async def test_port_scan(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """One record each at level DEBUG; none at higher levels."""
    caplog.set_level(logging.DEBUG, LOGGER)
    async with serve(setting, idle) as server:
        for how in ("close", "reset"):
            getattr(await Raw.connect(server), how)()
        await soon(lambda: len(lines(caplog, logging.DEBUG)) == 2)
    assert lines(caplog) == []
    assert all(line.startswith("a client has sent nothing (127.0.0.1:") for line in lines(caplog, logging.DEBUG))


class Lines:
    """A limiter that records its calls."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def throttled_log(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> None:
        self.found.append(text % arguments)

    def throttled_log_start(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> bool:
        return True


def test_socket_that_is_already_closed() -> None:
    """Unknown parts, such as the address, are left out."""
    limiter = Lines()
    with socket.socket() as sock:
        handshake: Any = None
        accepted = AcceptedSocket(sock, ("192.0.2.1", 1234), handshake)
    log_hint(HELLO, False, accepted, limiter)
    assert [line.partition(":")[0] for line in limiter.found] == [
        "a client speaks TLS to a port without TLS (192.0.2.1"
    ]


def test_failure_without_text_is_logged_by_type() -> None:
    limiter = Lines()
    with socket.socket() as sock:
        handshake: Any = SimpleNamespace(is_silent=False)
        accepted = AcceptedSocket(sock, ("192.0.2.1", 1234), handshake)
        for failure in (EOFError(), EOFError("half a request")):
            log_handshake_error(accepted, None, failure, limiter, logging.getLogger(LOGGER))
    assert [line.partition("): ")[2] for line in limiter.found] == ["EOFError", "half a request"]


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (("127.0.0.1", 80), "127.0.0.1:80"),
        (("::1", 80, 0, 0), "[::1]:80"),
        ("/run/socket", "/run/socket"),
        (b"\0abstract\xff", r"\x00abstract" "\ufffd"),
        ("/run/socket\nERROR all is lost", r"/run/socket\nERROR all is lost"),
        (b"/run/socket\r\x1b[2J\xe2\x80\xa8", r"/run/socket\r\x1b[2J\u2028"),
        ("", "a Unix socket"),
        (b"", "a Unix socket"),
        (None, "a Unix socket"),
    ],
)
def test_addresses(address: Any, text: str) -> None:
    assert address_text(address) == text
