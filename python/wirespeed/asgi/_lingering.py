"""Ends applications that are still running after their client has disconnected, when the server shuts down.

On shutdown, uvicorn notifies its connections and waits for its tasks. This module keeps applications that have a task,
but no connection any more.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["LingeringApplications", "lingering_applications"]


class Dismissible(Protocol):
    """An application without a connection."""

    def dismiss(self) -> None:
        """Cancel its wait for events that cannot come."""


class LingeringApplications:
    """The applications without a connection of one server.

    While there are any, this object is one of the connections of the server, so that uvicorn notifies it.

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
