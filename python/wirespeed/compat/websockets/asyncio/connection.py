"""The asyncio connection with the attributes of websockets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, Any

from ...._connection import State
from ...._native import broadcast as _broadcast
from ....asyncio._broadcasting import report, reusable
from ....asyncio._connection import Connection as _Connection
from ....close_codes import CloseCode
from ....typing import BytesLike, Data, DataLike
from .. import _heads as heads
from .. import protocol as protocols
from .._installed import private
from .._settings import adapter, check_code, close_timeout
from .._views import AsyncMessages, ProtocolView, TransportView

__all__ = ["Connection", "use_native"]


class Connection(_Connection):
    """A WebSocket connection; see :class:`wirespeed.asyncio.Connection`.

    Attributes:
        protocol: View of the connection with the names of a Sans-I/O protocol.
        loop: The event loop.
        ping_interval: The argument of ``connect`` or ``serve``.
        ping_timeout: The argument of ``connect`` or ``serve``.
    """

    protocol: Any
    _changed_request: Any = None
    loop: Any

    def __new__(cls, protocol: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Create the connection from the arguments that its protocol carries."""
        if not isinstance(protocol, ProtocolView):
            raise TypeError(f"protocol must be what connect() or serve() passes, not {type(protocol).__name__}")
        opened, native = protocol._take()
        loop = native["loop"]
        connection = super().__new__(cls, opened, **native)
        protocol._bind(connection)
        connection.protocol = protocol
        connection.loop = loop
        return connection

    def __init__(
        self,
        protocol: Any,
        *,
        ping_interval: float | None = 20,
        ping_timeout: float | None = 20,
        close_timeout: float | None = 10,
        max_queue: int | tuple[int | None, int | None] | None = 16,
        write_limit: int | tuple[int, int | None] = 2**15,
    ) -> None:
        # The connection already uses these arguments; they are stored for applications.
        self.ping_interval = ping_interval
        self.ping_timeout = ping_timeout
        self.close_timeout = close_timeout

    # Coroutine functions, which AsyncMock and create_autospec detect. Connections use the native methods: see
    # use_native. Type checkers see the inherited methods.
    if not TYPE_CHECKING:

        async def recv(self, decode: bool | None = None) -> Any:
            """Receive the next message; see :meth:`wirespeed.asyncio.Connection.recv`.

            Args:
                decode: ``None`` for ``str`` from text and ``bytes`` from binary messages, ``True`` for always
                    ``str``, ``False`` for always ``bytes``.
            """
            return await super().recv(decode)

        async def send(
            self,
            message: Any,
            *,
            text: bool | None = None,
            compress: bool | None = None,
        ) -> None:
            """Send a message; see :meth:`wirespeed.asyncio.Connection.send`.

            Args:
                message: ``str`` for a text message, bytes-like for a binary message, or an iterable of its fragments.
                text: ``True`` to send bytes as text, ``False`` to send ``str`` as binary.
                compress: ``False`` to send this message uncompressed.
            """
            await super().send(message, text=text, compress=compress)

    def __aiter__(self) -> AsyncGenerator[Data, None]:  # type: ignore[override]
        # Generators, as in websockets: leaving an iteration early closes the generator, not the connection.
        natives = (_Connection.recv.__get__(self), Connection.recv.__get__(self))
        return AsyncMessages(self) if self.recv in natives else self._received()

    async def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Close the connection; see :meth:`wirespeed.asyncio.Connection.close`.

        Args:
            code: Close code.
            reason: Close reason, at most 123 bytes of UTF-8.

        Raises:
            ProtocolError: The code or the reason is not allowed in a close frame.
        """
        if self._state == State.OPEN:
            check_code(code)
        await super().close(code, reason)

    close_timeout = close_timeout

    @property
    def close_code(self) -> int | None:
        """Close code received, ``None`` if the connection is not closed."""
        code: int | None = self.protocol.close_code
        return code

    @property
    def close_reason(self) -> str | None:
        """Close reason received, ``None`` if the connection is not closed."""
        reason: str | None = self.protocol.close_reason
        return reason

    @property
    def state(self) -> Any:
        """State of the connection."""
        return protocols.State(self._state)

    @property
    def transport(self) -> TransportView:
        """View of the connection with the names of a transport."""
        return TransportView(self)

    @property
    def logger(self) -> Any:
        """Logger whose records have the connection as attribute ``websocket``."""
        return adapter(super().logger, self)

    @property
    def debug(self) -> bool:
        """Whether the logger is enabled for DEBUG."""
        return bool(super().logger.isEnabledFor(10))

    @property
    def request(self) -> Any:
        """The request of the opening handshake."""
        return self._changed_request or self._head("_request", heads.request, super().request)

    @property
    def response(self) -> Any:
        """The response of the opening handshake; ``None`` before it is sent."""
        return self._head("_response", heads.response, super().response)

    def _head(self, name: str, adapt: Any, head: Any) -> Any:
        if head is None:
            return None
        known = self.__dict__.get(name)
        if known is None or known[0] is not head:
            known = self.__dict__[name] = (head, adapt(head))
        return known[1]


def use_native(kind: type[Connection]) -> None:
    """Give a class the native ``recv`` and ``send`` instead of those of this module, which cost one coroutine more.

    Args:
        kind: A class of connections that users do not name: classes that they name keep the coroutine functions.
    """
    for name in ("recv", "send"):
        if getattr(kind, name) is vars(Connection)[name]:
            setattr(kind, name, getattr(_Connection, name))


def broadcast(
    connections: Iterable[Connection],
    message: DataLike,
    *,
    text: bool | None = None,
    raise_exceptions: bool = False,
) -> None:
    """Send a message to many connections without waiting, and without a limit for unsent bytes.

    The message is encoded once. Connections that are not open are ignored.

    Args:
        connections: The connections.
        message: ``str`` for a text message, bytes-like for a binary message.
        text: ``True`` to send bytes as text, ``False`` to send ``str`` as binary.
        raise_exceptions: Whether to raise an ``ExceptionGroup`` if connections missed the message.

    Raises:
        TypeError: The message has a wrong type.
    """
    if not isinstance(message, (str, BytesLike)):
        raise TypeError("data must be str or bytes")
    connections = reusable(connections)
    _, missed = _broadcast(connections, message, text, "buffer")
    report(connections, missed, raise_exceptions)


broadcast.__module__ = "wirespeed.compat.websockets.asyncio.server"


def __getattr__(name: str) -> Any:
    return private("asyncio.connection", name)
