"""Keyword arguments of the server: access and negotiation."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from support import serving
from support.asyncio_tools import Setting, soon
from support.checks import within
from support.connecting import Connect
from support.frames import TEXT, Close, Frame, deflate
from support.serving import LOGGER, ONE_OF_EACH_PORT, Raw, dial, echo, idle, logged, masked, serve, uri
from support.subject import IS_WIRESPEED, exceptions

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed import ClientConnection, Deflate, NegotiationError, ServerConnection
else:
    ClientConnection = Deflate = NegotiationError = ServerConnection = Exception

SETTINGS = ONE_OF_EACH_PORT


async def answer(server: Any, *fields: str) -> Any:
    """Returns the head of the answer to a request with these fields, and a body if it refuses."""
    with await Raw.connect(server) as raw:
        await raw.send(serving.request("/", *fields))
        reply = await raw.head()
        if reply.status != 101:
            reply.body = await raw.rest()
        return reply


# Origins

PATTERN = re.compile(r"https?://([a-z]+\.)*example\.com")


@pytest.mark.parametrize(
    ("origins", "sent", "accepted"),
    [
        (None, ["http://anywhere"], True),
        (None, [], True),
        (["http://a"], ["http://a"], True),
        (["http://a"], ["http://A"], False),
        (["http://a"], ["http://ab"], False),
        (["http://a"], ["http://a:80"], False),
        (["http://a"], [""], False),
        (["http://a"], ["null"], False),
        (["http://a"], [], False),
        (["http://a", None], [], True),
        (["http://a", None], [""], False),
        ([None], ["http://a"], False),
        ([], ["http://a"], False),
        ([], [], False),
        (("http://a", "http://b"), ["http://b"], True),
        (["http://a"], ["http://a", "http://a"], False),
        (["http://a", None], ["http://a", "http://b"], False),
        ([PATTERN], ["https://www.example.com"], True),
        ([PATTERN], ["https://www.example.com.evil.org"], False),
        ([PATTERN], ["evil https://www.example.com"], False),
        ([PATTERN], ["https://www.example.com\tx"], False),
        ([PATTERN], [], False),
        ([PATTERN, None], [], True),
        (["http://."], ["http://x"], False),
    ],
    ids=str,
)
@pytest.mark.no_leaks
async def test_origins(
    setting: Setting, caplog: pytest.LogCaptureFixture, origins: Any, sent: list[str], accepted: bool
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with serve(setting, idle, origins=origins) as server:
        reply = await answer(server, *[f"Origin: {value}" for value in sent])
        assert reply.status == (101 if accepted else 403)
        if not accepted:
            assert b"origin" in reply.body.lower()
            assert reply["Content-Type"] == "text/plain; charset=utf-8"
            assert reply["Date"]
    refusals = [text for text in logged(caplog, logging.INFO) if "Origin" in text]
    assert len(refusals) == (not accepted)
    assert logged(caplog) == []


async def test_origin_of_clients(setting: Setting, connect: Connect) -> None:
    async with serve(setting, origins=["https://good.example"]) as server:
        for client in (connect, dial):
            async with client(uri(server), origin="https://good.example"):
                pass
            with pytest.raises(Exception, match="403"):
                await client(uri(server), origin="https://bad.example")


# Subprotocols


@pytest.mark.parametrize(
    ("supported", "offered", "chosen"),
    [
        (["b", "a"], ["Sec-WebSocket-Protocol: a, b"], "b"),
        (["a", "b"], ["Sec-WebSocket-Protocol: c", "Sec-WebSocket-Protocol: b"], "b"),
        (["a"], ["Sec-WebSocket-Protocol: b"], None),
        (["a"], ["Sec-WebSocket-Protocol: A"], None),
        (["a"], [], None),
        (None, ["Sec-WebSocket-Protocol: a"], None),
        ([], ["Sec-WebSocket-Protocol: a"], None),
        (("a",), ["Sec-WebSocket-Protocol: a"], "a"),
    ],
)
async def test_subprotocols(setting: Setting, supported: Any, offered: list[str], chosen: str | None) -> None:
    seen: list[Any] = []

    async def handler(ws: Any) -> None:
        seen.append(ws.subprotocol)

    async with serve(setting, handler, subprotocols=supported) as server:
        reply = await answer(server, *offered)
        assert (reply.status, reply["Sec-WebSocket-Protocol"]) == (101, chosen)
        await soon(lambda: seen)
        assert seen == [chosen]


@pytest.mark.parametrize(
    ("select", "status", "chosen"),
    [
        (lambda ws, offered: offered[-1], 101, "b"),
        (lambda ws, offered: None, 101, None),
        (lambda ws, offered: "c", 500, None),
        (lambda ws, offered: NegotiationError("no v2"), 400, None),
        (lambda ws, offered: ZeroDivisionError("secret"), 500, None),
        (lambda ws, offered: 7, 500, None),
        (lambda ws, offered: "", 500, None),
    ],
    ids=["last", "none", "not-offered", "refuses", "raises", "type", "empty"],
)
@pytest.mark.no_leaks
async def test_select_subprotocol(
    setting: Setting, caplog: pytest.LogCaptureFixture, select: Any, status: int, chosen: str | None
) -> None:
    calls: list[Any] = []

    def choose(ws: Any, offered: Any) -> Any:
        calls.append((ws.request.path, list(offered)))
        outcome = select(ws, offered)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async with serve(setting, idle, subprotocols=["ignored"], select_subprotocol=choose) as server:
        reply = await answer(server, "Sec-WebSocket-Protocol: a, b")
        assert reply.status == status
        assert reply["Sec-WebSocket-Protocol"] == chosen
        assert b"secret" not in reply.body
        assert (b"no v2" in reply.body) == (status == 400)
    assert calls == [("/", ["a", "b"])]
    assert (logged(caplog) != []) == (status == 500)


async def test_select_subprotocol_without_an_offer(setting: Setting) -> None:
    calls: list[Any] = []
    async with serve(setting, idle, select_subprotocol=lambda ws, offered: calls.append(list(offered))) as server:
        assert (await answer(server)).status == 101
        # A request that is not for a WebSocket is answered as usual.
        with await Raw.connect(server) as raw:
            await raw.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await raw.reply()).status == 426
    assert calls[0] == []


# Compression


@pytest.mark.parametrize(
    ("compression", "offer", "answered"),
    [
        ("deflate", "permessage-deflate", "permessage-deflate; server_max_window_bits=12"),
        (
            "deflate",
            "permessage-deflate; client_max_window_bits",
            "permessage-deflate; server_max_window_bits=12; client_max_window_bits=12",
        ),
        ("deflate", None, None),
        ("deflate", "x-webkit-deflate-frame", None),
        ("deflate", "permessage-deflate; server_max_window_bits=8", "permessage-deflate; server_max_window_bits=8"),
        ("deflate", "permessage-deflate; unknown, permessage-deflate", "permessage-deflate; server_max_window_bits=12"),
        (None, "permessage-deflate", None),
    ],
)
async def test_compression(setting: Setting, compression: Any, offer: str | None, answered: str | None) -> None:
    async with serve(setting, compression=compression) as server:
        fields = () if offer is None else (f"Sec-WebSocket-Extensions: {offer}",)
        assert (await answer(server, *fields))["Sec-WebSocket-Extensions"] == answered


async def test_deflate_options(setting: Setting, connect: Connect) -> None:
    options = Deflate(server_no_context_takeover=True, client_max_window_bits=10, threshold=100)
    async with serve(setting, compression=options) as server:
        offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
        with await Raw.connect(server) as raw:
            await raw.send(serving.request("/", offer))
            answered = (await raw.head())["Sec-WebSocket-Extensions"]
            assert set((answered or "").split("; ")[1:]) == {
                "server_no_context_takeover",
                "client_max_window_bits=10",
            }
            await raw.send(masked(TEXT, deflate(b"x" * 99, window_bits=10), rsv=4))
            assert await raw.frame() == Frame(TEXT, b"x" * 99, masked=False)
            for _ in range(2):  # both alike: the second does not refer to the first
                await raw.send(masked(TEXT, deflate(b"y" * 100, window_bits=10), rsv=4))
            frames = [await raw.frame(), await raw.frame()]
            assert frames[0] == frames[1]
            assert frames[0].rsv == 4
        for client in (connect, dial):
            async with client(uri(server)) as ws:
                await ws.send("z" * 1000)
                assert await ws.recv() == "z" * 1000


# Fields


@pytest.mark.parametrize("value", [None, "mine/1.0", ""])
@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("fields", [(), ("Upgrade: none",), ("Origin: http://b",), ("X-Refuse: 1",)], ids=str)
async def test_server_header(setting: Setting, value: str | None, hooks: bool, fields: tuple[str, ...]) -> None:
    """In every response: accepting, refusing, with hooks and without; the date too, RFC 9110, section 6.6.1."""

    def process(ws: Any, request: Any) -> Any:
        return ws.respond(404, "no") if "X-Refuse" in request.headers else None

    options: dict[str, Any] = {"process_request": process, "origins": ["http://a", None]} if hooks else {}
    async with serve(setting, idle, server_header=value, **options) as server:
        reply = await answer(server, *fields)
        assert reply["Server"] == value, reply
        assert reply["Date"] is not None


async def test_server_header_by_default(setting: Setting) -> None:
    import wirespeed

    async with serve(setting, idle) as server:
        assert wirespeed.__version__ in ((await answer(server))["Server"] or "")


# Logger


async def test_logger(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    own = logging.getLogger("tests.mine")
    seen: list[Any] = []

    async def handler(ws: Any) -> None:
        seen.append(ws.logger)
        raise ZeroDivisionError

    async with serve(setting, handler, logger=own) as server:
        assert server.logger is own
        with await Raw.open(server) as raw:
            assert (await raw.until_close())[1] == Close(1011)
    assert seen == [own]
    names = {record.name for record in caplog.records if record.name.startswith(("tests", "wirespeed"))}
    assert names == {"tests.mine"}
    assert any(text.startswith("connection handler failed (") for text in caplog.messages)
    assert any(text.startswith("server listening on 127.0.0.1:") for text in caplog.messages)
    assert caplog.messages[-1] == "server closed"


# create_connection


class Counting(ServerConnection):
    """A connection with additional attributes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.received = 0

    async def recv(self, *arguments: Any, **options: Any) -> Any:
        message = await super().recv(*arguments, **options)
        self.received += 1
        return message


