"""The list of attacks, targets and bounds. ``SECURITY.md`` has a row for each of its rows."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from . import encrypting, hostile, knocking, opening, talking
from .target import CLOSE_TIMEOUT, OPEN_TIMEOUT, RATE, Attack

ENGINES = ("engine-batches", "engine-async")
LOOPS = ("asyncio-fd", "asyncio-transport", "listener-fd", "listener-transport")
SERVERS = (*ENGINES, *LOOPS, "sync", "uvicorn")
# Kinds that broadcast.
SENDERS = (*ENGINES, *LOOPS)
# uvicorn itself handles the opening handshake until its request is complete.
OURS = (*ENGINES, *LOOPS, "sync")
CLIENTS = ("client-sync", "client-asyncio-fd", "client-asyncio-transport")

KINDS = (*SERVERS, *CLIENTS)


@dataclasses.dataclass(frozen=True)
class Row:
    """An attack.

    Args:
        name: The name, in this list and in SECURITY.md.
        does: The attacker's actions.
        bound: The limit that stops it.
        kinds: The attacked kinds.
        attack: Function of an attacking client.
        harm: Function of an attacking server, and the action of its client.
        port: The attacked port of a server.
        memory: The maximum memory cost, in MiB.
        descriptors: The maximum number of additional descriptors meanwhile.
        meets: Whether there must be refusals or closed connections.
        attempts: The maximum number of attempts of an attacked client.
        lasts: The minimum duration in seconds, where the bound is a time.
        passes: Messages a second that may get through, over all its connections.
        least: Messages a second that must reach other clients.
    """

    name: str
    does: str
    bound: str
    kinds: tuple[str, ...]
    attack: Attack | None = None
    harm: hostile.Harm | None = None
    how: str = "receive"
    port: str = "plain"
    memory: float = 100.0
    descriptors: int = 150
    meets: tuple[str, ...] = ()
    attempts: int | None = None
    lasts: float = 0.0
    passes: int = 0
    least: int = 0

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


# At most 16 times `max_pending` clients are in the opening handshake or wait for it; it is 50 in these servers.
CROWD = 16 * 50 + 150

ROWS = [
    # The opening handshake
    Row(
        "slow handshakes from one address",
        "nothing, half a request, or a byte now and then, on 1,500 connections",
        "`max_pending`: the silent ones of that address go; `open_timeout`",
        OURS, opening.half_open, descriptors=CROWD, meets=("closed",),
    ),
    Row(
        "slow handshakes from many addresses",
        "the same, each from an address of its own",
        "`max_pending`: the longest idle is evicted",
        OURS, opening.half_open_everywhere, descriptors=CROWD, meets=("closed",),
    ),
    Row(
        "slow TLS handshakes",
        "nothing, half of the first message, or it and nothing after",
        "as without TLS",
        OURS, encrypting.half_hellos, port="tls", descriptors=CROWD, meets=("closed",),
    ),
    Row(
        "garbage in the place of TLS",
        "random bytes, HTTP, empty and oversized records, alerts, messages without end",
        "closed at the first wrong record; `open_timeout`",
        SERVERS, encrypting.garbage, port="tls", meets=("closed",),
    ),
    Row(
        "TLS renegotiations and key updates",
        "asks for new keys again and again",
        "there is no renegotiation; one answer for all key updates that wait",
        SERVERS, encrypting.renegotiations, port="tls",
    ),
    Row(
        "huge heads",
        "4 MB of header fields, or of a path",
        "16 KiB and 128 fields (uvicorn 64 KiB): 431, and closed",
        SERVERS, opening.huge_heads, meets=("closed",),
    ),
    Row(
        "endless heads",
        "200 requests that grow by a byte at a time",
        "`open_timeout`, and the size of a head",
        OURS, opening.endless_heads, descriptors=CROWD, lasts=2 * OPEN_TIMEOUT, meets=("closed",),
    ),
    Row(
        "floods of header fields and queries",
        "requests with as many as are accepted, and 2,000",
        "16 KiB and 128 fields; only what is accepted is kept",
        SERVERS, opening.many_fields, meets=("refused",),
    ),
    Row(
        "connection storms",
        "connects, and resets before or after its request",
        "nothing is kept of a closed connection",
        OURS, opening.storms, descriptors=CROWD,
    ),
    Row(
        "storms of whole handshakes",
        "is accepted, and closes, resets, or says nothing more",
        "a session costs what is listed below; engine: `max_connections_per_address`",
        SERVERS, opening.come_and_go, descriptors=CROWD,
    ),
    Row(
        "pipelined requests",
        "2,000 requests at once, endless bodies, none of it read",
        "the first is answered, or refused and closed; of a refused client, 256 KiB and 2 s more are read",
        OURS, opening.pipelines, descriptors=CROWD,
    ),
    Row(
        "handshakes with a tail that is no frame",
        "80 kB behind each request that is accepted, none of the answer read",
        "the connection fails at its first byte; no more come in in a turn than can be over in one",
        OURS, opening.tails, descriptors=CROWD + 150,
    ),
    # Frames
    Row(
        "frames that break the protocol",
        "each fault of RFC 6455 in turn, on new connections",
        "the connection fails, with the close code of the fault",
        SERVERS, talking.breakers, meets=("closed",),
    ),
    Row(
        "messages that are announced",
        "headers of frames of 1 MiB that never end, and of 1 TiB",
        "`max_size`; at most 16 MiB are allocated on a frame's word",
        SERVERS, talking.announcers, meets=("closed",),
    ),
    Row(
        "tiny fragments",
        "messages of thousands of fragments of a byte or none",
        "`max_fragments`",
        SERVERS, talking.fragments, meets=("closed",),
    ),
    Row(
        "messages a byte at a time",
        "50 connections, each byte in a segment of its own",
        "14 bytes of a header wait, and the message",
        SERVERS, talking.drips,
    ),
    Row(
        "decompression bombs",
        "1 KiB that becomes 1 MiB, again and again; 20 KiB that become 20 MiB",
        "`max_size` after decompression; reading stops at `max_queue`",
        SERVERS, talking.bombs, meets=("closed",),
    ),
    Row(
        "ping floods",
        "pings of 125 bytes without end, of which no pong is read",
        "of those that pile up only the last is answered, while 64 KiB wait",
        SERVERS, talking.pings,
    ),
    Row(
        "close floods",
        "thousands of close frames, then neither reads nor goes",
        "nothing is read after the first; `close_timeout`",
        SERVERS, talking.closes, descriptors=450, lasts=2 * CLOSE_TIMEOUT, meets=("closed",),
    ),
    Row(
        "floods of tiny messages",
        "messages of a byte as fast as they go",
        "connections take turns; reading stops at `max_queue`, `max_events`",
        SERVERS, talking.floods,
    ),
    Row(
        "peers that never read: echo",
        "16 send 60 kB messages that are echoed, and read nothing",
        "`write_limit`, then `max_queue`; engine: `outbox_limit`",
        SERVERS, talking.deaf_echo,
    ),
    Row(
        "peers that never read: large replies",
        "16 ask for 256 KiB thousands of times",
        "`send` waits at `write_limit`; engine: `outbox_limit`",
        SERVERS, talking.deaf_big,
    ),
    Row(
        "peers that never read: fan-out",
        "50 read nothing of what some of them send to all",
        "`broadcast` leaves out who is slow; engine: `outbox_limit`, one copy for all, `total_outbox_limit`",
        SENDERS, talking.slow_broadcast_readers,
    ),
    # The engine
    Row(
        "silent subscribers that come again",
        "one subscriber that reads nothing, and connects again twice a second, of a topic with a fast publisher",
        "those that read nothing may delay a topic for five seconds, and for a quarter of the time from then on",
        ENGINES, talking.silent_subscribers, lasts=8.0, least=300,
    ),
    Row(
        "floods of bad tokens",
        "no tokens, unsigned, expired, those of others, 9 kB of dots",
        "401 before anything is kept; `max_token`",
        ENGINES, knocking.invalid_tokens, port="guarded", meets=("refused",),
    ),
    Row(
        "floods of unknown keys",
        "a new `kid` in each token",
        "401; the file of keys is read again only when it has changed",
        ENGINES, knocking.unknown_keys, port="keyed", meets=("refused",),
    ),
    Row(
        "pages of other origins",
        "handshakes as of a browser",
        "403, unless `origins` lists them",
        ENGINES, knocking.origins, meets=("refused",),
    ),
    Row(
        "crowds from one address",
        "more sessions than it may have, with invented `X-Forwarded-For`",
        "`max_connections_per_address`: 429; only `trusted_proxies` are believed",
        ENGINES, knocking.too_many_sessions, port="limited", meets=("refused",),
    ),
    Row(
        "forged and endless PROXY headers",
        "headers from an address that is no proxy; endless ones from one that is",
        "400; closed at 107 bytes of version 1, at `open_timeout`",
        ENGINES, knocking.proxy_headers, port="limited", meets=("refused", "closed"),
    ),
    Row(
        "subscription floods",
        "thousands of topics, long, deep, with wildcards, and what is none",
        "`max_subscriptions`, 255 bytes a topic; `mailbox_limit`",
        ENGINES, knocking.subscriptions,
    ),
    Row(
        "documents that grow, behind handlers that hang",
        "JSON of which a codec makes forty times as much, without a pause",
        "decoded when its turn has come; 1 MiB a session waits, 64 MiB of all",
        ENGINES[1:], talking.growers,
    ),
    Row(
        "publishing to a large audience",
        "five of a hundred in a relay send without end, none reads",
        "`outbox_limit`, one copy for all; senders wait for clients that read",
        ENGINES, knocking.relay_floods,
    ),
    Row(
        "messages beyond the rate limits",
        "many times `max_messages_per_second`",
        "`rate_policy`: read later, or dropped",
        ENGINES, knocking.limited_floods, passes=4 * RATE,
    ),
    Row(
        "metrics and page without a token",
        "guesses, long and short; `/health` without end",
        "401; after 10 wrong tokens of an address 429",
        ENGINES, knocking.without_token, port="watched", meets=("refused",),
    ),
    # Hostile servers
    Row(
        "decompression bombs of a server", "as those of clients", "`max_size` after decompression",
        CLIENTS, harm=hostile.bombs,
    ),
    Row(
        "huge heads of a server", "header fields without end", "16 KiB and 128 fields",
        CLIENTS, harm=hostile.huge_head,
    ),
    Row(
        "endless heads of a server", "a head that grows by a byte at a time", "`open_timeout`",
        CLIENTS, harm=hostile.bytewise_head,
    ),
    Row("endless interim responses", "103 again and again", "16, then refused", CLIENTS, harm=hostile.interims),
    Row(
        "endless bodies of refusals", "403, and a body without end", "1 MiB of it is kept, `open_timeout`",
        CLIENTS, harm=hostile.bodies,
    ),
    Row(
        "endless redirects", "each to another path", "10, then refused",
        CLIENTS, harm=hostile.redirect,
    ),
    Row(
        "garbage of a server in the place of TLS", "random bytes, empty and oversized records",
        "closed at the first wrong record; `open_timeout`", CLIENTS, harm=hostile.encrypt_nothing, port="tls",
    ),
    Row(
        "tiny fragments of a server", "messages of thousands of fragments of a byte", "`max_fragments`",
        CLIENTS, harm=hostile.fragments,
    ),
    Row(
        "endless messages of a server", "fragments without content, and no end", "`max_fragments`",
        CLIENTS, harm=hostile.endless,
    ),
    Row(
        "ping floods of a server", "pings of 125 bytes without end, of which no pong is read",
        "of those that pile up only the last is answered, while 64 KiB wait", CLIENTS, harm=hostile.pings,
    ),
    Row(
        "messages that are announced by a server", "headers of frames of 1 MiB that never end, and of 2**62 bytes",
        "`max_size`; keepalive", CLIENTS, harm=hostile.announce,
    ),
    Row(
        "messages faster than they are taken", "60 kB messages without end, to who does not receive",
        "reading stops at `max_queue`", CLIENTS, harm=hostile.flood, how="idle",
    ),
    Row(
        "a server that never reads", "accepts, and reads nothing", "`send` waits at `write_limit`; keepalive",
        CLIENTS, harm=hostile.never_read, how="send",
    ),
    Row(
        "a server that never closes", "does not answer the close frame", "`close_timeout`",
        CLIENTS, harm=hostile.never_close, how="close",
    ),
    Row(
        "reconnect storms", "accepts and closes, again and again", "`reconnect_delays`",
        CLIENTS[1:], harm=hostile.close_at_once, how="reconnect", attempts=30,
    ),
]  # fmt: skip

_BY_SLUG = {row.slug: row for row in ROWS}


def row_of(slug: str) -> Row:
    return _BY_SLUG[slug]


def attack_of(slug: str) -> Attack:
    attack = _BY_SLUG[slug].attack
    assert attack is not None
    return attack


def harm_of(slug: str) -> Callable[[Any], None]:
    harm = _BY_SLUG[slug].harm
    assert harm is not None
    return harm


# The kinds that differ most: each of these rows attacks one of them, which changes from row to row.
FAMILIES = (
    ENGINES,
    ("asyncio-fd", "asyncio-transport", "sync", "listener-fd", "uvicorn", "listener-transport"),
    CLIENTS,
)


def chosen(kind: str, matrix: str) -> list[Row]:
    """Returns the rows that attack a kind.

    Args:
        kind: One of ``KINDS``.
        matrix: ``short``: each row attacks one kind; ``default``: one of each family; ``all``: all kinds of the row.
    """
    rows = [row for row in ROWS if kind in row.kinds]
    if matrix == "all":
        return rows
    if matrix == "short":
        return [row for row in rows if kind == _turns(row)[0 if ROWS.index(row) % 3 == 0 else -1]]
    return [row for row in rows if kind in _turns(row)]


def _turns(row: Row) -> list[str]:
    found = []
    for family in FAMILIES:
        kinds = [kind for kind in family if kind in row.kinds]
        if kinds:
            found.append(kinds[ROWS.index(row) % len(kinds)])
    return found
