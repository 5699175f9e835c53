"""Log lines of a websockets server about each connection, which is the ``websocket`` attribute of the record."""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["Logged", "log_closed", "note_application"]


class Logged:
    """Base class of server connections, before the native class: logs the response to the request."""

    logger: Any
    response: Any
    _by_application = False

    def _send_answer(self, answer: Any) -> Any:
        error = super()._send_answer(answer)  # type: ignore[misc]
        if self.logger.isEnabledFor(logging.INFO):
            response = self.response
            if response.status_code == 101:
                self.logger.info("connection open")
            else:
                line = "HTTP response sent (%d %s)" if self._by_application else "connection rejected (%d %s)"
                self.logger.info(line, response.status_code, response.reason_phrase)
        return error


def note_application(connection: Any, response: Any) -> None:
    """Note that the application has answered a request, if it has.

    Args:
        connection: The connection.
        response: The value that ``process_request`` returned.
    """
    if response is not None:
        connection._by_application = True


def log_closed(connection: Any) -> None:
    """Log that a connection is closed.

    Args:
        connection: The connection.
    """
    connection.logger.info("connection closed")
