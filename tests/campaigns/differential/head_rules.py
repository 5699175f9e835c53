"""Intended differences from ``websockets`` and ``wsproto`` in judging heads: one narrow rule for each.

A rule names both verdicts. A difference without a rule is a defect, of ours or of the comparison. docs/conformance.md
explains them to users.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from .heads import HeadCase, Verdict

WEBSOCKETS = frozenset(["websockets"])
WSPROTO = frozenset(["wsproto"])
BOTH = WEBSOCKETS | WSPROTO


@dataclasses.dataclass(frozen=True)
class HeadRule:
    """One decision.

    Attributes:
        who: The other implementation.
        kind: The kind of heads: "request", "response", or both.
        ours: A pattern of our verdict: the kind, the status and the text.
        theirs: The verdict of the other.
        when: A further condition.
    """

    name: str
    who: frozenset[str]
    kind: str
    ours: str
    theirs: str
    says: str
    when: Callable[[HeadCase], bool] = lambda _: True

    def explains(self, who: str, case: HeadCase, ours: Verdict, theirs: Verdict) -> bool:
        return (
            who in self.who
            and self.kind in (case.kind, "both")
            and re.match(self.ours, _words(ours)) is not None
            and re.match(self.theirs, _words(theirs)) is not None
            and self.when(case)
        )


RULES = [
    # Ours is stricter.
    HeadRule(
        "host",
        BOTH,
        "request",
        "refused 400 (invalid|missing|more than one) Host",
        "accepted",
        "a request has one Host, and it is one",
    ),
    HeadRule(
        "target",
        BOTH,
        "request",
        "refused 400 invalid request target",
        "accepted",
        "the target is a path, or the URL of one",
    ),
    HeadRule(
        "start-line",
        BOTH,
        "both",
        "refused 400 not an HTTP/1.1 message",
        "accepted|rejected",
        "a start line has no control characters, and a status three digits",
    ),
    HeadRule(
        "line-ends",
        WSPROTO,
        "both",
        r"refused 400 line \d+ of the head does not end",
        "accepted|rejected|incomplete|refused",
        "lines end in CR LF",
    ),
    HeadRule(
        "header-lines",
        WSPROTO,
        "both",
        "refused 400 malformed header line",
        "accepted|rejected|refused|incomplete",
        "no folded lines, no control characters",
    ),
    HeadRule(
        "limits",
        BOTH,
        "both",
        "refused 431|refused 414",
        "accepted|rejected|refused 400 Bad HTTP|incomplete",
        "a head has 16 KiB and 128 fields at most",
    ),
    HeadRule(
        "extension-list",
        BOTH,
        "both",
        "refused 400 invalid Sec-WebSocket-Extensions",
        "accepted",
        "the field follows its grammar, whether compression is wanted or not",
    ),
    HeadRule(
        "body", WSPROTO, "request", "refused 400 the request announces a body", "accepted", "a request has no body"
    ),
    HeadRule("version", WSPROTO, "both", "refused 505", "accepted|incomplete", "it is HTTP/1.1"),
    HeadRule(
        "fields",
        WSPROTO,
        "both",
        r"refused \d+ (invalid|more than one) Sec-WebSocket-(Key|Version|Accept|Protocol)",
        "accepted",
        "what may occur once occurs once, a key is one, and names of subprotocols are tokens",
    ),
    HeadRule(
        "answered-subprotocol",
        WEBSOCKETS,
        "response",
        "refused 500 the server chose a subprotocol that was not offered",
        "accepted",
        "a server answers with one subprotocol, and no list",
    ),
    HeadRule(
        "answered-parameters",
        WSPROTO,
        "response",
        "refused 500 (the server accepted|unknown parameter|more than one|invalid value|the .* parameter)",
        "accepted",
        "what a server answers to an offer obeys it",
    ),
    HeadRule(
        "offered-parameters",
        WSPROTO,
        "request",
        "accepted .*deflate=None",
        "accepted .*deflate=.False",
        "an offer with a parameter that is unknown, invalid or repeated is declined",
    ),
    HeadRule(
        "answered-upgrade", WSPROTO, "response", "refused 426 invalid Upgrade", "accepted", "a response has one Upgrade"
    ),
    # Ours is more lenient.
    HeadRule(
        "lines-before",
        BOTH,
        "request",
        "accepted",
        "refused 0 .*invalid HTTP request line: $|refused 400 Bad HTTP",
        "empty lines before a request are skipped",
        lambda case: case.head.startswith(b"\r\n"),
    ),
    HeadRule(
        "upgrade-list",
        BOTH,
        "request",
        "accepted",
        "refused (426|400) invalid Upgrade|refused 400 Missing header, 'Upgrade",
        "the Upgrade of a request contains websocket, among others",
    ),
    HeadRule(
        "connection-list",
        WSPROTO,
        "both",
        "accepted",
        "refused 400 Missing header, 'Connection: Upgrade",
        "a field that is a list may be divided",
        lambda case: len(re.findall(rb"(?im)^connection:", case.head)) > 1,
    ),
    HeadRule(
        "connection-elements",
        WEBSOCKETS,
        "both",
        "accepted",
        r"refused \d+ invalid Connection header: expected (comma|token)",
        "elements of Connection that are no tokens are passed over",
    ),
    HeadRule(
        "beyond-ascii",
        WSPROTO,
        "both",
        "accepted",
        "refused 0 UnicodeDecodeError",
        "bytes beyond ASCII in a value are kept",
    ),
    HeadRule(
        "empty-elements",
        WSPROTO,
        "response",
        "accepted",
        "refused 400 (Missing header, 'Upgrade|unrecognized extension $)",
        "an empty element of a list is none",
    ),
    HeadRule(
        "subprotocol-list",
        WEBSOCKETS,
        "request",
        "accepted",
        "refused 400 (invalid|empty) Sec-WebSocket-Protocol",
        "a list of subprotocols may be empty",
    ),
    HeadRule(
        "origin-twice",
        WEBSOCKETS,
        "request",
        "accepted",
        "refused 400 invalid Origin header: multiple",
        "only a server with a list of allowed origins refuses two",
    ),
    HeadRule(
        "length-list",
        WEBSOCKETS,
        "request",
        "accepted",
        "refused 0 .*unsupported request body",
        "a length of 0 may be said twice",
        lambda case: b"Content-Length: 0, 0" in case.head,
    ),
    HeadRule(
        "window-of-8",
        BOTH,
        "both",
        r"accepted .*deflate=.*\b8\b",
        "accepted|refused 0 Unsupported extension",
        "a window of 8 bits is kept",
    ),
    HeadRule(
        "quoted-parameters",
        WSPROTO,
        "both",
        "accepted",
        "refused 0 ValueError",
        "a parameter may be quoted, and one that is no number is no crash",
    ),
    HeadRule(
        "no-reason",
        WEBSOCKETS,
        "response",
        "accepted",
        r"refused 0 .*invalid HTTP status line: HTTP/1.1 101$",
        "a status line may end behind its code",
    ),
    HeadRule(
        "interim",
        BOTH,
        "response",
        "",
        r"rejected 1\d\d",
        "interim responses are skipped",
        lambda case: re.search(rb"^HTTP/1.1 1(?!01)\d\d", case.head) is not None,
    ),
    HeadRule(
        "long-lines",
        WEBSOCKETS,
        "both",
        "accepted|rejected",
        r"refused \d+ .*read \d+ bytes, expected no more than 8192",
        "a line may be as long as the head",
    ),
    HeadRule(
        "cut-bodies",
        WEBSOCKETS,
        "response",
        "rejected",
        r"refused 0 did not receive a valid HTTP response; (?!invalid status code|read \d)|incomplete",
        "a response that refuses keeps its status, whatever its body is",
    ),
    HeadRule("cut-bodies-of-h11", WSPROTO, "response", "rejected", "refused 400 Bad HTTP|incomplete", "the same"),
    HeadRule(
        "statuses",
        WEBSOCKETS,
        "response",
        "rejected [6-9]|incomplete",
        "refused 0 .*invalid status code",
        "a status is a number of three digits",
    ),
    HeadRule(
        "body-of-101",
        WSPROTO,
        "response",
        "accepted",
        "refused 400 Bad HTTP",
        "whatever a 101 says of a body, it has none",
        lambda case: re.search(rb"(?im)^(content-length|transfer-encoding):", case.head) is not None,
    ),
    # Reported at another time, or differently.
    HeadRule(
        "lines-in-the-end", BOTH, "both", "incomplete", "refused", "a malformed line is told when the head is complete"
    ),
    HeadRule(
        "first-bytes",
        BOTH,
        "both",
        "refused 400 not an HTTP/1.1 message",
        "incomplete",
        "bytes that are no HTTP are refused at once",
    ),
    HeadRule(
        "always-an-answer",
        WEBSOCKETS,
        "request",
        r"refused (4\d\d|505)",
        "refused 0 did not receive a valid HTTP request",
        "a client that sends no request gets the reason",
    ),
    HeadRule(
        "versions-get-426",
        WEBSOCKETS,
        "request",
        "refused 426 (missing|unsupported) Sec-WebSocket-Version",
        "refused 400 .*Sec-WebSocket-Version",
        "another version is answered with 426",
    ),
    HeadRule(
        "lists-get-426",
        WEBSOCKETS,
        "request",
        "refused 426 invalid (Connection|Upgrade)",
        "refused 400 invalid (Connection|Upgrade)",
        "so is a list that is none",
    ),
]


def _words(verdict: Verdict) -> str:
    if verdict.kind == "accepted":
        return f"accepted {verdict.status} deflate={verdict.deflate}"
    return f"{verdict.kind} {verdict.status} {verdict.text}"


def difference(who: str, case: HeadCase, ours: Verdict, theirs: Verdict) -> tuple[str, frozenset[str]]:
    """Returns the difference that no rule explains, or empty; and the names of the rules that explain a difference.

    Args:
        who: "websockets" or "wsproto"; for the latter neither the status of a refusal is compared, which is a hint
            only, nor the parameters of compression, only whether it is used.
    """
    if _alike(who, case, ours, theirs):
        return "", frozenset()
    rules = frozenset(rule.name for rule in RULES if rule.explains(who, case, ours, theirs))
    return ("" if rules else f"ours {ours}, {who} {theirs}"), rules


def _alike(who: str, case: HeadCase, ours: Verdict, theirs: Verdict) -> bool:
    if ours.kind != theirs.kind:
        return False
    if ours.kind == "accepted":
        key = case.kind == "response" or ours.key == theirs.key
        deflate = ours.deflate == theirs.deflate
        if who == "wsproto":
            deflate = (ours.deflate is None) == (theirs.deflate is None)
        return key and deflate and ours.subprotocol == theirs.subprotocol
    if ours.kind == "refused":
        compares = case.kind == "request" and who == "websockets" and case.faults <= 1
        return not compares or ours.status == theirs.status
    return ours.status == theirs.status and ours.body == theirs.body
