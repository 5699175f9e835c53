"""From a URI to an open WebSocket on a socket: dialling, proxies, TLS, the opening handshake, redirects.

The native core reads and writes the bytes of each step and does no I/O; here they are moved over the socket. It does
not know what the connection made of the socket is.
"""

from __future__ import annotations

import contextlib
import os
import socket as socket_module
import ssl as ssl_module
from typing import Literal, NamedTuple

from .._native import ClientTLS, Opened, Opening
from .._native_types import ConnectOptions
from ..addresses import Failures
from ..client_options import ClientOptions, Network, native_tls
from ..exceptions import InvalidStatus
from ..proxy import Proxy, connect_request, get_proxy, socks_timeout, socks_type
from ..redirects import RedirectChain
from ..tls import TLS, choose_ssl
from ..uri import WebSocketURI
from .deadline import Deadline
from .dial import dial, dial_unix
from .sockets import receive, send_all
from .socks import connect_socks

__all__ = ["check_chain", "exchange", "open_websocket"]

# What the socket buffers of common systems hold of an answer; the rest comes with the next call.
_READ_SIZE = 2**16

_SSL = TLS | ssl_module.SSLContext | bool | None


class _TLSStep(NamedTuple):
    settings: ClientTLS | ssl_module.SSLContext
    server_hostname: str | None


class _Plan(NamedTuple):
    """How to reach one URI."""

    tls: _TLSStep | None
    proxy: Proxy | None
    proxy_tls: _TLSStep | None


def check_chain(chain: RedirectChain, options: ClientOptions, network: Network) -> ConnectOptions:
    """Raise what is wrong with the arguments for the URI that a chain is at.

    Args:
        chain: The chain.
        options: What does not depend on the URI.
        network: How to reach the server.

    Returns:
        What to ask the server for.

    Raises:
        InvalidProxy: The proxy is not one that is supported.
        TypeError, ValueError: An argument is wrong; the text names it.
    """
    request = options.request(chain.parsed, chain.headers)
    # What the environment says now need not be what it says when the connection is opened.
    _plan(chain.parsed, network, None if network.proxy is True else network.proxy)
    return request


async def open_websocket(
    chain: RedirectChain, request: ConnectOptions, options: ClientOptions, network: Network, deadline: Deadline
) -> tuple[Opened, socket_module.socket]:
    """Open a WebSocket, wherever redirects lead.

    Args:
        chain: Where to begin.
        request: What to ask the server for there: what :func:`check_chain` has returned.
        options: What does not depend on the URI.
        network: How to reach the server. Its socket, if there is one, is taken over.
        deadline: What runs out meanwhile: it is told what goes on.

    Returns:
        The argument of a connection's constructor, and its socket, non-blocking.
    """
    while True:
        plan = _plan(chain.parsed, network, network.proxy)
        sock = await _connect(chain, network, plan, deadline)
        try:
            deadline.opening()
            return await _open(sock, chain, request, options, plan, deadline), sock
        except InvalidStatus as exc:
            sock.close()
            chain.follow(exc)
            options.effective_logger.debug("redirected with status %d to %s", exc.response.status_code, chain.shown_uri)
        except BaseException:
            sock.close()
            raise
        request = options.request(chain.parsed, chain.headers)


async def exchange(opening: Opening, sock: socket_module.socket) -> None:
    """Move bytes between the core and a socket until the step that the core has begun is complete.

    Args:
        opening: The core.
        sock: A connected non-blocking socket.

    Raises:
        Exception: What the step raises.
        OSError: The socket failed.
    """
    unsent: OSError | None = None
    # Some of the answer may have come with that to the step before.
    data: bytes | None = b""
    while True:
        output = opening.take_output()
        if output and unsent is None:
            try:
                await send_all(sock, output)
            except OSError as exc:
                # A server or proxy that refuses may answer before it has read everything, and close: its answer can
                # still be read.
                unsent = exc
        if opening.done:
            return
        failure = unsent
        if data is None:
            try:
                data = await receive(sock, _READ_SIZE) or None
            except OSError as exc:
                failure = unsent or exc
        try:
            if data is not None:
                opening.feed(data)
            elif failure is not None:
                opening.feed_error(failure)
            else:
                opening.feed_eof()
        except BaseException:
            # The alert that says why: as far as it goes without waiting.
            if output := opening.take_output():
                with contextlib.suppress(OSError):
                    sock.send(output)
            raise
        if data is None and not opening.done:
            raise failure or EOFError("the stream ended")
        data = None


