"""A server on wirespeed's engine. At /sink, it counts; at /fan-out, every client gets what any client publishes.

The styles are its ways to Python: `batches`, a thread that takes lists of events, in the loop of its documentation;
`polling`, the same, and its threads poll before they sleep; `decode`, each message of a sink is decoded; `handlers`,
coroutine functions on an event loop; `native`, without Python; `jwt`, batches from clients that have a token, which is
printed behind the port. `nats`, `redis` and `apart`, two servers with that between or nothing, are batches too.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from typing import Any

from wirespeed import TLS
from wirespeed.engine import JWT, Connected, Engine, Message, Session

from serving.server import TOKEN_SECONDS, decoder, parse, prepare, ready, report, report_sum, run

OPTIONS = parse()
TOPIC = "everybody"
# Events of a batch at most: larger ones save turns of the interpreter's lock when there is much.
BATCH = 4096
# Seconds of polling, in the style polling: as socketify polls while there is anything to do.
BUSY_POLL = 0.001


def token(secret: bytes) -> str:
    """Returns a token for the load generator (RFC 7515, HS256)."""
    now = int(time.time())
    claims = json.dumps({"sub": "load", "iat": now, "exp": now + TOKEN_SECONDS}).encode()
    parts = [base64.urlsafe_b64encode(part).rstrip(b"=") for part in (b'{"alg":"HS256","typ":"JWT"}', claims)]
    signature = hmac.digest(secret, b".".join(parts), hashlib.sha256)
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def echo(engine: Engine) -> None:
    for batch in engine.batches(max_events=BATCH):
        for event in batch:
            if type(event) is Message:
                event.session.send(event.data)


def sink(engine: Engine) -> None:
    """Counts messages and their bytes, or the numbers in them, for each session."""
    decode = decoder(OPTIONS.format) if OPTIONS.style == "decode" else None
    told = report if decode is None else report_sum
    taken: dict[Session, list[int]] = {}
    for batch in engine.batches(max_events=BATCH):
        for event in batch:
            if type(event) is Message:
                data = event.data
                tally = taken[event.session]
                if type(data) is bytes:
                    tally[0] += 1
                    tally[1] += len(data) if decode is None else decode(data).number
                else:
                    event.session.send(told(*tally))
            elif type(event) is Connected:
                taken[event.session] = [0, 0]
            else:
                del taken[event.session]


def fan_out(engine: Engine) -> None:
    # Before the clients subscribe, they wait: events of different threads have no order among them.
    messages: list[tuple[str, str | bytes]] = []
    complete = False
    for batch in engine.batches(max_events=BATCH):
        for event in batch:
            if type(event) is Message:
                messages.append((TOPIC, event.data))
            elif type(event) is Connected:
                event.session.subscribe(TOPIC)
        complete = complete or (bool(messages) and engine.subscribers(TOPIC) >= engine.stats()["sessions"])
        if complete:
            publish_all(engine, messages)
            messages.clear()


def publish_all(engine: Engine, messages: list[tuple[str, str | bytes]]) -> None:
    """Publishes what a batch has brought, at once as far as there is room."""
    done = 0
    while done < len(messages):
        try:
            engine.publish_many(messages[done:])
            done = len(messages)
        except BlockingIOError as error:
            done += error.characters_written
        if not engine.has_room(TOPIC):
            engine.wait_for_room(TOPIC)


BATCHES: dict[str, Callable[[Engine], None]] = {"echo": echo, "sink": sink, "fan-out": fan_out}


def handle(engine: Engine) -> None:
    """Sets the handlers, by role."""
    taken: dict[Session, list[int]] = {}

    async def begin(session: Session) -> None:
        taken[session] = [0, 0]
        if OPTIONS.role == "fan-out":
            session.subscribe(TOPIC)

    async def send_back(session: Session, message: str | bytes) -> None:
        session.send(message)

    async def count(session: Session, message: str | bytes) -> None:
        tally = taken[session]
        if type(message) is bytes:
            tally[0] += 1
            tally[1] += len(message)
        else:
            session.send(report(*tally))

    async def share(session: Session, message: str | bytes) -> None:
        engine.publish(TOPIC, message)

    if OPTIONS.role != "echo":
        engine.on_connect(begin)
    engine.on_message({"echo": send_back, "sink": count, "fan-out": share}[OPTIONS.role])


def main() -> None:
    secret = secrets.token_bytes(32) if OPTIONS.style == "jwt" else None
    how: dict[str, Any] = {"workers": OPTIONS.workers, "compression": OPTIONS.deflate, "broker": OPTIONS.broker}
    if secret is not None:
        how["auth"] = JWT(secret, "HS256", cookie="access_token")
    if OPTIONS.certificate is not None:
        how["ssl"] = TLS(cert=OPTIONS.certificate)
    if OPTIONS.style == "polling":
        how["busy_poll"] = BUSY_POLL
    engine = Engine("127.0.0.1", ping_interval=OPTIONS.ping_interval, **how)

    def count() -> dict[str, int]:
        stats = engine.stats()
        messages = stats["messages_received"] + stats["messages_sent"]
        return {"locks_contended": stats["locks_contended"], "messages": messages}

    if OPTIONS.style == "native":
        engine.echo("/")
        engine.route("/sessions")
    elif OPTIONS.style == "handlers":
        handle(engine)
    engine.start()
    ready(engine.addresses[0][1], None if secret is None else token(secret))
    if OPTIONS.style == "handlers":
        run(OPTIONS.loop, engine.serve, count)
        return
    prepare(count)
    if OPTIONS.style == "native":
        for _ in engine.batches():
            pass
    else:
        BATCHES[OPTIONS.role](engine)


if __name__ == "__main__":
    main()
