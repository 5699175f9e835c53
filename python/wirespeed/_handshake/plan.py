"""What lies between this machine and the server of a URI, whoever waits for it: proxy, TLS, the opening handshake.

The native core does all of it on a connected socket, in the order that is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from .._lazy import ssl as ssl_module
from .._native import ClientOpening, ClientPlan, ClientTLS
from .._net.proxy import Proxy, get_proxy, socks_type, tunnel_request
from .._net.redirects import RedirectChain
from .._net.uri import WebSocketURI
from .._options.client import Network, native_tls
from ..tls import TLS, choose_ssl

if TYPE_CHECKING:
    _TLS = tuple[ClientTLS | ssl_module.SSLContext, str | None]

__all__ = ["BODY_PATIENCE", "OpeningPlan", "opening_timeout", "plan_opening"]


BODY_PATIENCE = 10.0
"""Seconds for the body of a refusal once its head is there: that of the blocking client, which the core has."""


class OpeningPlan(NamedTuple):
    """How to reach one URI.

    Attributes:
        tls: Settings of TLS with the server and the name in its certificate, ``None`` for none.
        proxy: The proxy, ``None`` for none.
        proxy_tls: The same as ``tls`` for the proxy.
    """

    tls: _TLS | None
    proxy: Proxy | None
    proxy_tls: _TLS | None

    def begin(
        self, request: ClientPlan, uri: WebSocketURI, network: Network, user_agent_header: str | None
    ) -> ClientOpening:
        """Return what opens a WebSocket on a socket to the server, or to a proxy that speaks HTTP.

        Args:
            request: What to ask the server for.
            uri: Where it is.
            network: What says where else to connect to.
            user_agent_header: For the proxy.

        Raises:
            TypeError, ValueError, ssl.SSLError: A setting is wrong.
        """
        tunnel = None
        if self.proxy is not None and not self.proxy.is_socks:
            tunnel = tunnel_request(self.proxy, *network.address(uri), user_agent_header)
        return ClientOpening(request, proxy_tls=self.proxy_tls, tunnel=tunnel, tls=self.tls)


def plan_opening(chain: RedirectChain, network: Network, proxy_argument: str | Literal[True] | None) -> OpeningPlan:
    """Return how to reach the URI that a chain is at.

    Args:
        chain: The chain.
        network: The arguments of ``connect``.
        proxy_argument: That for the proxy: ``True`` to ask the environment.

    Raises:
        InvalidProxy: The proxy is not one that is supported.
        TypeError, ValueError: An argument is wrong; the text names it.
    """
    uri = chain.parsed
    tls = _choose(uri.secure, network.ssl, chain.server_hostname(network.server_hostname), uri.host)
    if network.sock is not None and network.sock.fileno() < 0:
        raise ValueError("sock is closed")
    if network.sock is not None or network.unix:
        return OpeningPlan(tls, None, None)
    proxy = get_proxy(uri, proxy_argument)
    if tls is None and proxy is None:
        return _DIRECT
    proxy_tls = None
    if proxy is not None and proxy.scheme == "https":
        proxy_tls = _choose(True, network.proxy_ssl, network.proxy_server_hostname, proxy.host)
    elif proxy is not None and proxy.scheme == "http" and network.proxy_ssl is not None:
        raise ValueError("proxy_ssl argument is incompatible with an http:// proxy; use an https:// proxy")
    elif proxy is not None and proxy.is_socks:
        socks_type(proxy)  # raises if what it takes is not installed
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
    """Return what to say when the time of an opening is up.

    Args:
        opening: How far it is.
    """
    what = "TLS" if opening.is_tls_handshaking else "opening"
    return f"timed out during the {what} handshake; raise open_timeout to wait longer"
