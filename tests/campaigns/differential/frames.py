"""``wsproto`` as a third implementation of frames: its events for a stream, without calls, compression and limits."""

from __future__ import annotations

import dataclasses

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage

from .case import Case
from .outcome import Event

WSPROTO_DECISIONS = {
    "close-code-1014": "a close frame may have the code 1014, which IANA has registered since",
    "header-when-complete": "a mask that is missing, or should be, is told when the header is complete, theirs before",
}
"""Names, and what they say."""


def plain(case: Case) -> Case | None:
    """Returns the case reduced to plain frames; ``None``: it is about compression."""
    if case.deflate is not None:
        return None
    steps = tuple(step for step in case.steps if step[0] == "receive")
    return dataclasses.replace(
        case, steps=steps, fragments=False, message_size=None, fragment_size=None, most_fragments=None
    )


def wsproto_events(case: Case) -> tuple[list[Event], str]:
    """Returns the events of wsproto, and its error, if any."""
    connection = Connection(ConnectionType.CLIENT if case.side == "client" else ConnectionType.SERVER)
    events: list[Event] = []
    parts: list[bytes] = []
    for step in case.steps:
        connection.receive_data(step[1])
        for event in connection.events():
            if isinstance(event, (TextMessage, BytesMessage)):
                text = isinstance(event, TextMessage)
                parts.append(event.data.encode() if isinstance(event, TextMessage) else bytes(event.data))
                if event.message_finished:
                    events.append(("text" if text else "binary", b"".join(parts), True))
                    parts = []
            elif isinstance(event, (Ping, Pong)):
                events.append(("ping" if isinstance(event, Ping) else "pong", bytes(event.payload)))
            elif isinstance(event, CloseConnection):
                if connection.state is ConnectionState.OPEN:
                    return [*events, ("fault", int(event.code))], event.reason or ""
                return [*events, ("close", int(event.code), event.reason)], ""
    return events, ""


def frame_difference(ours: list[Event], theirs: list[Event], why: str) -> tuple[str, str]:
    """Returns the difference that no decision explains, or empty; and the decision that explains it, or empty."""
    if ours == theirs:
        return "", ""
    common = theirs[:-1]
    if theirs[-1:] == [("fault", 1002)] and ours[: len(common)] == common:
        rest = ours[len(common) :]
        if "unknown reserved code" in why and rest and (rest[0][:2] == ("close", 1014) or rest == [("fault", 1007)]):
            return "", "close-code-1014"
        if "mask" in why and not rest:
            return "", "header-when-complete"
    return f"ours {ours}, wsproto {theirs} ({why})", ""
