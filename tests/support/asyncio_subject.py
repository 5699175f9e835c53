"""The asyncio client under test, like ``support.subject`` for the blocking one."""

from __future__ import annotations

from typing import Any

from .subject import IS_WIRESPEED, exceptions

__all__ = ["connect", "exceptions", "unix_connect"]

if IS_WIRESPEED:
    from wirespeed import connect, unix_connect

else:
    from websockets.asyncio import client as _client

    def _options(options: dict[str, Any]) -> dict[str, Any]:
        """Leaves out the options that websockets does not have."""
        for name in ("max_fragments", "port"):
            options.pop(name, None)
        return options

    def connect(uri: str, **options: Any) -> Any:
        return _client.connect(uri, **_options(options))

    def unix_connect(path: Any = None, uri: str | None = None, **options: Any) -> Any:
        return _client.unix_connect(path, uri, **_options(options))
