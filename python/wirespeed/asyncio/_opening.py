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
from typing import Any, NamedTuple

from .._handshake.plan import BODY_PATIENCE, OpeningPlan, opening_timeout, plan_opening
from .._native import ClientOpening, ClientPlan, ConnectedSocket
from .._net.addresses import Failures, ends_of
from .._net.proxy import socks_timeout
from .._net.redirects import RedirectChain
from .._options.client import ClientOptions, Network
from ..exceptions import InvalidStatus
from ._deadline import Deadline
from ._dial import dial, dial_address, dial_unix
from ._sockets import abandon, until_ready, watches_descriptors
from ._socks import connect_socks

__all__ = ["Opening", "check_chain", "open_websocket"]

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
    plan_opening(chain, network, None if network.proxy is True else network.proxy)
    return request


class Opening(NamedTuple):
    """An opening handshake that is complete.

    Attributes:
        handshake: What the connection is made of.
        connected: Its socket, non-blocking, which the loop may still watch.
        addresses: Of its ends, where they cannot be read off the socket later.
    """

    handshake: ClientOpening
    connected: ConnectedSocket
    addresses: dict[str, Any]


async def open_websocket(
    chain: RedirectChain, request: ClientPlan, options: ClientOptions, network: Network, deadline: Deadline
) -> Opening:
    """Open a WebSocket, wherever redirects lead.

    Args:
        chain: Where to begin.
        request: What to ask the server for there: what :func:`check_chain` has returned.
        options: What does not depend on the URI.
        network: How to reach the server. Its socket, if there is one, is taken over.
        deadline: What runs out meanwhile: it is told what goes on.
    """
    while True:
        plan = plan_opening(chain, network, network.proxy)
        # Before a server waits for it.
        opening = plan.begin(request, chain.parsed, network, options.user_agent_header)
        connected, addresses = await _connect(chain, network, plan, deadline)
        try:
            deadline.text = functools.partial(opening_timeout, opening)
            deadline.explain = opening.give_up
            while needs := opening.proceed(connected):
                if opening.is_refused:
                    # It ends as that of the blocking client: what has come is the refusal, or the redirect.
                    with Deadline(BODY_PATIENCE) as patience:
                        patience.explain = opening.give_up
                        while needs:
                            connected = await _ready(connected, opening, needs)
                            needs = opening.proceed(connected)
                    break
                # As `_ready`, without a coroutine for each wait.
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
            options.effective_logger.debug("redirected with status %d to %s", exc.response.status_code, chain.shown_uri)
        except BaseException:
            abandon(connected)
            raise
        request = options.request(chain.parsed, chain.headers)


async def _ready(connected: ConnectedSocket, opening: ClientOpening, needs: int) -> ConnectedSocket:
    """Wait until more can be moved; return the socket, which may be another object."""
    try:
        await until_ready(connected.fileno(), to_write=needs != _TO_READ)
    except NotImplementedError:
        return await _move(connected, opening, needs)
    return connected


async def _move(connected: ConnectedSocket, opening: ClientOpening, needs: int) -> ConnectedSocket:
    """Move bytes by a loop that watches no descriptors."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket_module.socket(fileno=connected.detach()))
        if needs != _TO_READ:
            await loop.sock_sendall(sock, opening.take_output())
        # The end of the stream is found once more, by the core.
        opening.feed(await loop.sock_recv(sock, _READ_SIZE))
        stack.pop_all()
    return ConnectedSocket.adopt(sock.detach())


async def _connect(
    chain: RedirectChain, network: Network, plan: OpeningPlan, deadline: Deadline
) -> tuple[ConnectedSocket, dict[str, Any]]:
    """Return a connected socket, and the addresses of its ends, if they cannot be read off it later."""
    if network.sock is not None:
        return _take_over(network.sock)
    if network.path is not None:
        deadline.text = Failures(os.fsdecode(network.path)).timeout_text
        return _take_over(await dial_unix(network.path))
    host, port = network.address(chain.parsed)
    via = (host, port) if plan.proxy is None else (plan.proxy.host, plan.proxy.port)
    failures = Failures(f"{via[0]}:{via[1]}")
    deadline.text = failures.timeout_text
    by_socks = plan.proxy is not None and plan.proxy.is_socks
    if network.local_addr is None and not by_socks and watches_descriptors(asyncio.get_running_loop()):
        connected = await dial_address(*via, family=network.family)
        if connected is not None:
            return connected, {}
    sock = await dial(
        *via,
        failures=failures,
        local_addr=network.local_addr,
        family=network.family,
        happy_eyeballs_delay=network.happy_eyeballs_delay,
    )
    if plan.proxy is not None and by_socks:
        with contextlib.ExitStack() as stack:
            stack.enter_context(sock)
            proxy = plan.proxy
            deadline.text = lambda: socks_timeout(proxy, host, port)
            await connect_socks(sock, proxy, host, port)
            stack.pop_all()
    return ConnectedSocket.adopt(sock.detach()), {}


def _take_over(sock: socket_module.socket) -> tuple[ConnectedSocket, dict[str, Any]]:
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        # As on a socket of our own; a Unix socket does not know it.
        sock.setsockopt(socket_module.IPPROTO_TCP, socket_module.TCP_NODELAY, 1)
    addresses = ends_of(sock)
    # The caller's object cannot close it from here on.
    return ConnectedSocket.adopt(sock.detach()), addresses
