"""Opens a WebSocket from a URI: dialling, proxies, TLS, the opening handshake and redirects.

The native core produces and parses the bytes without I/O; this module moves them over the socket. It does not know
which connection is created from the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket as socket_module
from typing import Any, NamedTuple

from .._handshake.plan import BODY_TIMEOUT, OpeningPlan, opening_timeout, plan_opening
from .._native import ClientOpening, ClientPlan, ConnectedSocket
from .._net.addresses import Failures, socket_addresses
from .._net.proxy import socks_timeout
from .._net.redirects import RedirectChain
from .._options.client import ClientOptions
from ..exceptions import InvalidStatus
from ._deadline import Deadline
from ._dial import dial, dial_address, dial_unix
from ._sockets import abandon, until_ready, watches_descriptors
from ._socks import connect_socks

__all__ = ["Opening", "check_chain", "open_websocket"]

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
        sock = stack.enter_context(socket_module.socket(fileno=connected.detach()))
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


def _take_over(sock: socket_module.socket) -> tuple[ConnectedSocket, dict[str, Any]]:
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        # As on sockets that are opened here; Unix sockets do not have this option.
        sock.setsockopt(socket_module.IPPROTO_TCP, socket_module.TCP_NODELAY, 1)
    addresses = socket_addresses(sock)
    # After detach() the object of the caller cannot close the socket.
    return ConnectedSocket.adopt(sock.detach()), addresses