async def test_create_connection(setting: Setting, connect: Connect) -> None:
    made: list[Any] = []

    def function(*arguments: Any, **options: Any) -> Any:
        made.append(Counting(*arguments, **options))
        return made[-1]

    async def handler(ws: Any) -> None:
        assert type(ws) is Counting
        await ws.send(await ws.recv())
        assert ws.received == 1

    for create in (Counting, function):
        async with serve(setting, handler, create_connection=create) as server, connect(uri(server)) as ws:
            await ws.send("x")
            assert await ws.recv() == "x"
            with pytest.raises(exceptions.ConnectionClosedOK):
                await ws.recv()
    assert len(made) == 1


def _failing(how: str) -> Callable[..., Any]:
    def create(*arguments: Any, **options: Any) -> Any:
        if how == "raise":
            raise ZeroDivisionError("mine")
        if how == "client":
            return ClientConnection(*arguments, **options)
        return object()

    return create


@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("how", ["type", "raise", "client", "listener"])
@pytest.mark.no_leaks
async def test_create_connection_fails(
    setting: Setting, caplog: pytest.LogCaptureFixture, how: str, hooks: bool
) -> None:
    """The client gets an error response without the reason, if its connection was not taken yet; the server
    continues.
    """
    caplog.set_level(logging.INFO, LOGGER)
    called: list[Any] = []
    options: dict[str, Any] = {"process_request": lambda *_: called.append(_)} if hooks else {}
    if how == "listener":
        options |= {"handler": None, "listener": _failing("raise")}
    else:
        options |= {"create_connection": _failing(how)}
    async with serve(setting, **options) as server:
        for _ in range(2):
            with await Raw.connect(server) as raw:
                await raw.send(serving.request())
                with within(1):
                    answered = await raw.rest()
                if how == "client":
                    assert answered == b""
                else:
                    assert answered.startswith(b"HTTP/1.1 500 ")
                    assert answered.endswith(b"\nSee server log for more information.\n")
                assert b"mine" not in answered
        assert server.is_serving()
        assert server.connections == set()
    texts = [text for text in logged(caplog, logging.INFO) if "handshake failed" in text]
    assert len(texts) == 2
    for text in texts:
        assert ("create_connection" if how in ("type", "client") else "mine") in text
    assert called == []


@pytest.mark.parametrize("how", ["raise", "client"])
async def test_create_connection_fails_loudly(setting: Setting, caplog: pytest.LogCaptureFixture, how: str) -> None:
    async with serve(setting, create_connection=_failing(how)) as server:
        with await Raw.connect(server) as raw:
            await raw.send(serving.request())
            await raw.rest()
    [record] = [record for record in caplog.records if record.name == LOGGER]
    assert record.levelno == logging.ERROR
    assert record.exc_info


async def test_serve_keeps_its_arguments(setting: Setting) -> None:
    """Later changes of a list argument have no effect."""
    names = ["a"]
    async with serve(setting, echo, subprotocols=names) as server:
        names[0] = "b"
        assert (await answer(server, "Sec-WebSocket-Protocol: a, b"))["Sec-WebSocket-Protocol"] == "a"
