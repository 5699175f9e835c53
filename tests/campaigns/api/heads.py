"""Arbitrary HTTP heads from peers: Python code answers with the right error class, and never fails itself.

Requests go to real servers: with routes, with credentials, with hooks that change them, and under uvicorn. Refusals go
to real clients, one of which reconnects. Only locations are not followed: they may lead anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

import wirespeed
import wirespeed.sync
from support.serving import KEY
from support.uvicorn_server import UvicornServer
from wirespeed._net.uri import parse_uri, resolve_location
from wirespeed.exceptions import InvalidHandshake, InvalidURI

from .conversation import QUIET
from .oracle import Misbehaved

# Longer than any of it takes.
_PATIENCE = 20.0

# Parts of targets, credentials, dates and other parsed fields, and values that break parsers.
_PARTS = (
    *("/", "//", "a", "b", "greet", "%2f", "%", "%zz", "%c3%28", "%00", "?", "&", "=", "#", "..", ".", "[", "]", "@"),
    *("ws:", "wss:", "http:", "ws://", "//h", "[::1]", "1", "-", ":", "\\", "x" * 300, "\xff", "\xe9", "\xe2\x84\x80"),
    *("Basic", "basic ", "Bearer ", "aGk6aGk=", "aGk=", "=", "/w==", "YQ", " ", "\t", ",", '"', '\\"', "q=", "realm="),
    *("Wed, 21 Oct 2026 07:28:00 GMT", "Wed, ", "31 Feb ", "99999999999", "9" * 25, " 07:28:00", " 24:61:61", " +9999"),
    *("permessage-deflate", "client_max_window_bits", "=8", "=99", "chat", "websocket", "Upgrade", "localhost", "13"),
)  # fmt: skip

_VALUES = st.lists(st.sampled_from(_PARTS), max_size=6).map("".join)
# Characters that a peer may send, in ISO-8859-1: RFC 9110, section 5.5. Line breaks are tested with the native parser.
_ANY = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=12)
_VALUE = _VALUES | _ANY

_FIELDS = (
    *("Authorization", "Host", "Origin", "Cookie", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions", "User-Agent"),
    *("Connection", "Upgrade", "Sec-WebSocket-Version", "Sec-WebSocket-Key", "X-Forwarded-For", "Content-Length", "X"),
)

Fields = list[tuple[str, str]]
REQUESTS: st.SearchStrategy[tuple[str, Fields]] = st.tuples(
    (_VALUE | _VALUE.map("/{}".format)).map(lambda text: text.replace(" ", "") or "/"),
    st.lists(st.tuples(st.sampled_from(_FIELDS), _VALUE), max_size=3),
)

_STATUSES = (200, 204, 304, 400, 401, 403, 407, 426, 429, 500, 502, 503, 504, 599)
_ANSWERED = ("Retry-After", "WWW-Authenticate", "Set-Cookie", "Content-Type", "Date", "Server", "Location")
REFUSALS: st.SearchStrategy[tuple[int, Fields, bytes]] = st.tuples(
    st.sampled_from(_STATUSES),
    # Most names are of fields that are parsed.
    st.lists(st.tuples(st.just("Retry-After") | st.sampled_from(_ANSWERED), _VALUE), max_size=3),
    st.binary(max_size=20),
)

LOCATIONS: st.SearchStrategy[tuple[str, str]] = st.tuples(
    st.sampled_from(["ws://localhost/a/b?c", "wss://user:secret@example.com:444/", "ws://[::1]:81/x"]), _VALUE
)


def _head(first: str, fields: Fields) -> bytes:
    return "\r\n".join([first, *(f"{name}: {value}" for name, value in fields), "", ""]).encode("latin-1")


class _Errors(logging.Handler):
    """Keeps log records of level error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record."""
        self.texts.append(logging.Formatter("%(levelname)s %(message)s").format(record))


@contextlib.contextmanager
def _served(server: Any) -> Iterator[tuple[str, int]]:
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()
        finally:
            server.shutdown()
            thread.join(_PATIENCE)


async def _application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        # None: uvicorn continues without it.
        return
    # The scope that an application gets for any head: ASGI, "WebSocket connection scope".
    path, raw, query, fields = scope["path"], scope["raw_path"], scope["query_string"], scope["headers"]
    values = [raw, query, *(value for field in fields for value in field)]
    is_right = isinstance(path, str) and all(isinstance(value, bytes) for value in values)
    if not is_right or any(name != name.lower() for name, _ in fields):
        raise Misbehaved(f"a scope that ASGI does not have: {scope}")
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body"})
        return
    await receive()
    if scope["subprotocols"] and "?" not in path:
        await send({"type": "websocket.accept", "subprotocol": scope["subprotocols"][0]})
    else:
        await send({"type": "websocket.close"})


class Answering:
    """Servers of every kind in which Python inspects requests."""

    def __init__(self) -> None:
        self._errors = _Errors()
        self._loggers = [logging.getLogger(name) for name in ("api.heads", "uvicorn.error")]
        for logger in self._loggers:
            logger.addHandler(self._errors)
        self._loggers[0].propagate = False
        options: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": 0,
            "logger": self._loggers[0],
            "open_timeout": _PATIENCE,
        }
        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            self._addresses = {
                "credentials": enter(_served(wirespeed.sync.serve(_echo, process_request=_credentials(), **options))),
                "recompute_accept": enter(
                    _served(
                        wirespeed.sync.serve(
                            _echo, process_request=_amend, subprotocols=["chat"], origins=[None, "ws://h"], **options
                        )
                    )
                ),
                "routes": enter(_served(wirespeed.sync.route(_routes(), **options))),
                "uvicorn": enter(UvicornServer(_application, log_level="error")).address,
            }
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Closes the servers."""
        self._stack.close()
        for logger in self._loggers:
            logger.removeHandler(self._errors)

    def run(self, program: tuple[str, Fields]) -> None:
        """Sends one request to each server.

        Args:
            program: The target, and fields that are added to or replace the usual ones.
        """
        target, fields = program
        given = {name for name, _ in fields}
        usual = [
            *(("Host", "localhost"), ("Connection", "Upgrade"), ("Upgrade", "websocket")),
            *(("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", KEY)),
        ]
        head = _head(f"GET {target} HTTP/1.1", [*(field for field in usual if field[0] not in given), *fields])
        for name, address in self._addresses.items():
            status = _status(address, head)
            if self._errors.texts or status >= 500:
                texts, self._errors.texts = "\n".join(self._errors.texts), []
                raise Misbehaved(f"{name}: {status} for {head!r}\n{texts}")


