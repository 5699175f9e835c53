"""The asyncio client API of websockets, on connections of this package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Literal

from ....asyncio._client import Connecting as _Connecting
from ....asyncio._client import ReconnectingOptions
from ....asyncio._connection import ClientConnection as _ClientConnection
from ....typing import LoggerLike, Origin, PathLike, Subprotocol
from .. import _heads as heads
from .._client import Chain, Connecting, local_uri, options_with_chain
from .._installed import private
from .._settings import MAX_FRAGMENTS, not_negative
from .._views import ProtocolView
from ..client import backoff, process_exception
from ..extensions.permessage_deflate import deflate_of
from ..http11 import USER_AGENT
from ._network import client_network
from .connection import Connection, use_native

__all__ = ["connect", "unix_connect", "ClientConnection"]


class ClientConnection(Connection, _ClientConnection):
    """The connection of a client; see :class:`wirespeed.ClientConnection`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        use_native(cls)


_Made = type("ClientConnection", (ClientConnection,), {"__doc__": ClientConnection.__doc__, "__module__": __name__})


class connect(Connecting):  # noqa: N801 - as websockets
    """Connect to a WebSocket server. Await it, use it as a context manager, or iterate over it to reconnect.

    Arguments are those of ``websockets.asyncio.client.connect``; :class:`wirespeed.connect` explains most of them.
    """

    def __init__(
        self,
        uri: str,
        *,
        # WebSocket
        origin: Origin | None = None,
        extensions: Sequence[Any] | None = None,
        subprotocols: Sequence[Subprotocol] | None = None,
        compression: str | None = "deflate",
        # HTTP
        additional_headers: Any = None,
        user_agent_header: str | None = USER_AGENT,
        proxy: str | Literal[True] | None = True,
        process_exception: Callable[[Exception], Exception | None] = process_exception,
        # Timeouts
        open_timeout: float | None = 10,
        ping_interval: float | None = 20,
        ping_timeout: float | None = 20,
        close_timeout: float | None = 10,
        reconnect_delays: Callable[[], Generator[float, None, None]] = backoff,
        # Limits
        max_size: int | tuple[int | None, int | None] | None = 2**20,
        max_queue: int | tuple[int | None, int | None] | None = 16,
        write_limit: int | tuple[int, int | None] = 2**15,
        # Logging
        logger: LoggerLike | None = None,
        # Escape hatches
        create_connection: Callable[..., ClientConnection] | None = None,
        # For loop.create_connection
        **kwargs: Any,
    ) -> None:
        self._check(uri, kwargs.get("ssl"), subprotocols, logger, create_connection)
        self.additional_headers = additional_headers
        self.user_agent_header = user_agent_header
        self.proxy = proxy
        self.process_exception = process_exception
        self.open_timeout = open_timeout
        self.reconnect_delays = reconnect_delays
        self.create_connection_kwargs = kwargs
        self._create_connection: Any = _Made if create_connection in (None, ClientConnection) else create_connection
        self._max_size = max_size
        self._connection_arguments: dict[str, Any] = {
            "ping_interval": ping_interval,
            "ping_timeout": ping_timeout,
            "close_timeout": close_timeout,
            "max_queue": max_queue,
            "write_limit": write_limit,
        }
        self._options: dict[str, Any] = {
            "origin": origin,
            "subprotocols": subprotocols,
            "compression": deflate_of(extensions, compression),
            "max_size": max_size,
            "max_fragments": MAX_FRAGMENTS,
            "logger": self.logger,
            **self._connection_arguments,
            "close_timeout": not_negative(close_timeout),
        }
        if max_queue is None:
            self._options["max_queue_bytes"] = None

    def _make(self, opened: Any, **native: Any) -> Any:
        name = self._verified_name(self.create_connection_kwargs.get("server_hostname"))
        view = ProtocolView(opened, native, True, self._max_size, name)
        view.uri = self.ws_uri
        return self._create_connection(view, **self._connection_arguments)

    def _chain(self) -> Chain:
        kwargs = self.create_connection_kwargs
        return Chain(
            self,
            sock=kwargs.get("sock") is not None,
            unix=kwargs.get("unix", False),
            address=kwargs.get("host") is not None or kwargs.get("port") is not None,
        )

    async def connect(self) -> ClientConnection:
        """Connect once."""
        network = await client_network(self.ws_uri, self.proxy, self.create_connection_kwargs)
        chain = self._chain()
        arguments = {**network, **self._all_options(), "create_connection": self._make}
        try:
            options = options_with_chain(ReconnectingOptions, chain, arguments)
            return await _Connecting(self.uri, options)  # type: ignore[return-value]
        except asyncio.TimeoutError as exc:
            raise TimeoutError("timed out during opening handshake") from exc
        except Exception as exc:
            heads.adapt(exc)
            raise

    def __await__(self) -> Generator[Any, None, ClientConnection]:
        return self.connect().__await__()

    async def __aenter__(self) -> ClientConnection:
        if hasattr(self, "connection"):
            raise RuntimeError("connect() isn't reentrant")
        self.connection = await self
        return await self.connection.__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.connection.__aexit__(exc_type, exc_value, traceback)
        finally:
            del self.connection

    async def __aiter__(self) -> AsyncIterator[ClientConnection]:
        delays: Any = None
        while True:
            try:
                async with self as connection:
                    yield connection
                delays = None
            except Exception as exc:
                delays = delays or self.reconnect_delays()
                await asyncio.sleep(self._delay(exc, delays))


def unix_connect(path: PathLike | None = None, uri: str | None = None, **kwargs: Any) -> connect:
    """Connect to a WebSocket server that listens on a Unix socket.

    Args:
        path: Path of the socket.
        uri: URI whose host and path go into the request; ``ws://localhost/``, or ``wss://localhost/`` with ``ssl``, by
            default.
        **kwargs: As for :class:`connect`.
    """
    return connect(uri=local_uri(uri, kwargs), unix=True, path=path, **kwargs)


def __getattr__(name: str) -> Any:
    return private("asyncio.client", name)
