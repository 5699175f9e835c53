"""Converts the permessage-deflate settings of ``extensions=``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ...._options.compression import Deflate
from .._installed import Names

# These classes have the attributes and arguments of the classes of the same name in websockets.


@dataclasses.dataclass
class _PerMessageDeflate:
    remote_no_context_takeover: bool
    local_no_context_takeover: bool
    remote_max_window_bits: int
    local_max_window_bits: int
    compress_settings: Mapping[str, Any] | None = None

    name = "permessage-deflate"


@dataclasses.dataclass
class _ClientPerMessageDeflateFactory:
    server_no_context_takeover: bool = False
    client_no_context_takeover: bool = False
    server_max_window_bits: int | None = None
    client_max_window_bits: int | bool | None = True
    compress_settings: Mapping[str, Any] | None = None

    name = "permessage-deflate"


@dataclasses.dataclass
class _ServerPerMessageDeflateFactory:
    server_no_context_takeover: bool = False
    client_no_context_takeover: bool = False
    server_max_window_bits: int | None = None
    client_max_window_bits: int | None = None
    compress_settings: Mapping[str, Any] | None = None
    require_client_max_window_bits: bool = False

    name = "permessage-deflate"


_names = Names(
    "extensions.permessage_deflate",
    {
        "PerMessageDeflate": _PerMessageDeflate,
        "ClientPerMessageDeflateFactory": _ClientPerMessageDeflateFactory,
        "ServerPerMessageDeflateFactory": _ServerPerMessageDeflateFactory,
    },
)
__all__ = [*_names.public, "deflate_of", "negotiated"]


def __getattr__(name: str) -> Any:
    return _names.get(name)


def __dir__() -> list[str]:
    return sorted(__all__)


def deflate_of(extensions: Iterable[Any] | None, compression: Deflate | str | None) -> Deflate | str | None:
    """Return the compression that the arguments of ``connect`` or ``serve`` request.

    Args:
        extensions: Factories of extensions. They have precedence over ``compression``.
        compression: ``"deflate"``, ``None``, or a :class:`wirespeed.Deflate`.

    Raises:
        NotImplementedError: There is another extension, or a setting that the native core does not have.
        TypeError: An item is not an extension factory.
        ValueError: ``compression`` has another value.
    """
    if compression is not None and compression != "deflate" and not isinstance(compression, Deflate):
        raise ValueError(f"unsupported compression: {compression}")
    factories = list(extensions or ())
    for factory in factories:
        if getattr(factory, "name", None) != "permessage-deflate":
            if not hasattr(factory, "name"):
                raise TypeError("extensions must be a list of extension factories")
            raise NotImplementedError(
                f"wirespeed has no extension {factory.name!r}: messages do not pass through Python; "
                "permessage-deflate is the only one"
            )
    return _settings(factories[0]) if factories else compression


def _settings(factory: Any) -> Deflate:
    if getattr(factory, "require_client_max_window_bits", False):
        raise NotImplementedError("wirespeed does not refuse clients for lack of client_max_window_bits")
    settings = dict(factory.compress_settings or {})
    strategy = settings.pop("strategy", 0)
    level, memory = settings.pop("level", -1), settings.pop("memLevel", 8)
    if strategy != 0 or settings:
        unknown = ", ".join(sorted(settings)) or "strategy"
        raise NotImplementedError(f"wirespeed's compressor has no {unknown}; level and memLevel are its settings")
    bits = factory.client_max_window_bits
    return Deflate(
        server_no_context_takeover=factory.server_no_context_takeover,
        client_no_context_takeover=factory.client_no_context_takeover,
        server_max_window_bits=factory.server_max_window_bits,
        # True means to offer the parameter without a value, as wirespeed always does.
        client_max_window_bits=None if bits is True else bits,
        # The default of zlib is 6.
        level=6 if level == -1 else level,
        memory_level=memory,
    )


def negotiated(header: str | None, is_client: bool) -> list[Any]:
    """Return the extensions in a response.

    Args:
        header: Value of its Sec-WebSocket-Extensions header.
        is_client: Whether this end is the client.
    """
    if not header:
        return []
    name, *items = (item.strip() for item in header.split(";"))
    if name != "permessage-deflate":
        return []
    parameters = dict([*item.split("="), ""][:2] for item in items)
    local, remote = ("client", "server") if is_client else ("server", "client")

    def bits(side: str) -> int:
        return int(parameters.get(f"{side}_max_window_bits", "").strip('" ') or 15)

    return [
        _names.get("PerMessageDeflate")(
            f"{remote}_no_context_takeover" in parameters,
            f"{local}_no_context_takeover" in parameters,
            bits(remote),
            bits(local),
        )
    ]
