"""The blocking connection with the attributes of websockets."""

from __future__ import annotations

import builtins
import concurrent.futures
import math
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

from .... import exceptions
from ...._connection import State
from ....close_codes import CloseCode
from ....sync._connection import Connection as _Connection
from ....typing import BytesLike, Data, DataLike
from .. import _heads as heads
from .. import protocol as protocols
from .._installed import private
from .._settings import adapter, check_code, close_timeout
from .._views import Messages, ProtocolView, SocketView, socket_view

__all__ = ["Connection"]

# Maximum number of seconds that one native call waits.
_MAX_WAIT = 3600.0


class Pong(threading.Event):
    """The event that a pong sets. Waiting for it receives, because the connection has no thread that does.

    Args:
        ping: The ping.
        ack_on_close: Whether the end of the connection also sets the event.
    """

    def __init__(self, ping: Any, ack_on_close: bool) -> None:
        super().__init__()
        self._ping = ping
        self._ack_on_close = ack_on_close

    def is_set(self) -> bool:
        """Return whether the event is set, by the pong or otherwise."""
        if not super().is_set() and (self._ping.is_set() or (self._ack_on_close and self._ping._has_failed())):
            self.set()
        return super().is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the pong.

        Args:
            timeout: Seconds to wait, ``None`` for no limit.

        Returns:
            Whether the pong has arrived.
        """
        if self.is_set():
            return True
        try:
            self._ping.wait(timeout)
        except TimeoutError:
            return False
        except exceptions.ConnectionClosed:
            if not self._ack_on_close:
                # The pong will never arrive, so do not wait.
                return False
        self.set()
        return True


class Connection(_Connection):
    """A WebSocket connection; see :class:`wirespeed.sync.ClientConnection`.

    Attributes:
        protocol: View of the connection with the names of a Sans-I/O protocol.
        ping_interval: The argument of ``connect`` or ``serve``.
        ping_timeout: The argument of ``connect`` or ``serve``.
    """

    protocol: Any
    _changed_request: Any = None

    def __new__(cls, _sock: Any, protocol: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Create the connection from the arguments that its protocol carries."""
        if not isinstance(protocol, ProtocolView):
            raise TypeError(f"protocol must be what connect() or serve() passes, not {type(protocol).__name__}")
        opened, native = protocol._take()
        connection = super().__new__(cls, opened, **native)
        _Connection.__init__(connection, opened, **native)
        connection.logger = adapter(connection.logger, connection)
        protocol._bind(connection)
        connection.protocol = protocol
        return connection

    def __init__(
        self,
        sock: Any,
        protocol: Any,
        *,
        ping_interval: float | None = 20,
        ping_timeout: float | None = 20,
        close_timeout: float | None = 10,
        max_queue: int | tuple[int | None, int | None] | None = 16,
    ) -> None:
        # The connection already uses these arguments; they are stored for applications.
        self.ping_interval = ping_interval
        self.ping_timeout = ping_timeout
        self.close_timeout = close_timeout

    def __iter__(self) -> Iterator[Data]:  # type: ignore[override]
        # Generators, as in websockets: leaving an iteration early closes the generator, not the connection.
        return Messages(self) if self.recv == _Connection.recv.__get__(self) else self._received()

    def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Close the connection; see :meth:`wirespeed.sync.ClientConnection.close`.

        Args:
            code: Close code.
            reason: Close reason, at most 123 bytes of UTF-8.

        Raises:
            ProtocolError: The code or the reason is not allowed in a close frame.
        """
        if self._state == State.OPEN:
            check_code(code)
        super().close(code, reason)

    close_timeout = close_timeout

    @property
    def state(self) -> Any:
        """State of the connection."""
        return protocols.State(self._state)

    @property
    def socket(self) -> SocketView:
        """View of the socket of the connection."""
        return socket_view(self)

    @property
    def debug(self) -> bool:
        """Whether the logger is enabled for DEBUG."""
        return bool(self.logger.isEnabledFor(10))

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

    def ping(self, data: DataLike | None = None, *, ack_on_close: bool = False) -> Any:  # type: ignore[override]
        """Send a ping.

        Args:
            data: Payload of at most 125 bytes; ``None`` for random data.
            ack_on_close: Whether the end of the connection also sets the event.

        Returns:
            An event that the pong sets. Waiting for it receives, unless another thread does.
        """
        return Pong(super().ping(data), ack_on_close)

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the connection is closed. Messages that arrive meanwhile are kept, up to the limit of the queue.

        Args:
            timeout: Seconds to wait, ``None`` for no limit.

        Returns:
            Whether it is closed.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while self.state is not protocols.State.CLOSED:
            left = end - time.monotonic()
            # If messages fill the queue, a wait with a timeout lasts until another thread receives.
            if not self._wait_closed(max(0.0, min(left, _MAX_WAIT))) and left <= _MAX_WAIT:
                return False
        return True


def broadcast(
    connections: Iterable[Connection],
    message: DataLike,
    *,
    raise_exceptions: bool = False,
    text: bool | None = None,
    **kwargs: Any,
) -> None:
    """Send a message to many connections with a pool of threads. Connections that are not open are ignored.

    Args:
        connections: The connections.
        message: ``str`` for a text message, bytes-like for a binary message.
        raise_exceptions: Whether to raise an ``ExceptionGroup`` if connections missed the message.
        text: ``True`` to send bytes as text, ``False`` to send ``str`` as binary.
        **kwargs: As for ``concurrent.futures.ThreadPoolExecutor``.

    Raises:
        TypeError: The message has a wrong type.
    """
    if not isinstance(message, (str, BytesLike)):
        raise TypeError("data must be str or bytes")
    failures: list[Exception] = []

    def send(connection: Connection) -> None:
        if connection.state is not protocols.State.OPEN:
            return
        failure: type[Exception]
        cause: Exception | None
        try:
            connection.send(message, text=text)
        except exceptions.ConcurrencyError:
            reason, cause, failure = "sending a fragmented message", None, exceptions.ConcurrencyError
        except Exception as exc:
            reason, cause, failure = "failed to write message", exc, RuntimeError
        else:
            return
        if raise_exceptions:
            failures.append(failure(reason))
            failures[-1].__cause__ = cause
        else:
            if cause is not None:
                reason += f": {traceback.format_exception_only(type(cause), cause)[0].strip()}"
            connection.logger.warning("skipped broadcast: %s", reason)

    with concurrent.futures.ThreadPoolExecutor(**kwargs) as executor:
        list(executor.map(send, connections))
    if failures:
        # Python 3.10 has no exception groups: raise the first exception.
        group = getattr(builtins, "ExceptionGroup", None)
        raise failures[0] if group is None else group("skipped broadcast", failures)


broadcast.__module__ = "wirespeed.compat.websockets.sync.server"


def __getattr__(name: str) -> Any:
    return private("sync.connection", name)
