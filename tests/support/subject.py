"""The implementation under test.

Tests take ``connect``, ``unix_connect`` and ``exceptions`` only from here, so that all tests run against wirespeed and,
with ``pytest --subject websockets``, against the library whose API wirespeed follows. The second run validates the
tests: one that fails there is wrong, unless it carries the ``websockets_differs`` or ``wirespeed_only`` marker.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["IS_WIRESPEED", "SUBJECT", "connect", "exceptions", "unix_connect"]

SUBJECT = os.environ.get("WIRESPEED_TEST_SUBJECT", "wirespeed")
IS_WIRESPEED = SUBJECT == "wirespeed"

if IS_WIRESPEED:
    from wirespeed import exceptions
    from wirespeed.sync import connect, unix_connect

elif SUBJECT == "websockets":
    from websockets import exceptions
    from websockets.sync import client as _client

    def _options(options: dict[str, Any]) -> dict[str, Any]:
        """Translates the options that websockets spells differently or does not have."""
        options.pop("max_fragments", None)
        if "local_addr" in options:
            options["source_address"] = options.pop("local_addr")
        return {"legacy": True, **options}

    def connect(uri: str, **options: Any) -> Any:
        try:
            return _client.connect(uri, **_options(options))
        except exceptions.ConnectionClosedError as exc:
            # websockets raises this from connect when the connection is lost before the request is sent, which is a
            # race.
            raise exceptions.InvalidMessage("connection lost in the opening handshake") from exc

    def unix_connect(path: Any = None, uri: str | None = None, **options: Any) -> Any:
        return _client.unix_connect(path, uri, **_options(options))

else:
    raise ValueError(f"WIRESPEED_TEST_SUBJECT must be wirespeed or websockets, not {SUBJECT!r}")
