"""Judges only a record: order, single delivery, completeness, counts, one end for each session."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from .record import Call, Ident, Record, Seen, SessionEvents

__all__ = ["ECHO", "judge"]

# Actors from this number on answer the messages of the client of the number above it.
ECHO = 10_000

DRAIN = 1001


def judge(record: Record, options: dict[str, Any]) -> list[str]:
    """Returns the errors as texts."""
    found = list(record.complaints)
    known = {call.ident: call for call in record.calls if call.ident is not None}
    told = {one.index: one for one in record.told.values()}
    for seen in record.seen.values():
        found += [f"client {seen.index}: {problem}" for problem in _received(seen, known, options)]
    for one in record.told.values():
        found += [f"session of client {one.index}: {problem}" for problem in _told(one, options)]
    found += [f"it raised what is not documented: {call}" for call in record.calls if _is_wrong(call)]
    if record.orderly:
        stable = {index: seen for index, seen in record.seen.items() if _is_stable(seen, told.get(index))}
        if options["policy"] == "disconnect":
            found += _complete(record, stable)
        if len(stable) == len(record.seen):
            found += _counts(record)
    return found


def _is_wrong(call: Call) -> bool:
    return isinstance(call.result, str) and call.result not in ("full", "closed")


def _is_stable(seen: Seen, told: SessionEvents | None) -> bool:
    """Returns whether the client stayed from the beginning to the end, and got the close frame."""
    return seen.early and told is not None and not seen.left and seen.close == DRAIN and seen.ended == "eof"


def _received(seen: Seen, known: dict[Ident, Call], options: dict[str, Any]) -> list[str]:
    found = list(seen.problems)
    by_actor: dict[int, list[Ident]] = {}
    for ident in seen.received:
        by_actor.setdefault(ident[0], []).append(ident)
    for idents in by_actor.values():
        found += [f"{later} came after {earlier}" for earlier, later in pairwise(idents) if later <= earlier]
        for ident in idents:
            call = known.get(ident)
            # With several workers, some may have ended.
            over = call is not None and call.result == "closed" and call.verb != "send" and options["end"] != "drain"
            if call is None or not (call.sent or over):
                found.append(f"{ident} came, and was not sent: {call}")
            elif call.more.get("exclude") == seen.index and call.more.get("excluded"):
                found.append(f"{ident} came, from which it was excluded: {call}")
            elif call.verb == "send" and call.more["client"] != seen.index:
                found.append(f"{ident} came, which is for another one: {call}")
    return found


def _told(one: SessionEvents, options: dict[str, Any]) -> list[str]:
    found = []
    if one.connected != 1:
        found.append(f"its beginning was told {one.connected} times")
    if len(one.disconnected) != 1:
        found.append(f"its end was told {len(one.disconnected)} times: {one.disconnected}")
    ordered = options["taker"] != "threads"
    if ordered and one.late:
        found.append(f"{one.late} events came after its end or before its beginning")
    if ordered and one.messages != [(one.index, number) for number in range(len(one.messages))]:
        found.append(f"its messages are not in order, or some are missing: {one.messages[:20]}")
    if len(set(one.messages)) != len(one.messages):
        found.append("a message came twice")
    return found


def _segments_match(pattern: str, topic: str) -> bool:
    ours, theirs = pattern.split("."), topic.split(".")
    for number, segment in enumerate(ours):
        if segment == ">":
            return len(theirs) > number
        if number >= len(theirs) or segment not in ("*", theirs[number]):
            return False
    return len(ours) == len(theirs)


def _subscribed(call: Call, client: int, changes: list[Call]) -> bool | None:
    """Returns whether a client subscribes to the topic of a published message; ``None``: it was being changed."""
    state: dict[str, bool | None] = {}
    for change in changes:
        if change.more["client"] != client or not change.sent:
            continue
        if not _segments_match(change.more["pattern"], call.more["topic"]):
            continue
        pattern = change.more["pattern"]
        if change.ended < call.began:
            # Two changes of one pattern at once: either may be the last.
            doubt = any(
                other is not change
                and other.more["client"] == client
                and other.more["pattern"] == pattern
                and other.began < change.ended
                and change.began < other.ended
                for other in changes
            )
            state[pattern] = None if doubt else change.verb == "subscribe"
        elif change.began < call.ended:
            state[pattern] = None
    if any(value is True for value in state.values()):
        return True
    return None if None in state.values() else False


def _complete(record: Record, stable: dict[int, Seen]) -> list[str]:
    """Checks that clients which read to the end get everything."""
    found = []
    changes = sorted(
        (call for call in record.calls if call.verb in ("subscribe", "unsubscribe")), key=lambda call: call.ended
    )
    for index, seen in stable.items():
        got = set(seen.received)
        for call in record.calls:
            if call.ident is None or not call.sent:
                continue
            expected: bool | None = None
            if call.verb == "send":
                expected = True if call.more["client"] == index else None
            elif call.more.get("exclude") == index and call.more.get("excluded"):
                expected = False
            elif call.verb == "broadcast":
                expected = True
            elif call.verb == "publish":
                expected = _subscribed(call, index, changes)
            if expected is True and call.ident not in got:
                found.append(f"client {index} has not got {call}")
            if expected is False and call.ident in got:
                found.append(f"client {index} has got {call}")
    return found


def _counts(record: Record) -> list[str]:
    """Checks that with all clients present each counted message was delivered, or counted as dropped."""
    delivered: dict[Ident, int] = {}
    for seen in record.seen.values():
        for ident in seen.received:
            delivered[ident] = delivered.get(ident, 0) + 1
    found = []
    expected = 0
    for call in record.calls:
        if call.ident is None or not call.sent:
            continue
        count = {"send": 1, "broadcast": len(record.seen) - bool(call.more.get("excluded"))}.get(call.verb)
        count = call.result if count is None else count
        expected += count
        got = delivered.get(call.ident, 0)
        if got > count or (got < count and not record.dropped):
            found.append(f"{got} of {count} got {call}")
    lost = expected - sum(delivered.values())
    if record.dropped is not None and lost != record.dropped:
        found.append(f"{lost} messages did not arrive, {record.dropped} were counted as dropped")
    return found
