"""The protocol that uvicorn creates for every WebSocket: it connects transport, application and native connection.

uvicorn accepts sockets, performs TLS and reads the request. When the application has answered the request, the native
core takes over the transport. From then on no Python code runs for received bytes, only for events that the
application receives or sends.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NoReturn

from .._native import PendingHandshake
from .._redaction import mask_query
from ..asyncio._connection import Connection
from ..close_codes import CloseCode
from ..datastructures import Headers, Response
from ..exceptions import ConnectionClosed, InvalidHandshake
from . import _events as events
from ._after_close import SendAfterClose, lingering_applications
from ._traffic_log import TrafficLog, traffic_log
from ._uvicorn import (
    TRACE,
    ClientDisconnected,
    essential_head,
    http_version_of,
    settings_of,
    utils,
    with_version,
)

__all__ = ["WebSocketProtocol"]

# Bytes to buffer from a client before its request is answered. It should not send any.
_EARLY_BYTES = 2**16

# Seconds that a client has to answer the close frame when the server shuts down. uvicorn itself does not wait.
_SHUTDOWN_LINGER = 1.0

# The phases of a connection.
_NEW = 0
_REQUESTED = 1  # the application knows the request
_DENYING = 2  # it has begun a response that refuses
_OPEN = 3
_ENDING = 4  # nothing more can be sent


class WebSocketProtocol(asyncio.Protocol):
    """A WebSocket under uvicorn: ``uvicorn --ws wirespeed.asgi:WebSocketProtocol``, or ``uvicorn.run(..., ws=...)``.

    Args:
        config: The settings of uvicorn. It uses ``ws_max_size``, ``ws_ping_interval``, ``ws_ping_timeout``,
            ``ws_per_message_deflate`` and ``root_path``.
        server_state: The state that the connections of a server share.
        app_state: The state that the lifespan of the application has set.

    Attributes:
        max_fragments: Maximum number of fragments of a message, ``None`` for no limit. A message with more closes the
            connection with code 1009 (RFC 6455, section 7.4.1). uvicorn has no setting for it: set it in a subclass.
    """

    max_fragments: int | None = 4096

    __slots__ = (
        "_after_close",
        "_app_state",
        "_buffered_limit",
        "_changed",
        "_client",
        "_config",
        "_connect_sent",
        "_connection",
        "_cut_timer",
        "_denial",
        "_disconnect_sent",
        "_dismissed",
        "_draft",
        "_early",
        "_end",
        "_endless_waits",
        "_http_version",
        "_lines",
        "_logger",
        "_loop",
        "_lost",
        "_native_protocol",
        "_phase",
        "_recv",
        "_refused",
        "_running",
        "_scope",
        "_send",
        "_server_state",
        "_transport",
    )

    def __init__(
        self,
        config: Any,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self._config = config
        self._server_state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._logger = logging.getLogger("uvicorn.error")
        self._transport: Any = None
        self._client: tuple[str, int] | None = None
        self._http_version = "1.1"
        self._connection: Connection | None = None
        # The protocol of the transport, once the native core has taken it over.
        self._native_protocol: asyncio.Protocol | None = None
        self._scope: dict[str, Any] = {}
        self._phase = _NEW
        self._lost = False
        # Whether the server has refused the request itself.
        self._refused = False
        self._connect_sent = False
        self._disconnect_sent = False
        # Whether the application is running.
        self._running = False
        # Whether the server shuts down, so that a wait for events that cannot come is cancelled, once. None: it was.
        self._dismissed: bool | None = False
        # Waits of the application for events after the last one.
        self._endless_waits: set[asyncio.Future[None]] = set()
        # Methods of the connection, while events are only messages.
        self._recv: Any = None
        self._send: Any = None
        # Set when the phase reaches _OPEN or the client has disconnected; created by the first wait.
        self._changed: asyncio.Event | None = None
        self._early = bytearray()
        self._draft: Response | None = None
        self._denial: tuple[int, Headers, list[bytes]] | None = None
        self._end: tuple[int, str] = (CloseCode.ABNORMAL_CLOSURE, "")
        # Upper limit for the messages that arrived before the application closed: it may still receive them.
        self._buffered_limit = 0
        self._cut_timer: asyncio.TimerHandle | None = None
        # Created when a message is sent after the client has closed.
        self._after_close: SendAfterClose | None = None
        # None if debug logging is disabled.
        self._lines: TrafficLog | None = None

    # Called by uvicorn and the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a transport over.

        Args:
            transport: The transport, which has received the request already. :meth:`data_received` gets it next.
        """
        self._transport = transport
        self._server_state.connections.add(self)
        self._client = utils.get_remote_addr(transport)
        self._http_version = http_version_of(transport)
        self._trace("WebSocket connection made")

    def data_received(self, data: bytes) -> None:
        """Process the request, and buffer bytes that the client sends before it is answered.

        Args:
            data: First the whole head of the request.
        """
        if self._native_protocol is not None:
            # With eager tasks, uvicorn sets this protocol after the application has answered already.
            self._transport.set_protocol(self._native_protocol)
            self._native_protocol.data_received(data)
        elif self._phase == _NEW:
            self._receive_request(data)
        elif self._phase < _OPEN:
            self._early += data
            if len(self._early) > _EARLY_BYTES:
                self._transport.pause_reading()

    def eof_received(self) -> bool | None:
        """Let the transport close, unless the core has taken it over."""
        return None if self._native_protocol is None else self._native_protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the application that the client has disconnected.

        Args:
            exc: The reason.
        """
        if self._native_protocol is not None:
            self._native_protocol.connection_lost(exc)
            return
        self._handle_lost()
        if exc is None:
            self._transport.close()

    def pause_writing(self) -> None:
        """Notify the core."""
        if self._native_protocol is not None:
            self._native_protocol.pause_writing()

    def resume_writing(self) -> None:
        """Notify the core."""
        if self._native_protocol is not None:
            self._native_protocol.resume_writing()

    def shutdown(self) -> None:
        """Close the connection because the server shuts down: with code 1012, or status 500 before it is accepted."""
        if self._lost:
            return
        if self._phase == _NEW:
            self._transport.close()
            return
        self.dismiss()
        if self._phase == _OPEN and self._connection is not None:
            self._connection._begin_close(CloseCode.SERVICE_RESTART, "")
        elif self._phase < _OPEN:
            self._refused = True
            self._fail()
        if self._cut_timer is None:
            self._cut_timer = self._loop.call_later(_SHUTDOWN_LINGER, self._transport.close)

    def dismiss(self) -> None:
        """Cancel the application's wait for events that cannot come, because the server shuts down.

        It is cancelled once. If the application ignores that, the shutdown timeout of the server applies.
        """
        if self._dismissed is False:
            self._dismissed = None if self._endless_waits else True
            for waiter in list(self._endless_waits):
                waiter.cancel()

    # The request.

    def _receive_request(self, data: bytes) -> None:
        settings = settings_of(self._config, self.max_fragments)
        handshake = PendingHandshake(settings.native)
        data, fields = essential_head(with_version(data, self._http_version))
        try:
            handshake.receive(data)
            handshake.check()
            opened = handshake.finish()
        except (InvalidHandshake, RuntimeError) as exc:
            # uvicorn accepts the request, but it exceeds a limit of the core.
            self._phase = _ENDING
            self._log_refusal(exc)
            headers = Headers()
            events.add_default_headers(headers, self._server_state.default_headers)
            handshake.reject(list(headers.raw_items()))
            self._transport.write(handshake.take_output())
            self._transport.close()
            return
        server = utils.get_local_addr(self._transport)
        lines = self._lines = traffic_log(self._logger, self._prefix())
        connection = self._connection = Connection(
            opened,
            loop=self._loop,
            logger=self._logger,
            local_address=server,
            remote_address=self._client,
            listener=lines,
        )
        if lines is not None:
            lines.request(connection.request, fields)
        draft, error = connection._handshake.draft(False, None, [])
        if error is not None:
            self._log_refusal(error)
            events.add_default_headers(draft.headers, self._server_state.default_headers)
            self._refuse(draft)
            return
        self._scope = {
            **events.scope(connection.request, self._config.root_path, fields),
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.4"},
            "scheme": "wss" if utils.is_ssl(self._transport) else "ws",
            "server": server,
            "client": self._client,
            "state": self._app_state.copy(),
        }
        self._draft = draft
        self._phase = _REQUESTED
        self._running = True
        task = self._loop.create_task(self._run())
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)

    # The application.

    async def _run(self) -> None:
        code = CloseCode.INTERNAL_ERROR
        try:
            result = await self._config.loaded_app(self._scope, self.receive, self.send)
        except ClientDisconnected:
            code = CloseCode.NORMAL_CLOSURE
        except BaseException as exc:
            # Including CancelledError: uvicorn cancels tasks that do not end in time.
            if not (isinstance(exc, asyncio.CancelledError) and self._disconnect_sent and self._dismissed is None):
                self._logger.exception("Exception in ASGI application\n")
            if not isinstance(exc, Exception):
                # Propagate it to the task or the loop, for example KeyboardInterrupt.
                raise
        else:
            code = CloseCode.NORMAL_CLOSURE
            if self._phase < _OPEN and not self._lost:
                self._logger.error("ASGI callable returned without completing handshake.")
            elif result is not None:
                self._logger.error("ASGI callable should return None, but returned '%s'.", result)
        finally:
            self._end_run(code)

    def _end_run(self, code: int) -> None:
        """Close the connection, because the application has ended."""
        self._running = False
        if self._lost:
            lingering_applications(self._server_state).discard(self)
        elif self._phase < _OPEN:
            self._fail()
        elif self._phase == _OPEN:
            self._close(code, "")

    async def receive(self) -> dict[str, Any]:
        """Return the next event for the application: ``websocket.connect``, ``.receive`` or ``.disconnect``.

        After ``websocket.disconnect`` there are no more events. Further calls wait until they are cancelled, for
        example by :meth:`dismiss`.
        """
        if self._recv is None:
            event = await self._receive_other()
            if event is not None:
                return event
        try:
            message = await self._recv()
        except ConnectionClosed as exc:
            self._recv = None
            self._disconnect_sent = True
            return events.disconnect(*events.closing_of(exc))
        # Inlines `events.receive`, to save a call for each message.
        if type(message) is str:
            return {"type": "websocket.receive", "text": message}
        return {"type": "websocket.receive", "bytes": message}

    async def _receive_other(self) -> dict[str, Any] | None:
        """Return an event other than a message; ``None`` if the connection is open."""
        if not self._connect_sent:
            self._connect_sent = True
            return {"type": "websocket.connect"}
        if self._disconnect_sent:
            await self._wait_until_cancelled()
        if self._phase < _OPEN and not self._lost:
            if self._changed is None:
                self._changed = asyncio.Event()
            await self._changed.wait()
        if self._phase == _OPEN and self._connection is not None:
            recv = self._connection.recv
            self._recv = recv if self._lines is None else self._lines.receiving(recv)
            return None
        message = self._buffered_message()
        if message is not None:
            return events.receive(message)
        self._disconnect_sent = True
        return events.disconnect(*self._end)

    def _buffered_message(self) -> str | bytes | None:
        """Return a message that arrived before the application closed, ``None`` without one. It does not wait."""
        if self._connection is None or not self._buffered_limit:
            return None
        self._buffered_limit -= 1
        try:
            message = self._connection.recv_nowait()
        except (BlockingIOError, ConnectionClosed):
            self._buffered_limit = 0
            return None
        if self._lines is not None:
            self._lines.received(message)
        return message

    async def _wait_until_cancelled(self) -> NoReturn:
        """Wait until cancelled: an application that ignores the last event must not block the loop."""
        if self._dismissed:
            self._dismissed = None
            await asyncio.sleep(0)
            raise asyncio.CancelledError
        waiter = self._loop.create_future()
        self._endless_waits.add(waiter)
        try:
            while True:
                await waiter
        finally:
            self._endless_waits.discard(waiter)

    async def send(self, message: dict[str, Any]) -> None:
        """Process an event of the application; wait while the client does not read.

        If the client has closed, messages are discarded until the application has received the messages before the
        close frame, and the end.

        Args:
            message: ``websocket.accept``, ``.send``, ``.close``, ``.http.response.start`` or ``.http.response.body``.

        Raises:
            ClientDisconnected: The connection is closed. It is a subclass of ``OSError``.
            RuntimeError: The event is not allowed in this state.
            TypeError: ``text`` is not a ``str``, or ``bytes`` is not bytes-like.
            InvalidHeaderValue: A header contains a line break or another forbidden character.
        """
        send = self._send
        if send is None or message["type"] != "websocket.send":
            self._handle(message)
            if self._phase == _DENYING:
                # The parts of a response are collected without waiting, so let the loop run.
                await asyncio.sleep(0)
            return
        data = message.get("bytes")
        if data is None:
            data = message.get("text")
            if data is None:
                await asyncio.sleep(0)
                return
            if not isinstance(data, str):
                raise TypeError(f"'text' of websocket.send must be a str, not {type(data).__name__}")
        elif not isinstance(data, bytes):
            data = events.payload(data)
        try:
            await send(data)
        except ConnectionClosed as exc:
            delay = self._delay_after_close(exc)
            if delay is None:
                raise ClientDisconnected from exc
            if self._lines is not None:
                self._lines.not_sent(data)
            await asyncio.sleep(delay)

    def _delay_after_close(self, closed: ConnectionClosed) -> float | None:
        """Return the delay for a discarded message after the client has closed; ``None`` to raise an exception."""
        if self._connection is None or self._disconnect_sent or self._dismissed is not False:
            return None
        if self._after_close is None:
            self._after_close = SendAfterClose()
        return self._after_close.delay(closed, self._connection.stats(), self._loop.time())

    def _handle(self, message: dict[str, Any]) -> None:
        """Process an event that is not a message."""
        kind = message["type"]
        if self._refused or (self._lost and not (kind == "websocket.close" and self._allows_close())):
            raise ClientDisconnected
        if self._phase == _REQUESTED:
            if self._transport.is_closing():
                raise ClientDisconnected
            if kind == "websocket.accept":
                self._accept(message)
            elif kind == "websocket.close":
                headers = events.denial_headers((), self._server_state.default_headers)
                self._log_answer(403)
                self._refuse(events.denial(403, headers, b""))
            elif kind == "websocket.http.response.start":
                self._begin_denial(message)
            else:
                raise RuntimeError(
                    "Expected ASGI message 'websocket.accept', 'websocket.close' "
                    f"or 'websocket.http.response.start' but got '{kind}'."
                )
        elif self._phase == _DENYING:
            if kind != "websocket.http.response.body":
                raise RuntimeError(f"Expected ASGI message 'websocket.http.response.body' but got '{kind}'.")
            self._continue_denial(message)
        elif self._phase == _OPEN:
            if kind != "websocket.close":
                raise RuntimeError(f"Expected ASGI message 'websocket.send' or 'websocket.close', but got '{kind}'.")
            code = message.get("code")
            self._close(CloseCode.NORMAL_CLOSURE if code is None else code, message.get("reason") or "")
        else:
            raise RuntimeError(f"Unexpected ASGI message '{kind}', after sending 'websocket.close'.")

    def _allows_close(self) -> bool:
        connection = self._connection
        if connection is None or self._phase != _OPEN:
            return False
        return self._delay_after_close(connection._closed_error()) is not None

    # Responses.

    def _accept(self, message: dict[str, Any]) -> None:
        connection, draft = self._connection, self._draft
        if connection is None or draft is None:
            return
        response = events.acceptance(draft, message, self._server_state.default_headers)
        self._log_answer("[accepted]")
        self._respond(connection, response)
        self._phase = _OPEN
        self._draft = None
        self._attach_core(connection)
        self._send = connection.send if self._lines is None else self._lines.sending(connection.send)

    def _respond(self, connection: Connection, response: Response) -> None:
        connection._send_answer(connection._handshake.respond(response))
        if self._lines is not None:
            self._lines.response(response)

    def _begin_denial(self, message: dict[str, Any]) -> None:
        status = message["status"]
        if not 200 <= status < 600:
            # RFC 9110, section 15.2: 1xx is not a final response, and 101 would accept the connection.
            raise RuntimeError(f"Invalid HTTP status code '{status}' in response.")
        headers = events.denial_headers(message.get("headers", ()), self._server_state.default_headers)
        self._denial = (status, headers, [])
        self._log_answer(status)
        self._phase = _DENYING

    def _continue_denial(self, message: dict[str, Any]) -> None:
        if self._denial is None:
            return
        status, headers, parts = self._denial
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            self._refuse(events.denial(status, headers, b"".join(parts)))

    def _fail(self) -> None:
        """Answer with status 500."""
        headers = events.denial_headers((), self._server_state.default_headers)
        self._refuse(events.denial(500, headers, b"Internal Server Error"))

    def _refuse(self, response: Response) -> None:
        connection = self._connection
        if connection is None:
            return
        self._respond(connection, response)
        self._phase = _ENDING
        self._denial = self._draft = None
        self._early.clear()
        self._attach_core(connection)

    def _close(self, code: int, reason: str) -> None:
        connection = self._connection
        if connection is None:
            return
        has_ended = connection._close is not None
        self._buffered_limit = connection.stats()["receive_queue_messages"]
        connection._begin_close(code, reason)
        # If the client has closed first, its close frame counts.
        self._end = events.closing_of(connection._closed_error()) if has_ended else (code, reason)
        self._phase = _ENDING
        self._recv = self._send = None

    def _attach_core(self, connection: Connection) -> None:
        """Let the core take over the transport; it has a response to send."""
        native_protocol = self._native_protocol = connection._loop_adapter
        native_protocol.connection_made(self._transport)
        if self._early:
            native_protocol.data_received(bytes(self._early))
            self._early.clear()
        over = connection._closed_future()
        if over is None:
            self._handle_lost()
        else:
            over.add_done_callback(self._handle_lost)
        self._transport.set_protocol(native_protocol)
        connection._attach()
        if self._changed is not None:
            self._changed.set()

    def _handle_lost(self, _over: asyncio.Future[None] | None = None) -> None:
        """Clean up after the transport is closed."""
        self._lost = True
        self._server_state.connections.discard(self)
        if self._running and self._dismissed is False:
            lingering_applications(self._server_state).add(self)
        if self._cut_timer is not None:
            self._cut_timer.cancel()
        if self._changed is not None:
            self._changed.set()
        if self._lines is not None and self._connection is not None:
            self._lines.closed(self._connection._closed_error())
        self._trace("WebSocket connection lost")

    # Logs, with the texts of uvicorn.

    def _log_answer(self, what: object) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            path = mask_query(utils.get_path_with_query_string(self._scope))
            self._logger.info('%s - "WebSocket %s" %s', utils.get_client_addr(self._scope), path, what)

    def _log_refusal(self, error: Exception) -> None:
        self._logger.info("%sWebSocket request refused: %s", self._prefix(), error)

    def _trace(self, text: str) -> None:
        if self._logger.level <= TRACE:
            self._logger.log(TRACE, "%s%s", self._prefix(), text)

    def _prefix(self) -> str:
        return f"{self._client[0]}:{self._client[1]} - " if self._client else ""