def _status(address: tuple[str, int], head: bytes) -> int:
    with socket.create_connection(address[:2], _PATIENCE) as sock:
        sock.sendall(head)
        received = b""
        while b"\r\n" not in received:
            more = sock.recv(65536)
            if not more:
                raise Misbehaved(f"no answer to {head!r}")
            received += more
    return int(received.split(b" ", 2)[1])


def _echo(ws: Any) -> None:
    for message in ws:
        ws.send(message)


def _credentials() -> Callable[..., Any]:
    return wirespeed.sync.basic_auth("here", check_credentials=lambda user, password: user != password)


def _amend(ws: Any, request: Any) -> None:
    # Changed, so that Python inspects the remaining fields.
    request.headers["X-Seen"] = "yes"


def _routes() -> Any:
    from werkzeug.routing import Map, Rule

    return Map(
        [
            Rule("/greet/<name>", endpoint=_echo),
            Rule("/a/<int:number>/", endpoint=_echo),
            Rule("/b", endpoint=_echo, redirect_to="/a/1/"),
        ]
    )


class Asking:
    """Clients that are refused: a blocking one, and a reconnecting one on asyncio."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._answer = b""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Closes the server."""
        self._answer = b""
        with socket.create_connection(self._listener.getsockname(), _PATIENCE):
            pass
        self._thread.join(_PATIENCE)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            with sock:
                sock.settimeout(_PATIENCE)
                received = b""
                with contextlib.suppress(OSError):
                    while not received.endswith(b"\r\n\r\n") and (more := sock.recv(65536)):
                        received += more
                    if not self._answer:
                        return
                    sock.sendall(self._answer)

    def run(self, program: tuple[int, Fields, bytes]) -> None:
        """Refuses each client once.

        Args:
            program: Status, fields, body.
        """
        status, fields, body = program
        self._answer = _head(f"HTTP/1.1 {status} No", fields) + body
        uri = f"ws://127.0.0.1:{self._listener.getsockname()[1]}/"
        try:
            wirespeed.sync.connect(uri, proxy=None, open_timeout=_PATIENCE, logger=QUIET).abort()
        except InvalidHandshake:
            pass
        else:
            raise Misbehaved(f"{self._answer!r} has opened a connection")
        asyncio.run(_connect_again(uri, self._answer))


async def _connect_again(uri: str, answer: bytes) -> None:
    """Iterates until a permanent refusal, or until the first delay before reconnecting."""
    logger = logging.Logger("again", logging.INFO)
    waits = asyncio.Event()

    class Waiting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "reconnecting in" in record.getMessage():
                waits.set()

    logger.addHandler(Waiting())

    async def iterate() -> None:
        async for ws in wirespeed.connect(uri, proxy=None, reconnect_delays=lambda: iter([5.0]), logger=logger):
            ws.abort()
            raise Misbehaved(f"{answer!r} has opened a connection")

    task = asyncio.ensure_future(iterate())
    waiting = asyncio.ensure_future(waits.wait())
    done, _ = await asyncio.wait([task, waiting], timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    if not done:
        raise Misbehaved(f"neither an end nor a wait after {answer!r}")
    for other in (task, waiting):
        other.cancel()
    with contextlib.suppress(InvalidHandshake, asyncio.CancelledError):
        await task


def follow(program: tuple[str, str]) -> None:
    """Resolves a location, and checks that the result can be connected to, or is refused with a clear error.

    Args:
        program: The URI of the request, and the location.
    """
    uri, location = program
    try:
        new = resolve_location(uri, location)
        parsed = parse_uri(new)
    except InvalidURI:
        return
    # RFC 9110, section 15.4: credentials for one origin are not sent to another.
    if parsed.origin != parse_uri(uri).origin and "secret" in new and "secret" not in location:
        raise Misbehaved(f"{location!r} takes credentials of {uri} to {new}")
