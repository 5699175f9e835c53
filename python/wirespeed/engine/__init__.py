"""A multi-threaded WebSocket server, whose events reach Python in batches.

Native threads serve the sockets: handshakes, frames, masking, pings and broadcasts do not need the interpreter's lock.
Python takes batches of events, so that one acquisition of the lock serves many events::

    with wirespeed.engine.Engine("127.0.0.1", 8765) as engine:
        for batch in engine.batches():
            for event in batch:
                match event:
                    case Connected(session): ...
                    case Message(session, data): session.send(data)
                    case Disconnected(session, code, reason): ...
"""

from __future__ import annotations

from .._native import JWT, Batch, Connected, Disconnected, Invalid, Message, Sent, Session
from ._broker import BrokerEvent, BrokerStatus, Published, Publisher
from ._engine import Engine, Event
from ._lifecycle import Drained
from ._routes import RouteSettings

__all__ = [
    "JWT",
    "Batch",
    "BrokerEvent",
    "BrokerStatus",
    "Connected",
    "Disconnected",
    "Drained",
    "Engine",
    "Event",
    "Invalid",
    "Message",
    "Published",
    "Publisher",
    "RouteSettings",
    "Sent",
    "Session",
]
