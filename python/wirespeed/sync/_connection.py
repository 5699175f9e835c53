"""The connection of the blocking API.

What a message passes through is native; here is what is called seldom.
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

from .._annotations import Self
from .._connection import codec
from .._connection.state import State
from .._connection.status import ConnectionStatus
from .._lazy import uuid
from .._native import BlockingConnection, Opened, Ping
from ..close_codes import CloseCode
from ..exceptions import ConcurrencyError, ConnectionClosedOK
from ..typing import Data, LoggerLike

__all__ = ["ClientConnection", "Connection", "Ping"]


class _Turn:
    """That of a ``recv_streaming``: it ends with its generator."""


class Connection(ConnectionStatus, BlockingConnection):
    """A WebSocket connection for threads that wait.

    It is a context manager that closes the connection, with code 1000, or 1011 after an exception. Iterating over it
    yields messages until the connection is closed; a clean close, with code 1000 or 1001, ends the iteration.

    Threads may share it: any number may send and receive at once. It has no threads of its own: pings are answered, and
    its own keepalive is sent, while a thread receives, waits for a pong, or waits for room to send.

    Attributes:
        logger: The logger given to ``connect`` or ``serve``.
        local_address: Address of this end, as ``socket.getsockname()`` returned it when the connection was opened.
        remote_address: Address of the other end, that of the proxy if there is one.
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
        # Late in the end of the interpreter the names of this module are gone, and the system closes what is open.
        if contextlib is None:
            return
        # A constructor that raised leaves an object without attributes.
        with contextlib.suppress(AttributeError):
            # One that is closing has told so by an exception: it needs no second word. After a fork, the
            # parent closes.
            if self._state == State.OPEN and self._pid == os.getpid():
                with contextlib.suppress(ImportError):  # the interpreter ends: nobody would be told
                    warnings.warn(f"unclosed connection {self!r}", ResourceWarning, source=self, stacklevel=1)
            self._leave(CloseCode.GOING_AWAY)

    @functools.cached_property
    def id(self) -> uuid.UUID:
        """A UUID, for logs."""
        # Made when somebody asks. Of two threads that ask at once, both get the one that came first.
        made: uuid.UUID = vars(self).setdefault("id", uuid.uuid4())
        return made

    # Receiving.

    def __iter__(self) -> Iterator[Data]:  # type: ignore[override]
        # The native iterator does not call recv, which a subclass may have overridden, or a program replaced.
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
            decode: ``None`` for ``str`` from text and ``bytes`` from binary messages, ``True`` and ``False`` for always
                the one or the other.

        Yields:
            The fragments. Text is cut between characters, so a fragment may be shorter than it was on the wire.

        Raises:
            ConnectionClosed: The connection was closed before the end of the message.
            ConcurrencyError: Another thread is in this method.
        """
        # A signal handler may raise anywhere: if it keeps this from giving its turn back, the turn ends with it.
        turn = _Turn()
        mine: weakref.ref[_Turn] | None = None
        # It may raise when the first fragment is taken, too, and not yet known here. Where none is, there is nothing to
        # drop.
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

    # Values.

    def send_json(self, value: Any, *, compress: bool | None = None) -> None:
        """Send a value as JSON, in a text message. Needs ``wirespeed[codecs]``.

        Args:
            value: What msgspec can encode: builtin types, dataclasses, ``msgspec.Struct``, datetimes and more.
            compress: As for :meth:`send`.

        Raises:
            ConnectionClosed: The connection is closed.
            TypeError: The value has no JSON form.
        """
        self.send(codec.JSON.encode(value), text=True, compress=compress)

    def recv_json(self, type: Any = Any, timeout: float | None = None) -> Any:  # noqa: A002 - the word of msgspec
        """Receive a message and decode it as JSON. Needs ``wirespeed[codecs]``.

        Args:
            type: What it must be: any type that msgspec knows.
            timeout: Seconds to wait, ``None`` for no limit.

        Raises:
            TimeoutError: No message arrived in time.
            ConnectionClosed: The connection is closed.
            msgspec.ValidationError: The message is not of that type.
            msgspec.DecodeError: The message is not JSON.
        """
        decode = codec.JSON.decoder(type)
        return decode(self.recv(timeout, decode=False))

    def send_msgpack(self, value: Any, *, compress: bool | None = None) -> None:
        """Send a value as MessagePack, in a binary message. Needs ``wirespeed[codecs]``.

        Args:
            value: As for :meth:`send_json`.
            compress: As for :meth:`send`.

        Raises:
            ConnectionClosed: The connection is closed.
            TypeError: The value has no MessagePack form.
        """
        self.send(codec.MSGPACK.encode(value), compress=compress)

    def recv_msgpack(self, type: Any = Any, timeout: float | None = None) -> Any:  # noqa: A002 - the word of msgspec
        """Receive a message and decode it as MessagePack. Needs ``wirespeed[codecs]``.

        Args:
            type: As for :meth:`recv_json`.
            timeout: Seconds to wait, ``None`` for no limit.

        Raises:
            TimeoutError: No message arrived in time.
            ConnectionClosed: The connection is closed.
            msgspec.ValidationError: The message is not of that type.
            msgspec.DecodeError: The message is not MessagePack.
        """
        decode = codec.MSGPACK.decoder(type)
        return decode(self.recv(timeout, decode=False))


class ClientConnection(Connection):
    """The connection of a client, made by :func:`wirespeed.sync.connect`."""
