"""The blocking connection.

The native base class implements messages; this module implements the methods that are called less often.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import os
import warnings
import weakref
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any, Literal, overload

from .._connection import JSON, MSGPACK, ConnectionStatus, State
from .._lazy import uuid
from .._native import BlockingConnection, Opened, Ping
from ..close_codes import CloseCode
from ..exceptions import ConcurrencyError, ConnectionClosedOK
from ..typing import Data, LoggerLike, Self

__all__ = ["ClientConnection", "Connection", "Ping"]


class _Turn:
    """Marks a running ``recv_streaming``; it is freed together with the generator."""


class Connection(ConnectionStatus, BlockingConnection):
    """A WebSocket connection with blocking calls.

    As a context manager it closes the connection with code 1000, or with 1011 after an exception. Iterating over it
    yields messages until the connection is closed. A close with code 1000, 1001 or no code ends the iteration; any
    other end raises.

    Threads may share it: any number may send and receive at the same time. It starts no threads. Pings are answered,
    and keepalive pings are sent, while a thread receives, waits for a pong, or waits for room to send.

    Attributes:
        logger: The logger given to ``connect`` or ``serve``.
        local_address: Address of this end, as ``socket.getsockname()`` returned it when the connection was opened.
        remote_address: Address of the other end; with a proxy, the address of the proxy.
    """

    def __init__(
        self, opened: Opened, *, logger: LoggerLike, local_address: Any = None, remote_address: Any = None
    ) -> None:
        self.logger = logger
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(CloseCode.NORMAL_CLOSURE if exc_type is None else CloseCode.INTERNAL_ERROR)

    def __del__(self) -> None:
        # At the end of the interpreter the names of this module are gone; the system closes the socket.
        if contextlib is None:
            return
        # The object has no attributes if its constructor raised.
        with contextlib.suppress(AttributeError):
            # A connection that is closing has already raised an exception, and needs no warning. After a fork, the
            # parent process closes the connection.
            if self._state == State.OPEN and self._pid == os.getpid():
                with contextlib.suppress(ImportError):  # the interpreter shuts down: warnings cannot be shown
                    warnings.warn(f"unclosed connection {self!r}", ResourceWarning, source=self, stacklevel=1)
            self._leave(CloseCode.GOING_AWAY)

    @functools.cached_property
    def id(self) -> uuid.UUID:
        """A UUID, for logs."""
        # Created on first use. If two threads create it at the same time, both get the first.
        made: uuid.UUID = vars(self).setdefault("id", uuid.uuid4())
        return made

    # Receiving.

    def __iter__(self) -> Iterator[Data]:  # type: ignore[override]
        # The native iterator does not call recv, which may be overridden or replaced.
        return self if self.recv == BlockingConnection.recv.__get__(self) else self._received()

    def _received(self) -> Generator[Data, None, None]:
        with contextlib.suppress(ConnectionClosedOK):
            while True:
                yield self.recv()

    @overload
    def recv_streaming(self, decode: Literal[True]) -> Generator[str, None, None]: ...
    @overload
    def recv_streaming(self, decode: Literal[False]) -> Generator[bytes, None, None]: ...
    @overload
    def recv_streaming(self, decode: bool | None = None) -> Generator[Data, None, None]: ...
    def recv_streaming(self, decode: bool | None = None) -> Generator[Data, None, None]:
        """Receive the next message fragment by fragment, as the peer sent it.

        Leaving the iteration early drops the rest of the message.

        Args:
            decode: ``None`` for ``str`` from text and ``bytes`` from binary messages, ``True`` for always ``str``,
                ``False`` for always ``bytes``.

        Yields:
            The fragments. Text is split between characters, so a fragment may be shorter than the peer sent it.

        Raises:
            ConnectionClosed: The connection was closed before the end of the message.
            ConcurrencyError: Another thread is running this method.
        """
        # If the exception of a signal handler prevents the cleanup below, the weak reference dies with this generator.
        turn = _Turn()
        mine: weakref.ref[_Turn] | None = None
        # A signal handler may also raise before the first fragment arrives here: it is discarded too. If no message
        # has begun, there is nothing to discard.
        fin = False
        try:
            mine = weakref.ref(turn)
            other = vars(self).setdefault("_streaming", mine)
            if other is not mine:
                if other() is not None:
                    raise ConcurrencyError("recv_streaming is running in another place already")
                self._streaming = mine
            decoder = None
            while True:
                fragment, is_text, fin = self._recv_fragment()
                if decode is None:
                    decode = is_text
                if not decode:
                    yield fragment
                else:
                    if decoder is None:
                        decoder = codecs.getincrementaldecoder("utf-8")()
                    yield decoder.decode(fragment, fin)
                if fin:
                    return
        finally:
            if mine is not None and vars(self).get("_streaming") is mine:
                try:
                    if not fin:
                        self._discard_message()
                finally:
                    del self._streaming

    # JSON and MessagePack.

    def send_json(self, value: Any, *, compress: bool | None = None) -> None:
        """Send a value as JSON, in a text message. Needs ``wirespeed[codecs]``.

        Args:
            value: Any value that msgspec can encode: builtin types, dataclasses, ``msgspec.Struct``, datetimes, ...
            compress: As for :meth:`send`.

        Raises:
            ConnectionClosed: The connection is closed.
            TypeError: The value cannot be encoded as JSON.
        """
        self.send(JSON.encode(value), text=True, compress=compress)

    def recv_json(self, type: Any = Any, timeout: float | None = None) -> Any:  # noqa: A002 - the word of msgspec
        """Receive a message and decode it as JSON. Needs ``wirespeed[codecs]``.

        Args:
            type: Expected type: any type that msgspec supports.
            timeout: Seconds to wait, ``None`` for no limit.

        Raises:
            TimeoutError: No message arrived in time.
            ConnectionClosed: The connection is closed.
            msgspec.ValidationError: The message does not match the type.
            msgspec.DecodeError: The message is not JSON.
        """
        decode = JSON.decoder(type)
        return decode(self.recv(timeout, decode=False))

    def send_msgpack(self, value: Any, *, compress: bool | None = None) -> None:
        """Send a value as MessagePack, in a binary message. Needs ``wirespeed[codecs]``.

        Args:
            value: As for :meth:`send_json`.
            compress: As for :meth:`send`.

        Raises:
            ConnectionClosed: The connection is closed.
            TypeError: The value cannot be encoded as MessagePack.
        """
        self.send(MSGPACK.encode(value), compress=compress)

    def recv_msgpack(self, type: Any = Any, timeout: float | None = None) -> Any:  # noqa: A002 - the word of msgspec
        """Receive a message and decode it as MessagePack. Needs ``wirespeed[codecs]``.

        Args:
            type: As for :meth:`recv_json`.
            timeout: Seconds to wait, ``None`` for no limit.

        Raises:
            TimeoutError: No message arrived in time.
            ConnectionClosed: The connection is closed.
            msgspec.ValidationError: The message does not match the type.
            msgspec.DecodeError: The message is not MessagePack.
        """
        decode = MSGPACK.decoder(type)
        return decode(self.recv(timeout, decode=False))


class ClientConnection(Connection):
    """The connection of a client, created by :func:`wirespeed.sync.connect`."""
