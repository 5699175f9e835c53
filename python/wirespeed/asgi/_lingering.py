"""Applications whose clients have gone: a server that ends has to reach them too.

uvicorn tells its connections that it ends, and then waits for its tasks. Here are those that have a task and no
connection any more.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["LingeringSocket", "lingering_of"]


class Dismissible(Protocol):
    """What lingers."""

    def dismiss(self) -> None:
        """End what waits for events that cannot come."""


class LingeringSocket:
    """Those of a server. While there are any, it is one of the connections of the server, whatever their number.

    Args:
        connections: Those of the server.
    """

    __slots__ = ("_connections", "_members")

    def __init__(self, connections: set[Any]) -> None:
        self._connections = connections
        self._members: set[Dismissible] = set()

    def add(self, member: Dismissible) -> None:
        """Dismiss a member when the server ends.

        Args:
            member: What lingers.
        """
        self._members.add(member)
        self._connections.add(self)

    def discard(self, member: Dismissible) -> None:
        """Forget a member, if it is one.

        Args:
            member: What has ended.
        """
        self._members.discard(member)
        if not self._members:
            self._connections.discard(self)

    def shutdown(self) -> None:
        """Dismiss all, because the server ends; uvicorn calls it."""
        for member in list(self._members):
            self.discard(member)
            member.dismiss()


def lingering_of(server_state: Any) -> LingeringSocket:
    """Return what lingers in a server.

    Args:
        server_state: What its connections share.
    """
    found: LingeringSocket | None = getattr(server_state, "_wirespeed_lingering", None)
    if found is None:
        found = server_state._wirespeed_lingering = LingeringSocket(server_state.connections)
    return found
