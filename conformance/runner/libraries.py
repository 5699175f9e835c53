"""How each library is called: a function that connects or serves without limits, and the exception of a closed
connection.

The largest message of the suite has 16 MiB; in 9.3 and 9.4 it has up to 256 Ki fragments.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from .certificate import Certificate

__all__ = [
    "ALL_OF_A_CASE", "Library", "asynchronous", "asynchronous_server", "blocking", "blocking_server", "identified",
    "trusting",
]  # fmt: skip

Library = tuple[Callable[..., Any], type[Exception]]

# Bytes: the amount that the suite sends before it reads.
ALL_OF_A_CASE = 256 * 2**20


def trusting(certificate: Certificate | None) -> dict[str, Any]:
    """Options that make a client trust a server's certificate."""
    if certificate is None:
        return {}
    from wirespeed import TLS

    return {"ssl": TLS(ca=certificate.authority)}


def identified(certificate: Certificate | None) -> dict[str, Any]:
    """Options that give a server its certificate."""
    if certificate is None:
        return {}
    from wirespeed import TLS

    return {"ssl": TLS(cert=certificate.cert, key=certificate.key)}


def blocking(name: str) -> Library:
    if name == "wirespeed":
        from wirespeed.exceptions import ConnectionClosed
        from wirespeed.sync import connect

        return functools.partial(connect, max_size=None, max_fragments=None), ConnectionClosed

    _lift_fragment_limit()
    from websockets.exceptions import ConnectionClosed as WebsocketsClosed
    from websockets.sync.client import connect as websockets_connect

    return functools.partial(websockets_connect, max_size=None, legacy=True), WebsocketsClosed


def asynchronous(name: str, port: str | None) -> Library:
    if name == "wirespeed":
        from wirespeed import ConnectionClosed, connect

        return functools.partial(connect, max_size=None, max_fragments=None, io_backend=port), ConnectionClosed

    _lift_fragment_limit()
    from websockets.asyncio.client import connect as websockets_connect
    from websockets.exceptions import ConnectionClosed as WebsocketsClosed

    return functools.partial(websockets_connect, max_size=None), WebsocketsClosed


def asynchronous_server(name: str, port: str | None) -> Callable[..., Any]:
    if name == "wirespeed":
        from wirespeed import serve

        return functools.partial(serve, max_size=None, max_fragments=None, ping_interval=None, io_backend=port)

    _lift_fragment_limit()
    from websockets.asyncio.server import serve as websockets_serve

    return functools.partial(websockets_serve, max_size=None, ping_interval=None)


def blocking_server(name: str) -> Callable[..., Any]:
    if name == "wirespeed":
        from wirespeed.sync import serve

        return functools.partial(serve, max_size=None, max_fragments=None, ping_interval=None)

    _lift_fragment_limit()
    from websockets.sync.server import serve as websockets_serve

    return functools.partial(websockets_serve, max_size=None, ping_interval=None)


def _lift_fragment_limit() -> None:
    # websockets reads this variable when it is imported.
    os.environ.setdefault("WEBSOCKETS_MAX_FRAGMENTS", str(1 << 20))
