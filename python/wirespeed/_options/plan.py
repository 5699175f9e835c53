"""Plans how a client reaches the server of a URI: proxy, TLS and opening handshake, for both APIs.

The native core performs the plan on a connected socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from .._lazy import ssl as ssl_module
from .._native import ClientOpening, ClientPlan, ClientTLS
from .._net.proxy import Proxy, get_proxy, socks_type, tunnel_request
from .._net.uri import RedirectChain, WebSocketURI
from ..tls import TLS, choose_ssl
from .client import ClientOptions, native_tls

if TYPE_CHECKING:
    _TLS = tuple[ClientTLS | ssl_module.SSLContext, str | None]

__all__ = ["BODY_TIMEOUT", "OpeningPlan", "opening_timeout", "plan_opening"]


BODY_TIMEOUT = 10.0
"""Seconds to receive the body of a refusal after its head, as in the native blocking client."""


class OpeningPlan(NamedTuple):
    """How to reach one URI.

    Attributes:
        tls: TLS settings for the server and the name in its certificate; ``None`` for no TLS.
        proxy: The proxy, ``None`` for no proxy.
        proxy_tls: TLS settings for the proxy and the name in its certificate; ``None`` for no TLS.
    """

    tls: _TLS | None
    proxy: Proxy | None
    proxy_tls: _TLS | None

    def begin(self, request: ClientPlan, uri: WebSocketURI, options: ClientOptions) -> ClientOpening:
        """Return the native opening for a socket connected to the server or to an HTTP proxy.

        Args:
            request: The request to send to the server.
            uri: URI of the server.
            options: The options of the client.

        Raises:
            TypeError, ValueError, ssl.SSLError: A setting is wrong.
        """
        tunnel = None
        if self.proxy is not None and not self.proxy.is_socks:
            tunnel = tunnel_request(self.proxy, *options.address(uri), options.user_agent_header)
        return ClientOpening(request, proxy_tls=self.proxy_tls, tunnel=tunnel, tls=self.tls)


def plan_opening(
    chain: RedirectChain, options: ClientOptions, proxy_argument: str | Literal[True] | None
) -> OpeningPlan:
    """Return how to reach the current URI of a redirect chain.

    Args:
        chain: The chain.
        options: The options of the client.
        proxy_argument: The ``proxy`` option; ``True`` to use the environment.

    Raises:
        InvalidProxy: The proxy is not supported.
        TypeError, ValueError: An argument is wrong; the message names it.
    """
    uri = chain.parsed
    tls = _choose(uri.secure, options.ssl, chain.server_hostname(options.server_hostname), uri.host)
    if options.sock is not None and options.sock.fileno() < 0:
        raise ValueError("sock is closed")
    if options.sock is not None or options.unix:
        return OpeningPlan(tls, None, None)
    proxy = get_proxy(uri, proxy_argument)
    if tls is None and proxy is None:
        return _DIRECT
    proxy_tls = None
    if proxy is not None and proxy.scheme == "https":
        proxy_tls = _choose(True, options.proxy_ssl, options.proxy_server_hostname, proxy.host)
    elif proxy is not None and proxy.scheme == "http" and options.proxy_ssl is not None:
        raise ValueError("proxy_ssl argument is incompatible with an http:// proxy; use an https:// proxy")
    elif proxy is not None and proxy.is_socks:
        socks_type(proxy)  # raises if the required package is not installed
    return OpeningPlan(tls, proxy, proxy_tls)


_DIRECT = OpeningPlan(None, None, None)


def _choose(
    secure: bool, ssl: TLS | ssl_module.SSLContext | bool | None, server_hostname: str | None, host: str
) -> _TLS | None:
    settings, name = choose_ssl(secure, ssl, server_hostname, host)
    if settings is None:
        return None
    return native_tls(settings) if isinstance(settings, TLS) else settings, name


def opening_timeout(opening: ClientOpening) -> str:
    """Return the message for a timeout of an opening.

    Args:
        opening: The opening, which tells the current step.
    """
    what = "TLS" if opening.is_tls_handshaking else "opening"
    return f"timed out during the {what} handshake; raise open_timeout to wait longer"
