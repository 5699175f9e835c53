"""Redirects that the method ``process_redirect`` of the connecting object decides, which applications may override."""

from __future__ import annotations

from typing import Any

from ..._net.redirects import RedirectChain, cross_origin_headers
from ..._net.uri import parse_uri
from ...exceptions import InvalidStatus, SecurityError
from . import _heads as heads
from ._settings import MAX_REDIRECTS, additional

__all__ = ["Chain"]


class Chain(RedirectChain):
    """The URIs that one attempt to connect visits.

    Args:
        connecting: Object with ``process_redirect``, and with ``uri``, ``ws_uri`` and ``additional_headers``, which
            change with each redirect.
        **how: As for RedirectChain.
    """

    def __init__(self, connecting: Any, **how: bool) -> None:
        super().__init__(connecting.uri, additional(connecting.additional_headers), max_redirects=MAX_REDIRECTS, **how)
        self._connecting = connecting

    def server_hostname(self, named: str | None) -> str | None:
        """Return the name that the certificate must have: the argument of the user, also after redirects.

        Args:
            named: As for RedirectChain.
        """
        return named

    def redirect(self, exc: Exception) -> Exception | str:
        """Return the target of a redirect, or the exception to raise.

        Args:
            exc: The exception of connecting.
        """
        if not isinstance(exc, InvalidStatus):
            return exc
        before = self.parsed.origin
        try:
            super().follow(exc)
        except Exception as failure:
            return failure
        if self.parsed.origin != before and self._connecting.additional_headers is not None:
            self._connecting.additional_headers = self.headers
        return self.uri

    def follow(self, exc: InvalidStatus) -> None:
        """Move on to the target of a redirect.

        Args:
            exc: The rejection, raised again if it is not a redirect.
        """
        heads.adapt(exc)
        to = self._connecting.process_redirect(exc)
        if isinstance(to, Exception):
            if to is exc:
                raise exc
            raise to from exc
        if self._followed >= self._max_redirects:
            raise SecurityError(f"more than {self._max_redirects} redirects") from exc
        self._followed += 1
        parsed = parse_uri(to)
        headers = additional(self._connecting.additional_headers)
        if headers is not None and parsed.origin != self.parsed.origin:
            headers = cross_origin_headers(headers)
        self.uri, self.parsed, self.headers = to, parsed, headers
        self._connecting.uri, self._connecting.ws_uri = to, heads.websocket_uri(to)
