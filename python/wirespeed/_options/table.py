"""The options of ``connect`` and ``serve``: one entry for each, for both APIs.

``scripts/generate_options.py`` writes the signatures and docstrings of the functions, and the attributes of the classes
in :mod:`client` and :mod:`server`, from this table. The tests are parametrised over it. The library does not import it.
The native core, ``crates/python/src/options.rs``, checks the values that have a ``check`` other than :class:`Function`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

__all__ = ["OPTIONS", "Check", "Count", "Flag", "Function", "Option", "Pair", "Seconds", "Text", "Tokens"]

CONNECT = "connect"
SYNC_CONNECT = "sync.connect"
SERVE = "serve"
SYNC_SERVE = "sync.serve"

EVERYWHERE = (CONNECT, SYNC_CONNECT, SERVE, SYNC_SERVE)
CLIENTS = (CONNECT, SYNC_CONNECT)
SERVERS = (SERVE, SYNC_SERVE)
ASYNCIO = (CONNECT, SERVE)


class Check:
    """Which values an option accepts."""


@dataclasses.dataclass(frozen=True)
class Seconds(Check):
    """A number of seconds, or ``None`` for no limit. Only with ``zero`` it may be 0."""

    zero: bool = True


@dataclasses.dataclass(frozen=True)
class Count(Check):
    """An int from ``least`` to ``2**bits - 1``; with ``required``, ``None`` is not allowed."""

    least: int
    bits: int
    required: bool = False


@dataclasses.dataclass(frozen=True)
class Pair(Check):
    """An int, ``None``, or a pair of these. With ``marks``, the second is a low mark for event loops."""

    marks: bool = False
    required: bool = False


@dataclasses.dataclass(frozen=True)
class Text(Check):
    """A str or ``None``."""


@dataclasses.dataclass(frozen=True)
class Flag(Check):
    """A bool."""


@dataclasses.dataclass(frozen=True)
class Tokens(Check):
    """A list of tokens of RFC 9110, or ``None``."""


@dataclasses.dataclass(frozen=True)
class Function(Check):
    """A function; with ``required``, ``None`` is not allowed. Python code checks it."""

    required: bool = True


@dataclasses.dataclass(frozen=True)
class Option:
    """One keyword argument.

    Attributes:
        name: Its name.
        type: Its annotation, for each function or for all.
        default: Its default, as source code.
        doc: Its description, for each function or for all. Functions without one refer to that of the client.
        functions: The functions that have it.
        check: Which values are accepted; ``None`` for a check of its own.
        section: A heading in the signature; options without one belong to that of the option before.
        unix: Whether ``unix_connect`` and ``unix_serve`` have it.
    """

    name: str
    type: str | Mapping[str, str]
    default: str
    doc: str | Mapping[str, str]
    functions: tuple[str, ...] = EVERYWHERE
    check: Check | None = None
    section: str | None = None
    unix: bool = True


OPTIONS = (
    Option(
        "sock",
        "socket_module.socket | None",
        "None",
        {
            CONNECT: (
                "Connected TCP or Unix socket to use. It serves one connection, which takes it over and closes it."
            ),
            SYNC_CONNECT: "Connected TCP or Unix socket to use. The connection takes it over and closes it.",
            SERVE: "Bound socket to listen on, instead of ``host`` and ``port``. The server closes it.",
        },
        section="TCP and TLS",
    ),
    Option(
        "ssl",
        {CONNECT: "TLS | ssl_module.SSLContext | bool | None", SERVE: "TLS | ssl_module.SSLContext | None"},
        "None",
        {
            CONNECT: (
                "TLS settings of a ``wss://`` URI: ``None`` or ``True`` for the authorities that the system "
                "trusts, a :class:`wirespeed.TLS` (native, fast), or an ``ssl.SSLContext`` (all its settings "
                "apply; slower)."
            ),
            SERVE: (
                ":class:`wirespeed.TLS` with a certificate (native, fast) or an ``ssl.SSLContext``; ``None`` for"
                " no TLS."
            ),
        },
    ),
    Option(
        "server_hostname",
        "str | None",
        "None",
        "Name that the certificate of the server must have, if it is not the host of the URI. After a redirect to "
        "another host, the certificate must have the name of that host.",
        functions=CLIENTS,
        check=Text(),
    ),
    Option(
        "host",
        "str | None",
        "None",
        "Host to connect to instead of the host of the URI, also through a proxy. The certificate and the request "
        "still use the host of the URI.",
        functions=CLIENTS,
        check=Text(),
        unix=False,
    ),
    Option(
        "port",
        "int | None",
        "None",
        "Port to connect to instead of the port of the URI.",
        functions=CLIENTS,
        check=Count(0, 16),
        unix=False,
    ),
    Option(
        "local_addr",
        "tuple[str, int] | None",
        "None",
        "Host and port to connect from.",
        functions=CLIENTS,
        unix=False,
    ),
    Option(
        "family",
        "int",
        "0",
        "``socket.AF_INET`` or ``socket.AF_INET6`` to use only such addresses, 0 for both.",
        unix=False,
    ),
    Option(
        "happy_eyeballs_delay",
        "float | None",
        "HAPPY_EYEBALLS_DELAY",
        "Seconds after which the next address of a name is tried in parallel; ``None`` to try it only after a failure.",
        functions=CLIENTS,
        check=Seconds(),
        unix=False,
    ),
    Option(
        "flags",
        "int",
        "socket_module.AI_PASSIVE",
        "As for ``socket.getaddrinfo``.",
        functions=SERVERS,
        unix=False,
    ),
    Option(
        "backlog",
        "int",
        "4096",
        "Number of connections that the system keeps until they are accepted.",
        functions=SERVERS,
        check=Count(0, 31, required=True),
    ),
    Option(
        "reuse_address",
        "bool | None",
        "None",
        "Whether to bind an address that has connections in the state TIME_WAIT; by default on POSIX.",
        functions=SERVERS,
        unix=False,
    ),
    Option(
        "reuse_port",
        "bool | None",
        "None",
        "Whether several sockets, for example of several processes, may listen on the port.",
        functions=SERVERS,
        unix=False,
    ),
    Option(
        "start_serving",
        "bool",
        "True",
        "Whether to accept connections at once; if not, call :meth:`Server.start_serving`.",
        functions=(SERVE,),
    ),
    Option(
        "origin",
        "Origin | str | None",
        "None",
        "Value of the Origin header, for servers that check it.",
        functions=CLIENTS,
        check=Text(),
        section="WebSocket",
    ),
    Option(
        "subprotocols",
        "Sequence[Subprotocol | str] | None",
        "None",
        {
            CONNECT: "Subprotocols to offer, in order of preference.",
            SERVE: "Subprotocols to accept, in order of preference.",
        },
        check=Tokens(),
    ),
    Option(
        "compression",
        "Deflate | str | None",
        '"deflate"',
        {
            CONNECT: (
                '``"deflate"`` to offer permessage-deflate (RFC 7692), a :class:`wirespeed.Deflate` to offer '
                "it with other settings, ``None`` for no compression."
            ),
            SERVE: (
                '``"deflate"`` to accept permessage-deflate (RFC 7692), a :class:`wirespeed.Deflate` to accept '
                "it with other settings, ``None`` for no compression."
            ),
        },
    ),
    Option(
        "origins",
        "Sequence[Origin | str | re.Pattern[str] | None] | None",
        "None",
        "Accepted values of the Origin header: ``str`` for an exact value, patterns of :mod:`re` that must match the "
        "whole value, ``None`` for a missing header. This protects against web pages of other sites. By default, all "
        "are accepted.",
        functions=SERVERS,
    ),
    Option(
        "select_subprotocol",
        "_SelectSubprotocol | None",
        "None",
        "Called with the connection and the list of subprotocols that the client offers; returns one of them or "
        "``None``. It may raise :exc:`NegotiationError`.",
        functions=SERVERS,
        check=Function(required=False),
    ),
    Option(
        "additional_headers",
        "HeadersLike | None",
        "None",
        "Headers to add to the request.",
        functions=CLIENTS,
        section="HTTP",
    ),
    Option(
        "user_agent_header",
        "str | None",
        "USER_AGENT",
        "Value of the User-Agent header, ``None`` for no header.",
        functions=CLIENTS,
        check=Text(),
    ),
    Option(
        "proxy",
        "str | Literal[True] | None",
        "True",
        "``True`` to use the proxy of the environment or the system, ``None`` for no proxy, or the URL of a proxy "
        "(``http``, ``https``, ``socks4``, ``socks4a``, ``socks5`` or ``socks5h``). SOCKS needs ``wirespeed[socks]``.",
        functions=CLIENTS,
        unix=False,
    ),
    Option(
        "proxy_ssl",
        "TLS | ssl_module.SSLContext | bool | None",
        "None",
        "TLS settings for an ``https`` proxy, as for ``ssl``.",
        functions=CLIENTS,
        unix=False,
    ),
    Option(
        "proxy_server_hostname",
        "str | None",
        "None",
        "Name that the certificate of the proxy must have, if it is not the host of its URL.",
        functions=CLIENTS,
        check=Text(),
        unix=False,
    ),
    Option(
        "process_request",
        "_ProcessRequest | None",
        "None",
        {
            SERVE: (
                "Function or coroutine function, called with the connection and the request. Returns ``None`` to"
                ' go on, or a response to send instead, such as ``connection.respond(404, "...")``.'
            ),
            SYNC_SERVE: (
                "Called with the connection and the request. Returns ``None`` to go on, or a response to "
                'send instead, such as ``connection.respond(404, "...")``.'
            ),
        },
        functions=SERVERS,
        check=Function(required=False),
    ),
    Option(
        "process_response",
        "_ProcessResponse | None",
        "None",
        {
            SERVE: (
                "Function or coroutine function, called with the connection, the request and the response, which"
                " it may change. Returns ``None``, or another response to send instead."
            ),
            SYNC_SERVE: (
                "Called with the connection, the request and the response, which it may change. Returns "
                "``None``, or another response to send instead."
            ),
        },
        functions=SERVERS,
        check=Function(required=False),
    ),
    Option(
        "server_header",
        "str | None",
        "SERVER",
        "Value of the Server header, ``None`` for no header.",
        functions=SERVERS,
        check=Text(),
    ),
    Option(
        "process_exception",
        "Callable[[Exception], Exception | None]",
        "process_exception",
        "Decides whether an error of connecting is transient: returns ``None`` to let the iterator try again, or an "
        "exception to raise.",
        functions=(CONNECT,),
        check=Function(),
        section="Reconnecting",
    ),
    Option(
        "reconnect_delays",
        "Callable[[], Iterable[float]]",
        "backoff",
        "Returns an iterable of the seconds between the attempts of the iterator. It is called again after a "
        "connection that lasted longer than the last delay. The iterator waits longer, up to six hours, if a response"
        " has a Retry-After header. When the delays end, the iterator logs a warning and stops.",
        functions=(CONNECT,),
        check=Function(),
    ),
    Option(
        "reconnect_after_close",
        "bool",
        "False",
        "Whether the iterator reconnects after a connection was closed with code 1000 or without a code.",
        functions=(CONNECT,),
        check=Flag(),
    ),
    Option(
        "refresh",
        "Callable[[ConnectAttempt], Awaitable[None] | None] | None",
        "None",
        "Function or coroutine function, called before each attempt with a :class:`ConnectAttempt`. It may change the"
        " URI and the headers, for example to set a new token. ``open_timeout`` includes it.",
        functions=(CONNECT,),
        check=Function(required=False),
    ),
    Option(
        "open_timeout",
        "float | None",
        "10",
        {
            CONNECT: (
                "Seconds until the connection must be open, redirects included. Each attempt of the iterator "
                "has its own timeout. ``None`` for no limit."
            ),
            SYNC_CONNECT: (
                "Seconds until the connection must be open, redirects included; ``None`` for no limit. "
                "Resolving a name is done by the system, and may take longer."
            ),
            SERVE: "Seconds for the opening handshake, TLS and ``process_request`` included; ``None`` for no limit.",
            SYNC_SERVE: "Seconds for TLS and the request; ``None`` for no limit.",
        },
        check=Seconds(),
        section="Timeouts",
    ),
    Option(
        "ping_interval",
        "float | None",
        "20",
        {
            CONNECT: "Seconds between keepalive pings, ``None`` for no pings.",
            SYNC_CONNECT: (
                "Seconds between keepalive pings, ``None`` for no pings. They are sent while a thread "
                "receives or waits."
            ),
        },
        check=Seconds(zero=False),
    ),
    Option(
        "ping_timeout",
        "float | None",
        "20",
        "Seconds without progress after an unanswered ping until the connection is closed with code 1011. Bytes that "
        "arrive, or that the peer acknowledges, are progress. ``None`` disables the timeout.",
        check=Seconds(zero=False),
    ),
    Option(
        "close_timeout",
        "float | None",
        "10",
        {
            CONNECT: "Seconds that closing waits for the server; ``None`` for no limit.",
            SERVE: "Seconds that closing waits for the client; ``None`` for no limit.",
        },
        check=Seconds(),
    ),
    Option(
        "max_size",
        "int | tuple[int | None, int | None] | None",
        "2**20",
        "Maximum size in bytes of a received message, after decompression; ``None`` for no limit. A pair also sets "
        "the maximum size of a fragment, as its second item.",
        check=Pair(),
        section="Limits",
    ),
    Option(
        "max_fragments",
        "int | None",
        "4096",
        "Maximum number of fragments of a received message; ``None`` for no limit.",
        check=Count(1, 32),
    ),
    Option(
        "max_queue",
        "int | tuple[int | None, int | None] | None",
        "16",
        {
            CONNECT: (
                "Number of received messages, or fragments, to keep for the application. Reading from the "
                "socket stops when both ``max_queue`` and ``max_queue_bytes`` are reached, and resumes when "
                "one of them is down to a quarter. A pair sets the high and the low mark. With ``None``, only "
                "the bytes count."
            ),
            SYNC_CONNECT: (
                "Number of received messages to keep while no thread receives: during waits for a pong or"
                " for room to send, and during closing. More messages are kept while their total is below"
                " 4 MiB. ``None`` for no limit. Of a pair, the first item counts."
            ),
        },
        check=Pair(marks=True),
    ),
    Option(
        "max_queue_bytes",
        "int | None",
        "QUEUE_BYTES",
        "The same limit in bytes; each message counts 64 bytes more than its size. With ``None``, only the number of "
        "messages counts; with both ``None``, there is no limit.",
        functions=ASYNCIO,
        check=Count(0, 62),
    ),
    Option(
        "write_limit",
        "int | tuple[int, int | None]",
        "2**15",
        "Unsent bytes to keep when the server does not read. With more, :meth:`ClientConnection.send` waits until "
        "they are down to a quarter. A pair sets the high and the low mark.",
        functions=ASYNCIO,
        check=Pair(marks=True, required=True),
    ),
    Option(
        "coalesce",
        "bool",
        "True",
        "Whether to collect the messages sent in one iteration of the event loop, except the first, and write them at"
        " its end with one system call. With ``False``, each ``send`` writes its message at once.",
        functions=ASYNCIO,
        check=Flag(),
    ),
    Option(
        "yield_after",
        "int",
        "1024",
        "Number of messages that a task can send without being suspended. After them, or after 256 KiB, ``send`` lets"
        " the event loop run. Receiving does so after each read from the socket.",
        functions=ASYNCIO,
        check=Count(1, 32, required=True),
    ),
    Option(
        "max_pending",
        "int",
        "1024",
        "Number of clients whose request, or TLS handshake, may be incomplete at the same time. New clients are "
        "accepted all the same: above the limit, the server closes a client that was silent for at least a second. It"
        " selects the address with most pending clients, and of these the one that was silent longest. Above 16 times"
        " the limit, a second of silence is not required. Complete requests do not count.",
        functions=SERVERS,
        check=Count(1, 62, required=True),
    ),
    Option(
        "io_backend",
        'Literal["fd", "transport"] | None',
        "None",
        'How the connection uses the socket: ``"fd"`` for a file descriptor that the loop watches, ``"transport"`` '
        "for a transport of the loop, ``None`` for the file descriptor if the loop can watch it. "
        ":attr:`ClientConnection.io_backend` returns the choice.",
        functions=ASYNCIO,
        section="The event loop",
    ),
    Option(
        "listener",
        {CONNECT: "Listener | None", SERVE: "Callable[[], Listener] | None"},
        "None",
        {
            CONNECT: ":class:`wirespeed.Listener` whose methods receive messages and events, instead of ``recv``.",
            SERVE: "Function that creates a :class:`wirespeed.Listener` for each connection, such as its class.",
        },
        functions=ASYNCIO,
        section="Callbacks",
    ),
    Option(
        "zero_copy",
        "bool",
        "False",
        {
            CONNECT: "Whether the listener gets binary messages as ``memoryview``, valid until its method returns.",
            SERVE: "Whether listeners get binary messages as ``memoryview``, valid until their method returns.",
        },
        functions=ASYNCIO,
        check=Flag(),
    ),
    Option(
        "logger",
        "LoggerLike | None",
        "None",
        {
            CONNECT: (
                "Logger for debugging, and for the reasons why the iterator reconnects; by default "
                "``wirespeed.client``."
            ),
            SYNC_CONNECT: "Logger for debugging, by default ``wirespeed.client``.",
            SERVE: "Logger of the server and its connections; by default ``wirespeed.server``.",
        },
        section="Logging",
    ),
    Option(
        "create_connection",
        {CONNECT: "_Create", SERVE: "Callable[..., ServerConnection] | None", SYNC_SERVE: "_Create"},
        "None",
        {
            CONNECT: "Subclass of :class:`ClientConnection` to create.",
            SERVE: "Subclass of :class:`ServerConnection` to create.",
        },
        section="Escape hatch",
    ),
)
