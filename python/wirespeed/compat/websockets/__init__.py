"""A drop-in replacement for the ``websockets`` package: asyncio and blocking, clients and servers.

Use ``from wirespeed.compat import websockets``, or :func:`wirespeed.patch` for code that cannot be changed.

The Sans-I/O protocol, the legacy API and trio are those of the installed ``websockets`` package, if there is one.
"""

from __future__ import annotations

import importlib
from typing import Any

from . import _installed as installed

installed.link_exceptions()

_LAZY = {
    ".asyncio.client": ("connect", "unix_connect", "ClientConnection"),
    ".asyncio.router": ("route", "unix_route", "Router"),
    ".asyncio.server": ("basic_auth", "broadcast", "serve", "unix_serve", "ServerConnection", "Server"),
    ".client": ("ClientProtocol",),
    ".datastructures": ("Headers", "HeadersLike", "MultipleValuesError"),
    ".exceptions": installed.EXCEPTIONS,
    ".frames": ("Close", "CloseCode", "Frame", "Opcode"),
    ".http11": ("Request", "Response"),
    ".protocol": ("Protocol", "Side", "State"),
    ".server": ("ServerProtocol",),
    ".typing": (
        "Data",
        "ExtensionName",
        "ExtensionParameter",
        "LoggerLike",
        "StatusLike",
        "Origin",
        "Subprotocol",
    ),
    ".version": ("__version__",),
}
_SOURCES = {name: module for module, names in _LAZY.items() for name in names}
# Names that exist only if the package is installed.
_INSTALLED_ONLY = ("ClientProtocol", "Frame", "Protocol", "ServerProtocol")
_MODULES = [
    "asyncio",
    "client",
    "datastructures",
    "exceptions",
    "extensions",
    "frames",
    "headers",
    "http11",
    "protocol",
    "server",
    "sync",
    "typing",
    "uri",
    "version",
]

__all__ = [
    name for name in _SOURCES if name != "__version__" and (installed.real is not None or name not in _INSTALLED_ONLY)
]


def __getattr__(name: str) -> Any:
    if name in _SOURCES:
        module = importlib.import_module(_SOURCES[name], __name__)
        value = module.version if name == "__version__" else getattr(module, name)
    elif name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    elif installed.real is not None and not name.startswith("__"):
        # Among others the legacy API, which warns of its deprecation itself.
        try:
            return getattr(installed.real, name)
        except AttributeError:
            value = installed.find(name)
            if value is None:
                raise
            return value
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
