"""Opens a WebSocket from a URI: dialling, proxies, TLS, the opening handshake and redirects.

The native core produces and parses the bytes without I/O; this module moves them over the socket. It does not know
which connection is created from the socket. When it is cancelled, it closes every socket that it has opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import math
import os
import socket
from typing import Any, NamedTuple, cast

from .._native import ClientOpening, ClientPlan, ConnectedSocket
from .._net.addresses import (
    HAPPY_EYEBALLS_DELAY,
    UNIX_RETRY,
    Address,
    Failures,
    Race,
    Wait,
    attempts,
    from_infos,
    interleave_families,
    is_socket_replaced,
    numeric_address,
    open_socket,
    resolution_error,
    socket_addresses,
    system_error,
)
from .._net.proxy import Proxy, socks_error, socks_missing, socks_timeout, socks_type
from .._net.uri import RedirectChain
from .._options.client import ClientOptions
from .._options.plan import BODY_TIMEOUT, OpeningPlan, opening_timeout, plan_opening
from ..exceptions import InvalidStatus
from ._sockets import abandon, receive, send_all, until_ready, watches_descriptors
from ._tasks import Deadline

__all__ = ["Opening", "check_chain", "connect_socks", "dial", "dial_address", "dial_unix", "open_websocket"]

# A read of this size empties the receive buffer on common systems.
_READ_SIZE = 2**16

# Returned by `ClientOpening.proceed`: wait until the socket is readable.
_TO_READ = 1


def check_chain(chain: RedirectChain, options: ClientOptions) -> ClientPlan:
    """Check the arguments for the current URI of a redirect chain.

    Args:
        chain: The chain.
        options: The arguments that do not depend on the URI.

    Returns:
        The request to send.

    Raises:
        InvalidProxy: The proxy is not supported.
        TypeError, ValueError: An argument is wrong; the message names it.
    """
    request = options.request(chain.parsed, chain.headers)
    # Check a given proxy only: the environment may change until the connection is opened.
    plan_opening(chain, options, None if options.proxy is True else options.proxy)
    return request


class Opening(NamedTuple):
    """A completed opening handshake.

    Attributes:
        handshake: The native handshake, from which the connection is created.
        connected: The non-blocking socket, which the loop may still watch.
        addresses: Keyword arguments for the addresses of both ends, if the socket cannot tell them later.
    """

    handshake: ClientOpening
    connected: ConnectedSocket
    addresses: dict[str, Any]


async def open_websocket(
    chain: RedirectChain, request: ClientPlan, options: ClientOptions, deadline: Deadline
) -> Opening:
    """Open a WebSocket, following redirects.

    Args:
        chain: The redirect chain, at its first URI.
        request: The request for that URI, returned by :func:`check_chain`.
        options: The arguments that do not depend on the URI. Their socket, if there is one, is taken over.
        deadline: The timeout of the caller; its text is set to the current step.
    """
    while True:
        plan = plan_opening(chain, options, options.proxy)
        # Prepare the request before connecting, so that the server need not wait for it.
        opening = plan.begin(request, chain.parsed, options)
        connected, addresses = await _connect(chain, options, plan, deadline)
        try:
            deadline.text = functools.partial(opening_timeout, opening)
            deadline.explain = opening.give_up
            while needs := opening.proceed(connected):
                if opening.is_refused:
                    # Read the body of the refusal or redirect, with the same timeout as the blocking client.
                    with Deadline(BODY_TIMEOUT) as body_deadline:
                        body_deadline.explain = opening.give_up
                        while needs:
                            connected = await _ready(connected, opening, needs)
                            needs = opening.proceed(connected)
                    break
                # Inlines `_ready`, which would be one more coroutine for each wait.
                try:
                    await until_ready(connected.fileno(), to_write=needs != _TO_READ)
                except NotImplementedError:
                    connected = await _move(connected, opening, needs)
            return Opening(opening, connected, addresses)
        except InvalidStatus as exc:
            abandon(connected)
            if deadline.is_over:
                raise
            chain.follow(exc)
            options.effective_logger.debug(
                "redirected with status %d to %s", exc.response.status_code, chain.masked_uri
            )
        except BaseException:
            abandon(connected)
            raise
        request = options.request(chain.parsed, chain.headers)


async def _ready(connected: ConnectedSocket, opening: ClientOpening, needs: int) -> ConnectedSocket:
    """Wait until the socket is ready; return the socket, which may be another object."""
    try:
        await until_ready(connected.fileno(), to_write=needs != _TO_READ)
    except NotImplementedError:
        return await _move(connected, opening, needs)
    return connected


async def _move(connected: ConnectedSocket, opening: ClientOpening, needs: int) -> ConnectedSocket:
    """Move bytes on a loop that cannot watch descriptors."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(fileno=connected.detach()))
        if needs != _TO_READ:
            await loop.sock_sendall(sock, opening.take_output())
        # At the end of the stream this feeds empty bytes, and the core reads the end from the socket itself.
        opening.feed(await loop.sock_recv(sock, _READ_SIZE))
        stack.pop_all()
    return ConnectedSocket.adopt(sock.detach())


