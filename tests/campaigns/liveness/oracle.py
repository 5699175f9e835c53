"""Judges a record: every message arrives once, whole and in order, or the connection has reported a failure.

It uses nothing but the record. ``settling`` checks during the run that no call waits forever.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from .payload import Ident
from .record import Call, Link, Record

# Exceptions that a call may raise, besides ConnectionClosed once the connection is not open.
_ALLOWED = {
    "send_nowait": {"BlockingIOError"},
    "recv": {"ConcurrencyError", "UnicodeDecodeError"},
    "recv_many": {"ConcurrencyError", "UnicodeDecodeError"},
    "recv_nowait": {"BlockingIOError", "ConcurrencyError", "UnicodeDecodeError"},
    "fragments": {"ConcurrencyError"},
} | {verb: {"ConcurrencyError"} for verb in ("stream", "iterate")}


def judge(record: Record, *, ordered: bool) -> list[str]:
    """Returns the errors as texts.

    Args:
        record: Of a finished run.
        ordered: Whether calls began in the order in which they are recorded, as on an event loop.
    """
    found = [*record.complaints]
    if found:
        # The call was interrupted: missing messages may have been received.
        return found + [problem for link in record.links for problem in [*link.problems, *link.peer.problems]]
    for link in record.links:
        about = f"connection {link.index}: " if len(record.links) > 1 else ""
        calls = record.of(link)
        problems = [*link.problems, *(f"the peer: {problem}" for problem in link.peer.problems)]
        problems += _sent(link, calls, ordered=ordered)
        problems += _received(link, calls, single=record.single)
        problems += _ending(link, calls)
        found += [about + problem for problem in problems]
    found += record.afterwards
    for call in record.calls:
        found += _errors(call, record.links[call.step.link], ordered=ordered)
    return found


def _sent(link: Link, calls: list[Call], *, ordered: bool) -> list[str]:
    found = []
    received = link.peer.received
    found += [f"message {ident} arrived twice" for ident in _doubles(received)]
    known = {ident: call for call in calls for ident in call.idents}
    found += [f"message {ident} arrived, and was not sent" for ident in received if ident not in known]
    for actor in {ident.task for ident in received}:
        own = [ident for ident in received if ident.task == actor]
        found += [f"message {later} arrived before {earlier}" for later, earlier in pairwise(own) if later > earlier]
    if ordered:
        # A call with a timeout is a task of its own, which begins later.
        waited = [known[ident] for ident in received if ident in known and known[ident].step.get("timeout") is None]
        single = [call for call in waited if call.verb == "send"]
        found += [
            f"message {before.idents[0]} overtook {after.idents[0]}, whose send was called first"
            for before, after in pairwise(single)
            if before.order > after.order and before.actor != after.actor
        ]
    arrived = set(received)
    for call in calls:
        if call.verb == "send_nowait" and "BlockingIOError" in call.kinds:
            found += [f"message {ident} was refused and arrived: {call}" for ident in call.idents if ident in arrived]
        # The close frame is the last: everything that was accepted came before it.
        if link.peer.close_received is not None and _promised(call):
            found += [f"message {ident} is lost: {call}" for ident in call.idents if ident not in arrived]
    return found


def _promised(call: Call) -> bool:
    if call.verb == "broadcast":
        return False
    # Items before the one that could not be encoded were accepted.
    if call.verb == "send_many" and "UnicodeEncodeError" in call.kinds:
        return True
    if call.verb == "send_many" and not call.step.get("lazy"):
        # Items taken from the iterable are sent.
        return call.result in ("returned", "cancelled")
    return call.result == "returned"


def _received(link: Link, calls: list[Call], *, single: bool) -> list[str]:
    found = []
    received = [ident for _, ident in link.delivered]
    sent = set(link.peer.sent)
    found += [f"message {ident} was received twice" for ident in _doubles(received)]
    found += [f"message {ident} was received, and the peer has not sent it" for ident in received if ident not in sent]
    if single:
        for actor in {actor for actor, _ in link.delivered}:
            own = [ident for who, ident in link.delivered if who == actor]
            found += [f"message {a} was received before {b}" for a, b in pairwise(own) if a > b]
    complete = link.peer.close_sent_first and link.peer.close_received is not None and not link.peer.broke
    if complete and not _ended_here(link, calls):
        missing = sorted(sent - set(received) - link.dropped)
        if len(missing) > link.lost:
            found.append(f"{len(missing)} of {len(sent)} messages of the peer were not received, from {missing[0]} on")
    return found


def _ended_here(link: Link, calls: list[Call]) -> bool:
    """Returns whether this end has begun to close, or has cut the connection."""
    if link.aborted or link.closed:
        return True
    broken = any(call.verb == "fragments" and call.result in ("cancelled", "interrupted") for call in calls)
    return broken or any(call.verb == "broadcast" and call.step.get("slow") != "skip" for call in calls)


def _ending(link: Link, calls: list[Call]) -> list[str]:
    peer = link.peer
    drops = any(call.verb == "broadcast" and call.step.get("slow") == "drop" for call in calls)
    if peer.close_received is None:
        # An exception of a signal handler inside an ssl.SSLContext loses the bytes in progress.
        torn = link.may_tear and any("(because of Poke" in call.error for call in calls)
        if peer.broke or peer.problems or link.aborted or drops or torn:
            return []
        return [f"the connection ended without a close frame, though neither end has cut it: the peer saw {peer.ended}"]
    code = peer.close_received.code
    # A handler's end also gives 1000; messages of the peer are echoed.
    allowed = {1000, 1001, 4000} | {1013} | ({1011} if peer.close_sent_first or _ended_here(link, calls) else set())
    if peer.broke:
        allowed |= {1006}
    return [] if code in allowed else [f"the connection was closed with {code} {peer.close_received.reason!r}"]


def _errors(call: Call, link: Link, *, ordered: bool) -> list[str]:
    if call.result == "running":
        return [f"it never ended: {call}"]
    if call.result == "cancelled" and not call.cancelling:
        return [f"it was cancelled by no step: {call}"]
    if call.result != "raised" or call.kinds & _ALLOWED.get(call.verb, set()):
        return []
    if call.step.get("bad") and "UnicodeEncodeError" in call.kinds:
        return []
    # Threads do not wait for the end of another's fragmented message; tasks do.
    if not ordered and call.verb in ("send", "send_many") and "ConcurrencyError" in call.kinds:
        return []
    if "ConnectionClosed" in call.kinds and call.verb not in ("close", "wait_closed", "abort", "stats"):
        # The first to notice the end may be a call that can no longer write.
        return (
            []
            if call.state != "OPEN" or link.peer.broke
            else [f"it raised that the connection is closed, which is open: {call}"]
        )
    if "TimeoutError" in call.kinds and call.step.get("timeout") is not None:
        return []
    return [f"it raised what is not documented: {call}"]


def _doubles(idents: Iterable[Ident]) -> list[Ident]:
    seen: set[Ident] = set()
    doubles = []
    for ident in idents:
        if ident in seen:
            doubles.append(ident)
        seen.add(ident)
    return doubles
