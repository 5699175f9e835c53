"""Random heads through our implementation, ``websockets`` and ``wsproto``: equal results, except for intended
differences.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

import pytest

from campaigns.differential.core import Core, CoreMissing
from campaigns.differential.head_campaign import compare_head, head_campaign
from campaigns.differential.head_generate import draw_head
from campaigns.differential.head_rules import RULES, difference
from campaigns.differential.heads import KEY, HeadCase, Offer, Verdict
from campaigns.differential.oracle import IS_KNOWN
from support.samples import sample
from support.scripted import accept_key

pytestmark = [
    pytest.mark.wirespeed_only("both are compared here"),
    pytest.mark.skipif(not IS_KNOWN, reason="an older websockets"),
]

HEADS = 1600

REQUEST = [
    b"GET / HTTP/1.1", b"Host: localhost", b"Upgrade: websocket", b"Connection: Upgrade",
    b"Sec-WebSocket-Key: " + KEY.encode(), b"Sec-WebSocket-Version: 13",
]  # fmt: skip
RESPONSE = [
    b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade",
    b"Sec-WebSocket-Accept: " + accept_key(KEY).encode(),
]  # fmt: skip


def head(lines: list[bytes], *more: bytes, first: bytes = b"", **fields: bytes) -> HeadCase:
    """Returns a head with other or additional fields."""
    changed = [first or lines[0]]
    for line in lines[1:]:
        name = line.partition(b":")[0].decode()
        changed.append(fields.get(name.replace("-", "_"), line))
    kind = "request" if lines is REQUEST else "response"
    return HeadCase(kind, b"\r\n".join([*changed, *more, b"", b""]))


# Cases that random generation may not produce in so few heads.
RARE = {
    "lines-before": head(REQUEST, first=b"\r\n" + REQUEST[0]),
    "body": head(REQUEST, b"Transfer-Encoding: chunked"),
    "origin-twice": head(REQUEST, b"Origin: a", b"Origin: b"),
    "connection-elements": head(REQUEST, Connection=b"Connection: a/b, Upgrade"),
    "beyond-ascii": head(REQUEST, Connection=b"Connection: caf\xe9, Upgrade"),
    "empty-elements": head(RESPONSE, Upgrade=b"Upgrade: ,websocket"),
    "no-reason": head(RESPONSE, first=b"HTTP/1.1 101"),
    "interim": head(RESPONSE, first=b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + RESPONSE[0]),
    "first-bytes": HeadCase("response", b"SSH-2.0"),
    "subprotocol-list": head(REQUEST, b"Sec-WebSocket-Protocol: ,"),
    "start-line": head(REQUEST, first=b"GET /\t HTTP/1.1"),
    "connection-list": head(REQUEST, b"Connection: close"),
    "body-of-101": head(RESPONSE, b"Transfer-Encoding: identity"),
    "extension-list": head(REQUEST, b"Sec-WebSocket-Extensions: ,"),
    "answered-subprotocol": dataclasses.replace(
        head(RESPONSE, b"Sec-WebSocket-Protocol: chat,"), subprotocols=("chat",)
    ),
    "length-list": head(REQUEST, b"Content-Length: 0, 0"),
}


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    try:
        core = Core()
    except CoreMissing as exc:
        pytest.skip(str(exc))
    with core:
        yield core


def test_random_heads(core: Core, rotation: str | None) -> None:
    seeds = sample(map(str, range(HEADS)), 2, rotation)
    tally = head_campaign(core, iter(seeds))
    if tally.failures:
        pytest.fail("\n".join(tally.failures), pytrace=False)
    assert tally.heads == len(seeds)
    verdicts = ["request accepted", "request refused", "response accepted", "response refused", "response rejected"]
    assert all(tally.verdicts[verdict] > len(seeds) // 40 for verdict in verdicts), tally
    if len(seeds) == HEADS:  # with fewer heads, some rules of the generator are not used
        rules = {rule.name for rule in RULES} - set(RARE)
        assert rules <= set(tally.alone), rules - set(tally.alone)


@pytest.mark.parametrize("name", RARE)
def test_rare_heads(core: Core, name: str) -> None:
    verdict, differences, rules = compare_head(core, RARE[name])
    assert differences == {}
    assert name in rules, verdict


def test_rules_have_names_of_their_own() -> None:
    assert [name for name, count in collections.Counter(rule.name for rule in RULES).items() if count > 1] == []
    assert set(RARE) <= {rule.name for rule in RULES}


# Differences are found

GRANTED = Verdict("accepted", 101, subprotocol="chat", deflate=(False, False, 15, 15), key="key")


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(GRANTED, subprotocol=None),
        dataclasses.replace(GRANTED, deflate=(True, False, 15, 15)),
        dataclasses.replace(GRANTED, deflate=None),
        dataclasses.replace(GRANTED, key="another"),
        Verdict("refused", 400, "for no reason that has a name"),
        Verdict("incomplete"),
    ],
)
def test_what_differs_is_found(other: Verdict) -> None:
    case = head(REQUEST)
    assert difference("websockets", case, GRANTED, GRANTED) == ("", frozenset())
    assert difference("websockets", case, GRANTED, other)[0]


def test_other_statuses_and_bodies_are_found() -> None:
    refused = Verdict("refused", 400, "no")
    assert difference("websockets", head(REQUEST), refused, dataclasses.replace(refused, status=403))[0]
    rejected = Verdict("rejected", 404, body=b"not here")
    assert difference("wsproto", head(RESPONSE), rejected, dataclasses.replace(rejected, body=b""))[0]


def test_case_round_trips_as_json() -> None:
    for seed in range(50):
        case = draw_head(str(seed))
        assert HeadCase.load(case.dump()) == case
    assert Offer() == Offer(server_bits=None)
