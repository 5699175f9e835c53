"""Engines with small limits, in a process of their own: ``engines KIND CERT KEY KEYS``.

In ``engine-batches`` a thread takes the events, in ``engine-async`` an event loop calls handlers. Each port is an
engine: ``plain``, ``tls``; ``guarded`` requires tokens, ``keyed`` those of a key file; ``limited`` counts the sessions
of an address, and trusts proxies at 127.0.0.3 and 127.0.0.4; ``watched`` has metrics and a page.

Paths: ``/big`` answers each message with a large one, ``/news`` sends each message to all sessions, ``/topics``
subscribes to the received topics, ``/slowed`` and ``/dropped`` have a message rate limit, ``/rooms/{topic}`` is a
relay, ``/echo`` one without Python; ``/feed`` sends continuously published messages; ``/hangs`` takes JSON, and its
handler blocks on the first message for a while; others echo.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import threading
import time
import weakref
from typing import Any

import wirespeed
from campaigns.common.echo import BIG
from campaigns.common.program import Log, answer, serve_questions
from wirespeed import InvalidState
from wirespeed.engine import JWT, Connected, Engine, Message

from .serving import LIMITS, PENDING
from .target import METRICS_TOKEN, PAGE_TOKEN, PER_ADDRESS, RATE, SECRET

# Seconds for which a handler blocks: longer than an attack.
HANGING = 5.0


# The continuously published message.
FEED = bytes(16_000)

# Messages that reached Python where their rate is limited, or that were published on the feed. Only one engine reports
# them.
PASSED = collections.Counter[str]()


def make(**options: Any) -> Engine:
    limits: dict[str, Any] = {
        **LIMITS,
        "workers": 1,
        "max_pending": PENDING,
        "compression": True,
        "outbox_limit": 2**20,
        "total_outbox_limit": 64 * 2**20,
        "max_event_bytes": 4 * 2**20,
        "max_events": 4096,
    }
    engine = Engine("127.0.0.1", **{**limits, **options})
    engine.echo("/echo")
    engine.route("/slowed", max_messages_per_second=RATE)
    engine.route("/dropped", max_messages_per_second=RATE, rate_policy="drop")
    engine.relay("/rooms/{topic}", prefix="rooms")
    engine.route("/hangs", codec="json")
    for path in ("/", "/big", "/news", "/topics", "/feed"):
        engine.route(path)
    return engine


def connected(session: Any) -> None:
    if session.path in ("/news", "/feed"):
        with contextlib.suppress(InvalidState):
            session.subscribe(session.path[1:])


def answer_to(engine: Engine, session: Any, data: Any) -> Any:
    """Performs the request of a message; returns the answer, if any."""
    if session.path in ("/slowed", "/dropped"):
        PASSED.update(["passed"])
    if session.path == "/news":
        with contextlib.suppress(BlockingIOError):
            engine.publish("news", data)
        return None
    if session.path == "/topics":
        with contextlib.suppress(ValueError, RuntimeError, PermissionError, BlockingIOError):
            session.subscribe(data)
        return None
    return BIG if session.path == "/big" else data


def feed(engine: Engine) -> None:
    """Publishes as fast as the readers receive, while there are any."""
    with contextlib.suppress(InvalidState):
        while True:
            if engine.publish("feed", FEED) == 0:
                time.sleep(0.02)
                continue
            PASSED.update(["passed"])
            engine.wait_for_room("feed", timeout=1)


def drain(engine: Engine) -> None:
    for batch in engine.batches():
        for event in batch:
            with contextlib.suppress(InvalidState, BlockingIOError):
                if isinstance(event, Connected):
                    connected(event.session)
                elif isinstance(event, Message):
                    reply = answer_to(engine, event.session, event.data)
                    if reply is not None:
                        event.session.send(reply)


def call(engine: Engine) -> None:
    stuck: weakref.WeakSet[Any] = weakref.WeakSet()
    engine.on_connect(connected)

    @engine.on_message
    async def on_message(session: Any, data: Any) -> None:
        if session.path == "/hangs":
            if session not in stuck:
                stuck.add(session)
                await asyncio.sleep(HANGING)
            return
        with contextlib.suppress(InvalidState, BlockingIOError):
            reply = answer_to(engine, session, data)
            if reply is not None:
                await session.send(reply)

    asyncio.run(engine.serve(signals=False))


def main(kind: str, cert: str, key: str, keys: str) -> None:
    # Records about attackers are warnings; records about defects are errors.
    log = Log()
    logging.getLogger("wirespeed.engine").setLevel(logging.WARNING)
    engines = {
        "plain": make(),
        "tls": make(ssl=wirespeed.TLS(cert=cert, key=key)),
        "guarded": make(auth=JWT(SECRET, "HS256")),
        "keyed": make(auth=JWT(jwks=keys, algorithms=["HS256"])),
        "limited": make(
            max_connections_per_address=PER_ADDRESS,
            trusted_proxies=["127.0.0.3/32"],
            proxy_protocol=["127.0.0.4/32"],
        ),
        "watched": make(metrics_path="/metrics", metrics_token=METRICS_TOKEN, page=PAGE_TOKEN),
    }
    with contextlib.ExitStack() as stack:
        for engine in engines.values():
            if kind == "engine-batches":
                stack.enter_context(engine)
                threading.Thread(target=drain, args=[engine]).start()
            else:
                stack.callback(engine.stop)
                engine.start()
                threading.Thread(target=call, args=[engine]).start()
        threading.Thread(target=feed, args=[engines["plain"]]).start()
        answer({"ports": {name: engine.addresses[0][1] for name, engine in engines.items()}})

        def state() -> dict[str, Any]:
            stats = [engine.stats() for engine in engines.values()]
            figures = {name: sum(one[name] for one in stats) for name in ("connections", "events_waiting", "panics")}
            return {**figures, **PASSED, **log.since_last()}

        serve_questions(state)
