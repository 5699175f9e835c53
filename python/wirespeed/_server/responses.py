"""Builds the HTTP responses of servers. Every server imports it, so it imports little itself."""

from __future__ import annotations

import http
import time

from ..datastructures import Headers, Response
from ..typing import StatusLike

__all__ = ["common_fields", "plain_response"]

_date: tuple[int, str] = (0, "")

# In English, independent of the locale.
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def http_date() -> str:
    """Return the current time in the format of a Date header (RFC 9110, section 5.6.7)."""
    global _date
    now = int(time.time())
    if _date[0] != now:
        # Like email.utils.formatdate, whose import takes longer than the import of this package.
        year, month, day, hour, minute, second, weekday, *_ = time.gmtime(now)
        date = f"{_DAYS[weekday]}, {day:02} {_MONTHS[month - 1]} {year:04}"
        _date = (now, f"{date} {hour:02}:{minute:02}:{second:02} GMT")
    return _date[1]


def common_fields(server_header: str | None) -> list[tuple[str, str]]:
    """Return the header fields that every response has.

    Args:
        server_header: Value of the Server header, ``None`` for no header.
    """
    fields = [("Date", http_date())]
    if server_header is not None:
        fields.append(("Server", server_header))
    return fields


def plain_response(status: StatusLike, text: str) -> Response:
    """Return a plain text response.

    Args:
        status: Status code.
        text: Body.
    """
    status = http.HTTPStatus(status)
    body = text.encode()
    headers = Headers.from_raw(
        [
            ("Date", http_date()),
            ("Connection", "close"),
            ("Content-Length", str(len(body))),
            ("Content-Type", "text/plain; charset=utf-8"),
        ]
    )
    return Response(status.value, status.phrase, headers, body)