def _plan(uri: WebSocketURI, network: Network, proxy_argument: str | Literal[True] | None) -> _Plan:
    tls = _choose(uri.secure, network.ssl, network.server_hostname, uri.host)
    if network.sock is not None and network.sock.fileno() < 0:
        raise ValueError("sock is closed")
    if network.sock is not None or network.unix:
        return _Plan(tls, None, None)
    proxy = get_proxy(uri, proxy_argument)
    proxy_tls = None
    if proxy is not None and proxy.scheme == "https":
        proxy_tls = _choose(True, network.proxy_ssl, network.proxy_server_hostname, proxy.host)
    elif proxy is not None and proxy.scheme == "http" and network.proxy_ssl is not None:
        raise ValueError("proxy_ssl argument is incompatible with an http:// proxy; use an https:// proxy")
    elif proxy is not None and proxy.is_socks:
        socks_type(proxy)  # raises if what it takes is not installed
    return _Plan(tls, proxy, proxy_tls)


def _choose(secure: bool, ssl: _SSL, server_hostname: str | None, host: str) -> _TLSStep | None:
    settings, name = choose_ssl(secure, ssl, server_hostname, host)
    if settings is None:
        return None
    return _TLSStep(native_tls(settings) if isinstance(settings, TLS) else settings, name)


async def _connect(chain: RedirectChain, network: Network, plan: _Plan, deadline: Deadline) -> socket_module.socket:
    if network.sock is not None:
        return _take_over(network.sock)
    if network.path is not None:
        deadline.text = Failures(os.fsdecode(network.path)).timeout_text
        return await dial_unix(network.path)
    host, port = network.host or chain.parsed.host, network.port or chain.parsed.port
    via = (host, port) if plan.proxy is None else (plan.proxy.host, plan.proxy.port)
    failures = Failures(f"{via[0]}:{via[1]}")
    deadline.text = failures.timeout_text
    sock = await dial(
        *via,
        failures=failures,
        local_addr=network.local_addr,
        family=network.family,
        happy_eyeballs_delay=network.happy_eyeballs_delay,
    )
    if plan.proxy is not None and plan.proxy.is_socks:
        with contextlib.ExitStack() as stack:
            stack.enter_context(sock)
            proxy = plan.proxy
            deadline.text = lambda: socks_timeout(proxy, host, port)
            await connect_socks(sock, proxy, host, port)
            stack.pop_all()
    return sock


def _take_over(sock: socket_module.socket) -> socket_module.socket:
    family, kind, proto = sock.family, sock.type, sock.proto
    # The caller's object cannot close it from here on.
    mine = socket_module.socket(family, kind, proto, fileno=sock.detach())
    mine.setblocking(False)
    with contextlib.suppress(OSError):
        # As on a socket of our own; a Unix socket does not know it.
        mine.setsockopt(socket_module.IPPROTO_TCP, socket_module.TCP_NODELAY, 1)
    return mine


async def _open(
    sock: socket_module.socket,
    chain: RedirectChain,
    request: ConnectOptions,
    options: ClientOptions,
    plan: _Plan,
    deadline: Deadline,
) -> Opened:
    opening = Opening()
    if plan.proxy_tls is not None:
        await _start_tls(opening, sock, plan.proxy_tls, deadline)
    if plan.proxy is not None and not plan.proxy.is_socks:
        authority, headers = connect_request(plan.proxy, chain.parsed, user_agent_header=options.user_agent_header)
        headers.pop("Host", None)  # the native core writes it
        authorization = headers.pop("Proxy-Authorization", None)
        opening.connect_tunnel(authority, list(headers.raw_items()), authorization)
        await exchange(opening, sock)
    if plan.tls is not None:
        await _start_tls(opening, sock, plan.tls, deadline)
    opening.open(request)
    await exchange(opening, sock)
    return opening.finish()


async def _start_tls(opening: Opening, sock: socket_module.socket, tls: _TLSStep, deadline: Deadline) -> None:
    deadline.text = _tls_timeout
    opening.start_tls(tls.settings, tls.server_hostname)
    await exchange(opening, sock)
    deadline.opening()


def _tls_timeout() -> str:
    return "timed out during the TLS handshake; raise open_timeout to wait longer"
