"""The peers as a table: what to run, and what each cannot do, with the reason.

A test that needs something that a peer lacks is not run with it. README.md shows the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .installed import BUILT, JAVA, NODE, NODE_FLAGS, PROGRAMS, PYTHON

__all__ = ["ABILITIES", "PEERS", "Peer"]

ABILITIES = {
    "compress": "permessage-deflate, RFC 7692",
    "compress what it sends": "and not only decompress",
    "take 10 MB compressed": "in one message",
    "ask for no context takeover": "in its offer or answer",
    "grant no context takeover": "when an offer of permessage-deflate demands it",
    "limit windows": "of permessage-deflate, when an offer demands it",
    "send fragments": "messages in several frames",
    "ping": "and take note of the pong",
    "keep alive": "ping by itself, and close without pongs",
    "limit messages": "close with 1009 when one is too large",
    "send headers": "of our choice, in the opening handshake",
    "send cookies": "in the opening handshake",
    "tell the status": "of a response that refuses the connection",
    "tell the body": "of that response",
    "go without a subprotocol": "when the ends have none in common",
    "prefer a subprotocol": "by its own order",
    "close with 1001": "and not only with 1000 and application codes",
    "close without a code": "with an empty close frame",
    "echo the code": "of a close frame",
    "tell 1006": "when the connection was lost",
}
"""What a test may need of a peer, and what that is."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """A third-party client or server.

    Attributes:
        name: The name of the library.
        end: ``client`` or ``server``.
        command: The program and its arguments.
        lacks: The missing ``ABILITIES``, with the reasons.
        tries: The number of attempts of a test that this peer makes fail for reasons of its own.
        tried_again: The tests that are repeated, by a part of their names.
    """

    name: str
    end: str
    command: tuple[str, ...]
    lacks: Mapping[str, str]
    tries: int = 1
    tried_again: str = ""

    def __post_init__(self) -> None:
        if unknown := self.lacks.keys() - ABILITIES.keys():
            raise ValueError(f"no abilities: {unknown}")

    def __str__(self) -> str:
        return f"{self.name}-{self.end}"


def _python(program: str, end: str, *arguments: str) -> tuple[str, ...]:
    return (str(PYTHON), str(PROGRAMS / program), end, *arguments)


def _node(program: str, end: str, *flags: str) -> tuple[str, ...]:
    return (NODE, *flags, str(PROGRAMS / "node" / program), end)


def _go(end: str) -> tuple[str, ...]:
    return (str(BUILT / "go-peer"), end)


# CPython's `ssl` can break a connection that one thread reads and another writes, without an error: seen once in some
# thousand openings, when the server's tickets arrive while the request is written. The request then never leaves. Known
# as https://github.com/python/cpython/issues/143756.
_THREADED_TLS = "tls"

# Processes are short-lived: the slow compiler does not pay.
_JAVA = (JAVA, "-XX:TieredStopAtLevel=1", "-cp", str(BUILT / "java"), "Peer", "client")

_ONE_CLOSE = "its close() always sends a code"
_HIDDEN = "its API does not tell"
_WHOLE = "its API sends whole messages only"
_NO_COMPRESSION = "it has none"
_NO_KEEPALIVE = "it has none"

_FAILS = "it fails the connection"

_AIOHTTP = {
    "ask for no context takeover": "it offers no such option",
    "send fragments": _WHOLE,
    "close without a code": _ONE_CLOSE,
    "echo the code": "it answers with 1000",
}
_PICOWS = {
    "compress": _NO_COMPRESSION,
    "compress what it sends": _NO_COMPRESSION,
    "ask for no context takeover": _NO_COMPRESSION,
    "close without a code": "it sends code 0, which is none",
}
_PICOWS_WEBSOCKETS = {
    "ask for no context takeover": "it takes no such options",
    "close without a code": _ONE_CLOSE,
    "tell 1006": "its close_code stays None",
    "tell the body": "it drops the body",
}
_WEBSOCKETS = {"close without a code": _ONE_CLOSE}
# The browsers' API.
_WEB = {
    "ask for no context takeover": "its API cannot choose",
    "send fragments": _WHOLE,
    "ping": "its API has no pings",
    "keep alive": "its API has no pings",
    "limit messages": "its API has none",
    "tell the status": _HIDDEN,
    "tell the body": _HIDDEN,
    "go without a subprotocol": _FAILS,
    "close with 1001": "its API allows 1000 and 3000 to 4999",
}

PEERS = [
    Peer("websockets", "client", _python("websockets/peer.py", "client"), _WEBSOCKETS),
    Peer("websockets", "server", _python("websockets/peer.py", "server"), _WEBSOCKETS),
    Peer("websockets.sync", "client", _python("websockets/blocking.py", "client"), _WEBSOCKETS, 3, _THREADED_TLS),
    Peer("websockets.sync", "server", _python("websockets/blocking.py", "server"), _WEBSOCKETS, 3, _THREADED_TLS),
    Peer("aiohttp", "client", _python("aiohttp/peer.py", "client"), {**_AIOHTTP, "tell the body": _HIDDEN}),
    Peer(
        "aiohttp",
        "server",
        _python("aiohttp/peer.py", "server"),
        {**_AIOHTTP, "prefer a subprotocol": "it takes the client's"},
    ),
    Peer("picows", "client", _python("picows/peer.py", "client"), _PICOWS),
    Peer("picows", "server", _python("picows/peer.py", "server"), _PICOWS),
    Peer(
        "picows.websockets",
        "client",
        _python("websockets/peer.py", "client", "picows.websockets"),
        _PICOWS_WEBSOCKETS,
    ),
    Peer(
        "picows.websockets",
        "server",
        _python("websockets/peer.py", "server", "picows.websockets"),
        {
            **_PICOWS_WEBSOCKETS,
            "grant no context takeover": "it accepts the offer without, which RFC 7692 forbids",
            "limit windows": "it accepts the offer without, which RFC 7692 forbids",
        },
    ),
    Peer(
        "websocket-client",
        "client",
        _python("websocket-client/peer.py", "client"),
        {
            "compress": _NO_COMPRESSION,
            "compress what it sends": _NO_COMPRESSION,
            "ask for no context takeover": _NO_COMPRESSION,
            "keep alive": "only its callbacks have it",
            "echo the code": "it answers with 1000",
            "go without a subprotocol": _FAILS,
            "limit messages": "it has none",
            "close without a code": _ONE_CLOSE,
        },
    ),
    Peer("ws", "client", _node("ws.mjs", "client"), {"keep alive": _NO_KEEPALIVE, "go without a subprotocol": _FAILS}),
    Peer("ws", "server", _node("ws.mjs", "server"), {"keep alive": _NO_KEEPALIVE}),
    Peer(
        "node",
        "client",
        _node("builtin.mjs", "client", *NODE_FLAGS),
        {**_WEB, "compress what it sends": "it compresses nothing", "take 10 MB compressed": "it takes 4 MiB at most"},
    ),
    Peer("coder", "client", _go("client"), {"keep alive": _NO_KEEPALIVE}),
    Peer(
        "coder",
        "server",
        _go("server"),
        {"keep alive": _NO_KEEPALIVE, "limit windows": "Go compresses with windows of 32 KiB only"},
    ),
    Peer(
        "java",
        "client",
        _JAVA,
        {
            "compress": _NO_COMPRESSION,
            "compress what it sends": _NO_COMPRESSION,
            "ask for no context takeover": _NO_COMPRESSION,
            "keep alive": _NO_KEEPALIVE,
            "limit messages": "it has none",
            "tell the body": _HIDDEN,
            "close without a code": _ONE_CLOSE,
        },
        # Java 17 fails once in some hundred connections, with any server: it stops in the middle of 10 MB that have
        # arrived, misses the end of a stream right after a message, or misreads the header of one of many small frames.
        tries=3,
    ),
    Peer(
        "chromium",
        "client",
        _python("chromium/peer.py", "client"),
        {**_WEB, "send headers": "its API sends none"},
    ),
]
