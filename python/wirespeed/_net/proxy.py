"""Proxies: which one to use, and how to request a connection from it.

The caller connects to the proxy, and performs the request to an HTTP proxy. The SOCKS handshake is performed here, on a
connected blocking socket, using the optional dependency ``python-socks``.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Literal, cast

from ..exceptions import InvalidProxy, ProxyError
from .uri import WebSocketURI, authority_of, split, split_authority

if TYPE_CHECKING:
    from python_socks import ProxyType
    from python_socks.sync import Proxy as SocksProxy

__all__ = [
    "Proxy",
    "basic_authorization",
    "connect_socks",
    "get_proxy",
    "parse_proxy",
    "socks_error",
    "socks_missing",
    "socks_timeout",
    "socks_type",
    "tunnel_request",
]

# RFC 6455 leaves the ports to the schemes: IANA assigns 1080 to SOCKS, and HTTP proxies have the default ports of http
# and https.
_DEFAULT_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks4a": 1080, "socks5": 1080, "socks5h": 1080}


@dataclasses.dataclass(frozen=True)
class Proxy:
    """The address of a proxy.

    Attributes:
        scheme: ``http``, ``https``, ``socks4``, ``socks4a``, ``socks5`` or ``socks5h``.
        host: Host in lower case; an IPv6 address has no brackets.
        port: Port, set even if it is the default.
        username: User name, decoded, ``None`` without one.
        password: Password, decoded, ``None`` without one.
    """

    scheme: str
    host: str
    port: int
    username: str | None = dataclasses.field(default=None, repr=False)
    password: str | None = dataclasses.field(default=None, repr=False)

    @property
    def user_info(self) -> tuple[str, str] | None:
        """User name and password, ``None`` without them."""
        return None if self.username is None else (self.username, self.password or "")

    @property
    def is_socks(self) -> bool:
        """Whether the proxy speaks SOCKS; otherwise it speaks HTTP."""
        return self.scheme.startswith("socks")

    @property
    def remote_dns(self) -> bool:
        """Whether the proxy resolves the name of the server; otherwise this machine does."""
        return self.scheme not in ("socks4", "socks5")


def get_proxy(uri: WebSocketURI, proxy: str | Literal[True] | None = True) -> Proxy | None:
    """Choose the proxy for a connection.

    Args:
        uri: URI to connect to.
        proxy: ``True`` for the proxy that the environment or the system configures; the URL of a proxy to use it
            always; ``None`` for no proxy.

    Returns:
        The proxy, ``None`` to connect directly.

    Raises:
        InvalidProxy: The given or configured URL is not that of a supported proxy.
    """
    if proxy is True:
        proxy = _configured_proxy(uri)
    if proxy is None:
        return None
    if not isinstance(proxy, str):
        raise TypeError(f"proxy must be True, None or a str, not {proxy!r}")
    return parse_proxy(proxy)


def _configured_proxy(uri: WebSocketURI) -> str | None:
    if _nothing_configured():
        return None
    import urllib.request

    # RFC 6455, section 4.1, paragraph 3: prefer a SOCKS5 proxy, then the one for HTTPS, then the one for HTTP. A proxy
    # configured for ws or wss comes first, because it is the most specific.
    proxies = urllib.request.getproxies()
    for scheme in ("wss", "socks", "https") if uri.secure else ("ws", "socks", "https", "http"):
        proxy = proxies.get(scheme)
        if proxy is not None:
            if urllib.request.proxy_bypass(f"{uri.host}:{uri.port}"):
                return None
            # Operating systems give every proxy an http URL; a variable contains the URL that the user wrote.
            if scheme == "socks" and proxy.startswith("http://"):
                return "socks5h://" + proxy[len("http://") :]
            return proxy
    return None


def _nothing_configured() -> bool:
    # On systems that configure proxies by variables only, their names suffice. Reading all values costs as much as
    # opening a connection, and importing urllib.request takes longer than importing everything else of a client.
    if sys.platform in ("darwin", "win32"):
        return False
    # A program may have replaced getproxies.
    request = sys.modules.get("urllib.request")
    if request is not None and request.getproxies is not request.getproxies_environment:
        return False
    return not _environment.names_proxy()


class _Environment:
    """Caches whether a variable whose name contains ``_proxy`` is set, until the names of all variables change."""

    def __init__(self) -> None:
        self._names: tuple[object, ...] | None = None
        self._answer = False

    def names_proxy(self) -> bool:
        # Compares the raw names of os.environ: decoding them took a tenth of the time of opening a connection. If
        # os.environ is replaced, use its own names.
        names = tuple(getattr(os.environ, "_data", os.environ))
        if names != self._names:
            self._answer = any(_is_about_proxies(name) for name in names)
            self._names = names
        return self._answer


def _is_about_proxies(name: object) -> bool:
    return b"_proxy" in name.lower() if isinstance(name, bytes) else "_proxy" in str(name).lower()


_environment = _Environment()


def parse_proxy(proxy: str) -> Proxy:
    """Parse and validate the URL of a proxy.

    Args:
        proxy: ``scheme://[username:password@]host[:port]``. The default port is 80 for http, 443 for https and 1080 for
            the SOCKS schemes.

    Returns:
        The parts of the URL.

    Raises:
        InvalidProxy: ``proxy`` is not such a URL.
    """
    try:
        scheme, authority, path, query, fragment = split(proxy)
        if "//" not in proxy:
            raise ValueError("it has no scheme; begin it with http://, for example")
        if scheme not in _DEFAULT_PORTS:
            raise ValueError(f"scheme isn't supported; use {', '.join(_DEFAULT_PORTS)}")
        host, port, username, password = split_authority(authority)
        if path not in ("", "/"):
            raise ValueError("path is meaningless; if it belongs to the password, percent-encode it")
        if query is not None:
            raise ValueError("query is meaningless; if it belongs to the password, percent-encode it")
        if fragment is not None:
            raise ValueError("fragment is meaningless; if it belongs to the password, percent-encode it")
        if username is not None:
            # SOCKS4 has a user name only.
            if password is None and not scheme.startswith("socks4"):
                raise ValueError("username provided without password; write user:@ for an empty password")
            if scheme.startswith("http"):
                # RFC 7617, section 2: a colon separates user name and password.
                if ":" in username:
                    raise ValueError("username contains a colon")
            # RFC 1929, section 2: each length has one byte. python-socks sends ASCII only.
            elif not all(text.isascii() and len(text) < 256 for text in (username, password or "")):
                raise ValueError("SOCKS takes at most 255 characters of ASCII as username and as password")
        return Proxy(scheme, host, port or _DEFAULT_PORTS[scheme], username, password)
    except ValueError as exc:
        raise InvalidProxy(proxy, str(exc)) from None


def basic_authorization(username: str, password: str) -> str:
    """Return the value of an Authorization or Proxy-Authorization header for Basic authentication.

    Args:
        username: User name, without a colon.
        password: Password.

    Raises:
        ValueError: ``username`` contains a colon.
    """
    # RFC 7617, section 2: "a user-id containing a colon character is invalid".
    if ":" in username:
        raise ValueError("username contains a colon")
    # Surrogates represent bytes that are not UTF-8.
    user_pass = f"{username}:{password}".encode(errors="surrogateescape")
    return "Basic " + base64.b64encode(user_pass).decode()


def tunnel_request(
    proxy: Proxy, host: str, port: int, user_agent_header: str | None
) -> tuple[str, list[tuple[str, str]], str | None]:
    """Return the target, the headers and the credentials of the CONNECT request to an HTTP proxy.

    Args:
        proxy: The proxy.
        host: Host name or address of the server.
        port: Port of the server.
        user_agent_header: Value of the User-Agent header, ``None`` for no header.
    """
    headers = [] if user_agent_header is None else [("User-Agent", user_agent_header)]
    authorization = None if proxy.user_info is None else basic_authorization(*proxy.user_info)
    # RFC 9110, section 9.3.6: the target is host and port, even if it is the default port.
    return authority_of(host, port), headers, authorization


def connect_socks(sock: socket.socket, proxy: Proxy, host: str, port: int, *, deadline: float | None) -> socket.socket:
    """Request a connection to a server from a SOCKS proxy.

    With ``socks4`` and ``socks5`` this machine resolves the name of the server, without regard to the deadline.

    Args:
        sock: Socket connected to the proxy. It is closed if the proxy does not open the connection.
        proxy: The proxy.
        host: Host name or address of the server.
        port: Port of the server.
        deadline: Time of ``time.monotonic`` by which the connection must be open, ``None`` for no limit.

    Returns:
        ``sock``, in blocking mode, connected to the server.

    Raises:
        ImportError: ``python-socks`` is not installed.
        ProxyError: The proxy refused, or did not speak SOCKS.
        OSError: The connection to the proxy broke, or the name of the server could not be resolved.
        TimeoutError: The deadline has passed.
    """
    try:
        _negotiate(cast("socket.socket", _DeadlineSocket(sock, deadline)), proxy, host, port)
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


def _negotiate(stream: socket.socket, proxy: Proxy, host: str, port: int) -> None:
    socks = _socks_proxy(stream, proxy)
    try:
        socks.connect(host, port)
    except TimeoutError:
        # Raise the class of python-socks, a TimeoutError too, which programs that use python-socks may expect.
        from python_socks import ProxyTimeoutError

        raise ProxyTimeoutError(socks_timeout(proxy, host, port)) from None
    except OSError:
        raise
    except Exception as exc:
        raise socks_error(proxy, host, port, exc) from exc


def socks_type(proxy: Proxy) -> ProxyType:
    """Return the type of a SOCKS proxy as ``python-socks`` names it.

    Args:
        proxy: The proxy.

    Raises:
        ImportError: ``python-socks`` is not installed.
    """
    try:
        from python_socks import ProxyType
    except ImportError as exc:
        raise socks_missing() from exc
    return ProxyType.SOCKS4 if proxy.scheme.startswith("socks4") else ProxyType.SOCKS5


def socks_missing() -> ImportError:
    """Return the exception for a SOCKS proxy without ``python-socks``."""
    return ImportError(
        'connecting through a SOCKS proxy requires python-socks; install it with: pip install "wirespeed[socks]"'
    )


def socks_error(proxy: Proxy, host: str, port: int, exc: Exception) -> ProxyError:
    """Return the exception for a SOCKS proxy that refused, or did not speak SOCKS.

    Args:
        proxy: The proxy.
        host: Host name or address of the server.
        port: Port of the server.
        exc: Exception of ``python-socks`` that is not an ``OSError``, so it concerns the response of the proxy.
    """
    return ProxyError(f"{_socks_name(proxy)} did not connect to {host}:{port}: {exc}")


def socks_timeout(proxy: Proxy, host: str, port: int) -> str:
    """Return the text of the exception for a deadline that passed during the SOCKS handshake.

    Args:
        proxy: The proxy.
        host: Host name or address of the server.
        port: Port of the server.
    """
    return f"timed out while connecting to {host}:{port} through {_socks_name(proxy)}"


def _socks_name(proxy: Proxy) -> str:
    return f"SOCKS proxy {proxy.host}:{proxy.port}"


def _socks_proxy(stream: socket.socket, proxy: Proxy) -> SocksProxy:
    kind = socks_type(proxy)
    from python_socks.sync import Proxy as SocksProxy

    class ConnectedSocket(SocksProxy):
        def connect(self, dest_host: str, dest_port: int, timeout: float | None = None, **kwargs: Any) -> socket.socket:
            return stream

    address = proxy.host, proxy.port
    # python-socks negotiates on the connection of a forwarding proxy: this one returns the existing connection.
    return SocksProxy(
        kind, *address, proxy.username, proxy.password, proxy.remote_dns, forward=ConnectedSocket(kind, *address)
    )


class _DeadlineSocket:
    """The methods of a socket that ``python-socks`` calls, with one deadline for all calls together."""

    def __init__(self, sock: socket.socket, deadline: float | None) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._limit()
        self._sock.sendall(data)

    def recv(self, size: int) -> bytes:
        self._limit()
        return self._sock.recv(size)

    def close(self) -> None:
        self._sock.close()

    def _limit(self) -> None:
        remaining = None
        if self._deadline is not None:
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("timed out")
        self._sock.settimeout(remaining)
