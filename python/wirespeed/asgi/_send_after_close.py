"""Applications that are behind a client that has closed: how long they may send without an error.

RFC 6455, section 5.5.1: nothing may be sent after a close frame, and the core answers the client's as soon as it comes.
An application that answers each message has then yet to receive those that came before it. If its ``send`` raised,
these were lost, and frameworks would report a lost connection and not the client's code. So what it sends goes nowhere,
until ``receive`` has told it of the end. One that does not receive must learn of it all the same: from ``send``, after
a while.

There is no clock in here and no event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exceptions import ConnectionClosed

if TYPE_CHECKING:
    from .._native_types import Stats

__all__ = ["SendAfterClose"]

# Seconds for each message while others wait to be received: as long as a connection may take to close.
_WITH_MESSAGES = 10.0

# Seconds for the last one. Who was told something once and publishes ever since cannot be told from who
# answers it.
_WITHOUT_MESSAGES = 1.0

# Seconds that each but the first answer to a message takes: who only sends keeps no core busy with what goes
# nowhere.
_FURTHER_DELAY = 0.001


class SendAfterClose:
    """What an application that is behind may still send."""

    __slots__ = ("_end", "_received")

    def __init__(self) -> None:
        self._received = -1
        self._end = 0.0

    def delay(self, closed: ConnectionClosed, stats: Stats, now: float) -> float | None:
        """Return how many seconds a message takes that goes nowhere; ``None`` if the application must be told.

        Args:
            closed: How the connection ended.
            stats: The counters of the connection.
            now: The present time, in seconds.
        """
        if closed.rcvd is None or (closed.sent is not None and not closed.rcvd_then_sent):
            # Nobody has closed it, or this end has: the application that did so knows.
            return None
        waiting = stats["receive_queue_messages"]
        received = stats["messages_received"] - waiting
        if not waiting and not received:
            # It only sends: there is nothing that it answers.
            return None
        if received != self._received:
            # The first answer to a message.
            self._received = received
            self._end = now + (_WITH_MESSAGES if waiting else _WITHOUT_MESSAGES)
            return 0.0
        return _FURTHER_DELAY if now < self._end else None