async def _connect(
    chain: RedirectChain, options: ClientOptions, plan: OpeningPlan, deadline: Deadline
) -> tuple[ConnectedSocket, dict[str, Any]]:
    """Return a connected socket, and the addresses of its ends if the socket cannot tell them later."""
    if options.sock is not None:
        return _take_over(options.sock)
    if options.path is not None:
        deadline.text = Failures(os.fsdecode(options.path)).timeout_text
        return _take_over(await dial_unix(options.path))
    host, port = options.address(chain.parsed)
    via = (host, port) if plan.proxy is None else (plan.proxy.host, plan.proxy.port)
    failures = Failures(f"{via[0]}:{via[1]}")
    deadline.text = failures.timeout_text
    by_socks = plan.proxy is not None and plan.proxy.is_socks
    if options.local_addr is None and not by_socks and watches_descriptors(asyncio.get_running_loop()):
        connected = await dial_address(*via, family=options.family)
        if connected is not None:
            return connected, {}
    sock = await dial(
        *via,
        failures=failures,
        local_addr=options.local_addr,
        family=options.family,
        happy_eyeballs_delay=options.happy_eyeballs_delay,
    )
    if plan.proxy is not None and by_socks:
        with contextlib.ExitStack() as stack:
            stack.enter_context(sock)
            proxy = plan.proxy
            deadline.text = lambda: socks_timeout(proxy, host, port)
            await connect_socks(sock, proxy, host, port)
            stack.pop_all()
    return ConnectedSocket.adopt(sock.detach()), {}


def _take_over(sock: socket.socket) -> tuple[ConnectedSocket, dict[str, Any]]:
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        # As on sockets that are opened here; Unix sockets do not have this option.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    addresses = socket_addresses(sock)
    # After detach() the object of the caller cannot close the socket.
    return ConnectedSocket.adopt(sock.detach()), addresses


async def dial_address(host: str, port: int, *, family: int = 0) -> ConnectedSocket | None:
    """Connect to a TCP server by its numeric address, without a resolver.

    Args:
        host: Host name or address.
        port: Port.
        family: ``socket.AF_INET`` or ``socket.AF_INET6`` to use only such an address, 0 for both.

    Returns:
        A non-blocking socket with ``TCP_NODELAY``, which the loop may still watch; ``None`` if the host is not a
        numeric address, or if the program has replaced ``socket.socket``. Use :func:`dial` then.

    Raises:
        OSError: The connection failed; the type tells the reason, such as ``ConnectionRefusedError``.
    """
    if is_socket_replaced():
        return None
    attempt = None
    try:
        attempt = ConnectedSocket.begin(host, port, family)
        while attempt is not None and not attempt.is_connected():
            await until_ready(attempt.fileno(), to_read=False, to_write=True)
    except BaseException as exc:
        if attempt is not None:
            abandon(attempt)
        if isinstance(exc, OSError):
            raise Failures(f"{host}:{port}").single_error(host, port, exc) from None
        raise
    return attempt


async def dial(
    host: str,
    port: int,
    *,
    failures: Failures | None = None,
    local_addr: tuple[str, int] | None = None,
    family: int = 0,
    proto: int = 0,
    flags: int = 0,
    happy_eyeballs_delay: float | None = HAPPY_EYEBALLS_DELAY,
    interleave: int = 1,
) -> socket.socket:
    """Connect to a TCP server, trying all its addresses (Happy Eyeballs, RFC 8305).

    On a loop without ``add_writer``, such as the proactor loop of Windows, it tries one address after the other.

    Args:
        host: Host name or address.
        port: Port.
        failures: Collects the failed attempts, for a caller that reports them after cancelling this call.
        local_addr: Host and port to connect from, ``None`` to let the system choose.
        family: ``socket.AF_INET`` or ``socket.AF_INET6`` to use only these addresses, 0 for both.
        proto: As for ``socket.getaddrinfo``.
        flags: As for ``socket.getaddrinfo``.
        happy_eyeballs_delay: Seconds after which the next address is tried while an attempt is still under way,
            ``None`` to wait until the attempt fails.
        interleave: Number of addresses of the first family before one of the other family, 0 to keep the order of
            the resolver.

    Returns:
        A non-blocking socket with ``TCP_NODELAY``.

    Raises:
        OSError: No address could be connected to; the text lists all attempts. If all failed for the same reason, the
            type tells it, such as ``ConnectionRefusedError``.
        socket.gaierror: The name could not be resolved.
    """
    loop = asyncio.get_running_loop()
    if failures is None:
        failures = Failures(f"{host}:{port}")
    addresses = interleave_families(
        await _resolve(loop, host, port, family=family, proto=proto, flags=flags), interleave
    )
    local = None
    if local_addr is not None:
        local = await _resolve(loop, *local_addr, family=family, proto=proto, flags=flags | socket.AI_PASSIVE)
    if not watches_descriptors(loop):
        return await _one_by_one(loop, addresses, failures, local)
    steps = attempts(Race(addresses, happy_eyeballs_delay), failures, local, loop.time)
    try:
        wait = next(steps)
        while True:
            wait = steps.send(await _writable(loop, wait))
    except StopIteration as stop:
        sock: socket.socket = stop.value
        return sock
    finally:
        steps.close()


