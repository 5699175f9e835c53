"""The peers as pytest fixtures. Shared ones live for the session; all of them stop with it."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .certificates import Certificates
from .native import NativeEcho, find_binary
from .proxies import Proxy
from .scripted import ScriptedServer, Wire
from .servers import WebSocketsServer

__all__ = [
    "certificates",
    "client_certificate_server",
    "native_echo",
    "proxy",
    "scripted",
    "secure_server",
    "server",
    "serving",
    "unix_server",
]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def server() -> Iterator[WebSocketsServer]:
    """A ``websockets`` server over TCP; its docstring lists the paths."""
    with WebSocketsServer() as running:
        yield running


@pytest.fixture(scope="session")
def secure_server(certificates: Certificates) -> Iterator[WebSocketsServer]:
    """A ``websockets`` server over TLS, with a certificate of ``certificates.ca`` for localhost and 127.0.0.1."""
    with WebSocketsServer(ssl_context=certificates.server_context()) as running:
        yield running


@pytest.fixture(scope="session")
def client_certificate_server(certificates: Certificates) -> Iterator[WebSocketsServer]:
    """A ``websockets`` server over TLS that requires a certificate of ``certificates.ca`` from the client."""
    with WebSocketsServer(ssl_context=certificates.server_context(client_required=True)) as running:
        yield running


@pytest.fixture(scope="session")
def unix_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebSocketsServer]:
    """A ``websockets`` server on a Unix socket; ``unix_path`` is its path."""
    path = str(tmp_path_factory.mktemp("unix") / "socket")
    with WebSocketsServer(unix_path=path) as running:
        yield running


@pytest.fixture
def serving() -> Iterator[Callable[..., WebSocketsServer]]:
    """A factory of ``WebSocketsServer`` for tests that need their own configuration."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(WebSocketsServer(**options))


class ScriptedServers:
    """Starts scripted servers; ``stop`` ends those that run."""

    def __init__(self) -> None:
        self.running = contextlib.ExitStack()

    def __call__(self, script: Callable[[Wire], Any], **options: Any) -> ScriptedServer:
        server = ScriptedServer(script, **options)
        server.thread.start()
        self.running.callback(server.stop)
        return server

    def stop(self) -> None:
        self.running.close()


@pytest.fixture
def scripted() -> Iterator[ScriptedServers]:
    """A factory of ``ScriptedServer``: ``scripted(script, **options)`` starts one."""
    servers = ScriptedServers()
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def proxy(certificates: Certificates) -> Iterator[Callable[..., Proxy]]:
    """A factory of real proxies, each started once: ``proxy(kind, login=False)``."""
    for module in ("pproxy", "twisted"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the proxies need {module}, which is not installed; it may not support this Python yet")
    running: dict[tuple[str, bool], Proxy] = {}

    def start(kind: str, *, login: bool = False) -> Proxy:
        if (kind, login) not in running:
            certificate = certificates.server_files() if kind == "https" else None
            running[kind, login] = Proxy(kind, login=login, certificate=certificate)
        return running[kind, login]

    yield start
    for item in running.values():
        item.stop()


@pytest.fixture(scope="session")
def native_echo() -> Iterator[NativeEcho]:
    binary = find_binary()
    if binary is None:
        pytest.skip("wirespeed-bench is not built: run cargo build -p wirespeed-bench, or set WIRESPEED_BENCH")
    echo = NativeEcho(binary)
    yield echo
    echo.stop()
