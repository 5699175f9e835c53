"""Proxies: which one to use, and how to ask it for a connection.

It opens no connection to a proxy: the caller does, and speaks HTTP to HTTP proxies. SOCKS is spoken here, on a
connected blocking socket, through ``python-socks``, an optional dependency.
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

# RFC 6455 leaves the ports to the schemes: IANA assigns 1080 to SOCKS, and HTTP proxies without a port listen
# where their scheme says.
_DEFAULT_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks4a": 1080, "socks5": 1080, "socks5h": 1080}


@dataclasses.dataclass(frozen=True)
class Proxy:
    """The address of a proxy.

    Attributes:
        scheme: ``http``, ``https``, ``socks4``, ``socks4a``, ``socks5`` or ``socks5h``.
        host: Host in lower case; an IPv6 address has no brackets.
        port: Port, set even if it is the default.
        username: User name, decoded, ``None`` if there is none.
        password: Password, decoded, ``None`` if there is none.
    """

    scheme: str
    host: str
    port: int
    username: str | None = dataclasses.field(default=None, repr=False)
    password: str | None = dataclasses.field(default=None, repr=False)

    @property
    def user_info(self) -> tuple[str, str] | None:
        """User name and password, ``None`` if there are none."""
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
        uri: Where to connect to.
        proxy: ``True`` for what the environment or the system configures; a URL for that proxy, whatever is configured;
            ``None`` for no proxy.

    Returns:
        The proxy, ``None`` to connect directly.

    Raises:
        InvalidProxy: The URL, given or configured, is not that of a proxy.
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

    # RFC 6455, section 4.1, paragraph 3: prefer a SOCKS5 proxy, then the one for HTTPS, then the one for
    # HTTP. A proxy configured for the scheme itself comes first, because it was meant for this.
    proxies = urllib.request.getproxies()
    for scheme in ("wss", "socks", "https") if uri.secure else ("ws", "socks", "https", "http"):
        proxy = proxies.get(scheme)
        if proxy is not None:
            if urllib.request.proxy_bypass(f"{uri.host}:{uri.port}"):
                return None
            # Operating systems give every proxy an http URL; a variable has the URL that its user wrote.
            if scheme == "socks" and proxy.startswith("http://"):
                return "socks5h://" + proxy[len("http://") :]
            return proxy
    return None


def _nothing_configured() -> bool:
    # Where only variables count, their names tell: reading them all, values included, costs as much as
    # opening a connection, and the module that does it takes longer to import than all that a client needs.
    if sys.platform in ("darwin", "win32"):
        return False
    # A program may have put a function of its own there.
    request = sys.modules.get("urllib.request")
    if request is not None and request.getproxies is not request.getproxies_environment:
        return False
    return not _environment.names_proxy()


class _Environment:
    """Whether a variable's name says that it is about proxies. Names seldom change: they are looked at when they do."""

    def __init__(self) -> None:
        self._names: tuple[object, ...] | None = None
        self._answer = False

    def names_proxy(self) -> bool:
        # As the system has them, where they lie: to decode the names took a tenth of the time of opening a connection.
        # Unless something else stands for the environment.
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
        Its parts.

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
            # SOCKS4 knows a user name only.
            if password is None and not scheme.startswith("socks4"):
                raise ValueError("username provided without password; write user:@ for an empty password")
            if scheme.startswith("http"):
                # RFC 7617, section 2: the colon separates the two.
                if ":" in username:
                    raise ValueError("username contains a colon")
            # RFC 1929, section 2: one byte for each length. python-socks sends ASCII only.
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
    # Surrogates stand for bytes that are not UTF-8.
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
        user_agent_header: Value of the User-Agent header, ``None`` to leave it out.
    """
    headers = [] if user_agent_header is None else [("User-Agent", user_agent_header)]
    authorization = None if proxy.user_info is None else basic_authorization(*proxy.user_info)
    # RFC 9110, section 9.3.6: the target consists of host and port only, the port included.
    return authority_of(host, port), headers, authorization


def connect_socks(sock: socket.socket, proxy: Proxy, host: str, port: int, *, deadline: float | None) -> socket.socket:
    """Ask a SOCKS proxy for a connection to a server.

    With ``socks4`` and ``socks5`` this machine resolves the name of the server: no deadline applies to that.

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
        TimeoutError: The deadline passed.
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
        # The exception of python-socks, which is a TimeoutError too, as a program may expect that calls it elsewhere.
        from python_socks import ProxyTimeoutError

        raise ProxyTimeoutError(socks_timeout(proxy, host, port)) from None
    except OSError:
        raise
    except Exception as exc:
        raise socks_error(proxy, host, port, exc) from exc


def socks_type(proxy: Proxy) -> ProxyType:
    """Return what ``python-socks`` calls the kind of a SOCKS proxy.

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
    """Return the exception for a SOCKS proxy where ``python-socks`` is not installed."""
    return ImportError(
        'connecting through a SOCKS proxy requires python-socks; install it with: pip install "wirespeed[socks]"'
    )


def socks_error(proxy: Proxy, host: str, port: int, exc: Exception) -> ProxyError:
    """Return the exception for a SOCKS proxy that refused, or did not speak SOCKS.

    Args:
        proxy: The proxy.
        host: Host name or address of the server.
        port: Port of the server.
        exc: What ``python-socks`` raised: if it is no ``OSError``, it comes from what the proxy sent.
    """
    return ProxyError(f"{_socks_name(proxy)} did not connect to {host}:{port}: {exc}")


def socks_timeout(proxy: Proxy, host: str, port: int) -> str:
    """Return the text of the exception for a deadline that passed while a SOCKS proxy was asked.

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
    # It negotiates on the connection that another proxy gives it: here, the one which exists already.
    return SocksProxy(
        kind, *address, proxy.username, proxy.password, proxy.remote_dns, forward=ConnectedSocket(kind, *address)
    )


class _DeadlineSocket:
    """The methods of a socket that ``python-socks`` calls, under one deadline for all calls together."""

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
