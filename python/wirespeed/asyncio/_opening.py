"""From a URI to an open WebSocket on a socket: dialling, proxies, TLS, the opening handshake, redirects.

The native core reads and writes the bytes of each step and does no I/O; here they are moved over the socket. It does
not know what the connection made of the socket is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket as socket_module

from .._handshake.plan import OpeningPlan, opening_timeout, plan_opening
from .._native import ClientOpening, ClientPlan, Opened
from .._net.addresses import Failures
from .._net.proxy import socks_timeout
from .._net.redirects import RedirectChain
from .._options.client import ClientOptions, Network
from ..exceptions import InvalidStatus
from ._deadline import Deadline
from ._dial import dial, dial_unix
from ._sockets import ready
from ._socks import connect_socks

__all__ = ["check_chain", "open_websocket"]

# What the socket buffers of common systems hold of an answer; the rest comes with the next call.
_READ_SIZE = 2**16

# What `ClientOpening.proceed` returns.
_TO_READ = 1


def check_chain(chain: RedirectChain, options: ClientOptions, network: Network) -> ClientPlan:
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
    plan_opening(chain.parsed, network, None if network.proxy is True else network.proxy)
    return request


async def open_websocket(
    chain: RedirectChain, request: ClientPlan, options: ClientOptions, network: Network, deadline: Deadline
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
        plan = plan_opening(chain.parsed, network, network.proxy)
        sock = await _connect(chain, network, plan, deadline)
        try:
            opening = plan.begin(request, chain.parsed, options.user_agent_header)
            deadline.text = functools.partial(opening_timeout, opening)
            return await _open(sock, opening), sock
        except InvalidStatus as exc:
            sock.close()
            chain.follow(exc)
            options.effective_logger.debug("redirected with status %d to %s", exc.response.status_code, chain.shown_uri)
        except BaseException:
            sock.close()
            raise
        request = options.request(chain.parsed, chain.headers)


async def _connect(
    chain: RedirectChain, network: Network, plan: OpeningPlan, deadline: Deadline
) -> socket_module.socket:
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


async def _open(sock: socket_module.socket, opening: ClientOpening) -> Opened:
    """Move bytes between the core and a non-blocking socket until the WebSocket is open."""
    while needs := opening.proceed(sock.fileno()):
        try:
            await ready(sock, to_write=needs != _TO_READ)
        except NotImplementedError:
            # A loop that watches no descriptors moves bytes itself.
            loop = asyncio.get_running_loop()
            if needs != _TO_READ:
                await loop.sock_sendall(sock, opening.take_output())
            # The end of the stream is found once more, by the core.
            opening.feed(await loop.sock_recv(sock, _READ_SIZE))
    return opening.finish()
