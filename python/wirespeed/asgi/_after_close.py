"""Applications whose client has disconnected: how long they may send, and their end on shutdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ..exceptions import ConnectionClosed

if TYPE_CHECKING:
    from .._native_types import Stats

__all__ = ["LingeringApplications", "SendAfterClose", "lingering_applications"]

# Seconds of discarding after each received message, while more wait to be received: as long as closing may take.
_WITH_MESSAGES = 10.0

# Seconds of discarding after the last message. An application that responds to it cannot be distinguished from one
# that only sends.
_WITHOUT_MESSAGES = 1.0

# Delay in seconds of each discarded message except the first after a received message, so that an application that
# only sends does not keep a core busy.
_FURTHER_DELAY = 0.001


class SendAfterClose:
    """The time that one application may still send, without a clock.

    RFC 6455, section 5.5.1, forbids sending after a close frame, and the core answers the client's close frame at once.
    An application that responds to each message may still have to receive the messages before it. If ``send`` raised,
    these would be lost, and frameworks would report a lost connection instead of the client's close code. So ``send``
    discards messages until ``receive`` has returned the end. An application that does not receive gets the exception
    from ``send``, after some time.
    """

    __slots__ = ("_end", "_received")

    def __init__(self) -> None:
        self._received = -1
        self._end = 0.0

    def delay(self, closed: ConnectionClosed, stats: Stats, now: float) -> float | None:
        """Return the delay in seconds of a discarded message; ``None`` if ``send`` must raise.

        Args:
            closed: How the connection ended.
            stats: The counters of the connection.
            now: The current time in seconds.
        """
        if closed.rcvd is None or (closed.sent is not None and not closed.rcvd_then_sent):
            # The connection was lost, or the application has closed it itself.
            return None
        waiting = stats["receive_queue_messages"]
        received = stats["messages_received"] - waiting
        if not waiting and not received:
            # It has not received any message to respond to.
            return None
        if received != self._received:
            # The first response to a received message.
            self._received = received
            self._end = now + (_WITH_MESSAGES if waiting else _WITHOUT_MESSAGES)
            return 0.0
        return _FURTHER_DELAY if now < self._end else None


class Dismissible(Protocol):
    """An application without a connection."""

    def dismiss(self) -> None:
        """Cancel its wait for events that cannot come."""


class LingeringApplications:
    """The applications without a connection of one server.

    On shutdown, uvicorn notifies its connections and waits for its tasks. These applications have a task, but no
    connection any more. While there are any, this object is one of the connections of the server, so that uvicorn
    notifies it.

    Args:
        connections: The connections of the server.
    """

    __slots__ = ("_connections", "_members")

    def __init__(self, connections: set[Any]) -> None:
        self._connections = connections
        self._members: set[Dismissible] = set()

    def add(self, member: Dismissible) -> None:
        """Add an application, to be dismissed when the server shuts down.

        Args:
            member: The application.
        """
        self._members.add(member)
        self._connections.add(self)

    def discard(self, member: Dismissible) -> None:
        """Remove an application, if it is a member.

        Args:
            member: The application.
        """
        self._members.discard(member)
        if not self._members:
            self._connections.discard(self)

    def shutdown(self) -> None:
        """Dismiss all applications; called by uvicorn when the server shuts down."""
        for member in list(self._members):
            self.discard(member)
            member.dismiss()


def lingering_applications(server_state: Any) -> LingeringApplications:
    """Return the applications without a connection of a server.

    Args:
        server_state: The state shared by the connections of the server.
    """
    found: LingeringApplications | None = getattr(server_state, "_wirespeed_lingering", None)
    if found is None:
        found = server_state._wirespeed_lingering = LingeringApplications(server_state.connections)
    return found