async def dial_unix(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> socket.socket:
    """Connect to a server on a Unix socket.

    Args:
        path: Path of the socket.

    Returns:
        A non-blocking socket.

    Raises:
        OSError: The connection failed.
    """
    path = os.fspath(path)
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.setblocking(False)
        # Linux returns EAGAIN while the queue of the server is full, and has no event for room in it:
        # https://man7.org/linux/man-pages/man2/connect.2.html. loop.sock_connect treats it like EINPROGRESS.
        while (error := sock.connect_ex(path)) == errno.EAGAIN:
            await asyncio.sleep(UNIX_RETRY)
        if error:
            raise system_error(error, os.fsdecode(path))
        stack.pop_all()
    return sock


async def _writable(loop: asyncio.AbstractEventLoop, wait: Wait) -> list[socket.socket]:
    """Return the sockets that can be written to; an empty list after the time of ``wait``."""
    change: asyncio.Future[None] = loop.create_future()
    ready: list[socket.socket] = []

    def notify(*socks: socket.socket) -> None:
        # The loop calls it again in each iteration.
        ready.extend(sock for sock in socks if sock not in ready)
        if not change.done():
            change.set_result(None)

    timer = None if wait.until == math.inf else loop.call_at(wait.until, notify)
    try:
        for sock in wait.socks:
            loop.add_writer(sock.fileno(), notify, sock)
        await change
    finally:
        for sock in wait.socks:
            loop.remove_writer(sock.fileno())
        if timer is not None:
            timer.cancel()
    return ready


async def _one_by_one(
    loop: asyncio.AbstractEventLoop, addresses: list[Address], failures: Failures, local: list[Address] | None
) -> socket.socket:
    for address in addresses:
        with contextlib.ExitStack() as stack:
            try:
                sock = stack.enter_context(open_socket(address, local))
                await loop.sock_connect(sock, address.sockaddr)
            except OSError as exc:
                failures.add(address, exc)
            else:
                stack.pop_all()
                return sock
    raise failures.error()


async def _resolve(
    loop: asyncio.AbstractEventLoop, host: str, port: int, *, family: int, proto: int, flags: int
) -> list[Address]:
    if not (proto or flags) and (addresses := numeric_address(host, port, family)):
        return addresses
    kind = socket.SOCK_STREAM
    try:
        # A numeric address needs no resolver, and so no thread.
        no_resolver = flags | socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return from_infos(host, socket.getaddrinfo(host, port, family, kind, proto, no_resolver))
    except socket.gaierror:
        pass
    try:
        infos = await loop.getaddrinfo(host, port, family=family, type=kind, proto=proto, flags=flags)
    except socket.gaierror as exc:
        raise resolution_error(host, exc) from None
    return from_infos(host, infos)


# For python-socks, None means 60 seconds. The caller has its own timeout.
_FOREVER = 365 * 86400.0


class _Loop:
    """The methods of an event loop that ``python-socks`` calls."""

    def __init__(self) -> None:
        self.getaddrinfo = asyncio.get_running_loop().getaddrinfo
        self.sock_recv = receive
        self.sock_sendall = send_all


async def connect_socks(sock: socket.socket, proxy: Proxy, host: str, port: int) -> None:
    """Ask a SOCKS proxy for a connection to a server.

    Args:
        sock: Non-blocking socket connected to the proxy. It may be closed if the proxy does not open the connection.
        proxy: The proxy.
        host: Host name or address of the server.
        port: Port of the server.

    Raises:
        ImportError: ``python-socks`` is not installed.
        ProxyError: The proxy refused, or did not speak SOCKS.
        OSError: The connection to the proxy broke, or the name of the server could not be resolved.
    """
    kind = socks_type(proxy)
    try:
        from python_socks.async_.asyncio import Proxy as SocksProxy
    except ImportError as exc:
        raise socks_missing() from exc

    class ConnectedSocket(SocksProxy):
        async def connect(
            self, dest_host: str, dest_port: int, timeout: float | None = None, **kwargs: Any
        ) -> socket.socket:
            return sock

    loop = cast("asyncio.AbstractEventLoop", _Loop())
    address = proxy.host, proxy.port
    # python-socks negotiates on the connection of a forwarding proxy: this one returns the existing connection.
    forward = ConnectedSocket(kind, *address, loop=loop)
    socks = SocksProxy(kind, *address, proxy.username, proxy.password, proxy.remote_dns, forward=forward, loop=loop)
    try:
        await socks.connect(host, port, timeout=_FOREVER)
    except OSError:
        raise
    except Exception as exc:
        raise socks_error(proxy, host, port, exc) from exc
