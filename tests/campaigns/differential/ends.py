"""End-to-end comparison: bytes over sockets to clients and servers of ``wirespeed``, and the events of the
application.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import random
import socket
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import wirespeed
from campaigns.common.calls import attempt, complete
from campaigns.common.handshake import acceptance, fresh_request
from support.frames import BINARY, CLOSE, CONT, TEXT, frame
from wirespeed import sync
from wirespeed.engine import Disconnected, Engine, Message
from wirespeed.exceptions import ConnectionClosed

from .case import Case
from .decisions import Decided
from .generate import draw
from .outcome import Event, Sent
from .tally import Tally

ENDS = ["sync-client", "sync-server", "asyncio-client", "asyncio-server", "engine-server"]

# Servers have one set of options for all of their clients: max_size and max_fragments.
_LIMITS: list[tuple[tuple[int | None, int | None], int | None]] = [
    ((None, None), None),
    ((1000, None), 5),
    ((126, 100), 2),
]
PATIENCE = 20.0


@dataclasses.dataclass
class Seen:
    """The outcome of a connection.

    Attributes:
        messages: Those that the application received.
        received: The peer's close frame, as the application sees it.
        sent: The code of our close frame, as the application sees it.
        frames: Frames that the peer received.
    """

    messages: list[str | bytes]
    received: tuple[int, str] | None
    sent: int | None
    frames: list[Event]


def draw_stream(seed: str, end: str) -> Case:
    """Returns the case of a seed for one of the ends: only received data, with limits that servers have here."""
    case = draw(seed)
    number = sum(seed.encode()) % len(_LIMITS)
    (message, fragment), most = _LIMITS[number]
    steps = [step for step in case.steps if step[0] == "receive"]
    side = end.partition("-")[2]
    if side != case.side:
        return draw_stream(seed + "'", end)
    choose = random.Random(f"large {seed}")
    if message is None and choose.random() < 0.4:
        steps = [*(("receive", piece) for piece in _large(choose, masked=side == "server")), *steps]
    return dataclasses.replace(
        case,
        steps=(*steps, ("eof",)),
        fragments=False,
        message_size=message,
        fragment_size=None if end == "engine-server" else fragment,
        most_fragments=most,
    )


def _large(choose: random.Random, *, masked: bool) -> list[bytes]:
    """A message that is received directly into its buffer, in pieces; text may break off inside a character."""
    text = choose.random() < 0.7
    data = ("\u20ac" * choose.choice([3000, 20_000, 100_000])).encode()
    if choose.random() < 0.3:
        at = choose.randrange(len(data))
        data = data[:at] + b"\xff" + data[at + 1 :]
    cut = choose.choice([len(data), choose.randrange(len(data))])
    parts = [data[:cut], data[cut:]]
    stream = b""
    for number, part in enumerate(parts):
        opcode = CONT if number else TEXT if text else BINARY
        mask = choose.randbytes(4) if masked else None
        stream += frame(opcode, part, fin=number == 1, mask=mask)
    size = choose.choice([len(stream), 7000, 60_000])
    return [stream[at : at + size] for at in range(0, len(stream), size)]


def expected(case: Case) -> Seen:
    """Returns the expected outcome: that of ``websockets`` with our decisions."""
    outcome = Decided(case).run()
    events = [event for step in outcome.steps for event in step.events]
    messages = [_message(event) for event in events if event[0] in ("text", "binary")]
    received = next(((event[1], event[2]) for event in events if event[0] == "close"), None)
    frames = [sent for step in outcome.steps for sent in step.frames]
    return Seen(messages, received, outcome.sent, frames)  # type: ignore[arg-type]


def _message(event: Event) -> str | bytes:
    data = event[1]
    assert isinstance(data, bytes)
    return data.decode() if event[0] == "text" else data


class Ends:
    """Clients, and servers that run while this context is entered."""

    def __enter__(self) -> Ends:  # noqa: PYI034 - typing.Self needs Python 3.11
        self.stack = contextlib.ExitStack()
        self.results: dict[str, concurrent.futures.Future[Any]] = {}
        self.numbers = itertools.count()
        self.pool = self.stack.enter_context(concurrent.futures.ThreadPoolExecutor(4))
        self.loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self.loop.run_forever, name="loop of the ends", daemon=True)
        thread.start()
        self.stack.callback(self.loop.close)
        self.stack.callback(thread.join, PATIENCE)
        self.stack.callback(lambda: self.loop.call_soon_threadsafe(self.loop.stop))
        self.ports: dict[tuple[str, Any], int] = {}
        for limits in _LIMITS:
            self.ports["sync-server", limits] = self._serve(limits)
            self.ports["asyncio-server", limits] = self.call(self._serve_async(limits))
            # An engine has no frame limit.
            (max_size, _), max_fragments = limits
            self.ports["engine-server", ((max_size, None), max_fragments)] = self._serve_engine(max_size, max_fragments)
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stack.close()

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    @staticmethod
    def _options(limits: Any, **more: Any) -> dict[str, Any]:
        max_size, max_fragments = limits
        timeouts = {"ping_interval": None, "open_timeout": PATIENCE, "close_timeout": PATIENCE}
        return {"max_size": max_size, "max_fragments": max_fragments, **timeouts, **more}

    def _serve(self, limits: Any) -> int:
        def handler(ws: sync.ServerConnection) -> None:
            self.results[ws.request.path].set_result(complete(_drain(ws, PATIENCE)))

        options = self._options(limits, compression=wirespeed.Deflate())
        server = self.stack.enter_context(sync.serve(handler, "127.0.0.1", 0, **options))
        thread = threading.Thread(target=server.serve_forever, name="server of the ends", daemon=True)
        thread.start()
        self.stack.callback(thread.join, PATIENCE)
        self.stack.callback(server.shutdown)
        port: int = server.socket.getsockname()[1]
        return port

    async def _serve_async(self, limits: Any) -> int:
        async def handler(ws: Any) -> None:
            self.results[ws.request.path].set_result(await asyncio.wait_for(_drain(ws), PATIENCE))

        server = await wirespeed.serve(
            handler, "127.0.0.1", 0, **self._options(limits, compression=wirespeed.Deflate())
        )

        async def stop() -> None:
            server.close()
            await server.wait_closed()

        self.stack.callback(lambda: self.call(stop()))
        port: int = server.sockets[0].getsockname()[1]
        return port

    def _serve_engine(self, max_size: int | None, max_fragments: int | None) -> int:
        engine = self.stack.enter_context(
            Engine(
                "127.0.0.1",
                compression=True,
                max_size=max_size,
                max_fragments=max_fragments,
                workers=1,
                ping_interval=None,
            )
        )

        def take() -> None:
            messages: dict[int, list[str | bytes]] = {}
            for batch in engine.batches():
                for event in batch:
                    if isinstance(event, Message):
                        messages.setdefault(event.session.id, []).append(event.data)
                    elif isinstance(event, Disconnected):
                        received = None if event.code == 1006 else (event.code, event.reason)
                        # The engine does not report what it has sent.
                        drained = messages.pop(event.session.id, []), received, None
                        self.results[event.session.path].set_result(drained)

        thread = threading.Thread(target=take, name="events of the ends", daemon=True)
        thread.start()
        self.stack.callback(thread.join, PATIENCE)
        self.stack.callback(engine.stop)
        port: int = engine.addresses[0][1]
        return port

    def run(self, end: str, case: Case) -> Seen:
        """Acts as the peer of one of the ends; returns the observations of both."""
        limits = ((case.message_size, case.fragment_size), case.most_fragments)
        pieces = [step[1] for step in case.steps if step[0] == "receive"]
        reader = Sent(masked=case.side == "client", deflate=case.deflate)
        if end.endswith("server"):
            path = f"/{next(self.numbers)}"
            future: concurrent.futures.Future[Any] = concurrent.futures.Future()
            self.results[path] = future
            with socket.create_connection(("127.0.0.1", self.ports[end, limits]), PATIENCE) as peer:
                data = _play(peer, pieces, fresh_request(path, *_extension(case)))
        else:
            compression = wirespeed.Deflate() if case.deflate is not None else None
            options = self._options(limits, compression=compression)
            ours, peer = socket.socketpair()
            with peer:
                if end == "sync-client":
                    future = self.pool.submit(_sync_client, ours, options)
                else:
                    future = asyncio.run_coroutine_threadsafe(_async_client(ours, options), self.loop)
                data = _play(peer, pieces, None, case)
        messages, received, sent = future.result(PATIENCE)
        # The reason texts are our own: only the code of that close frame counts.
        frames = reader.read(data, faulty=received is None)
        if end == "engine-server":
            sent = next((_code(payload) for opcode, payload in map(_ends, frames) if opcode == CLOSE), None)
        return Seen(messages, received, sent, frames)


def _ends(sent: Event) -> tuple[object, object]:
    return sent[0], sent[-1]


def _code(payload: object) -> int:
    assert isinstance(payload, bytes)
    return int.from_bytes(payload[:2], "big") if payload else 1005


def _play(peer: socket.socket, pieces: list[bytes], request: bytes | None, case: Case | None = None) -> bytes:
    """Opens the connection, sends all pieces, ends the direction, and returns the bytes after the head."""
    peer.settimeout(PATIENCE)
    if request is not None:
        peer.sendall(request)
    data = _read_head(peer)
    if case is not None:
        head, _, data = data.partition(b"\r\n\r\n")
        peer.sendall(acceptance(head, *_extension(case)))
    else:
        head, _, data = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head
    # An end that has failed the connection may have left.
    with contextlib.suppress(OSError):
        for piece in pieces:
            peer.sendall(piece)
        peer.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionError):
        while more := peer.recv(1 << 16):
            data += more
    return data


def _read_head(peer: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = peer.recv(1 << 16)
        assert more, data
        data += more
    return data


def _extension(case: Case) -> Iterator[str]:
    deflate = case.deflate
    if deflate is None:
        return
    client = case.side == "client"
    client_bits, server_bits = deflate.local_bits, deflate.remote_bits
    client_reset, server_reset = deflate.local_reset, deflate.remote_reset
    if not client:
        client_bits, server_bits = server_bits, client_bits
        client_reset, server_reset = server_reset, client_reset
    resets = ("; client_no_context_takeover" if client_reset else "") + (
        "; server_no_context_takeover" if server_reset else ""
    )
    bits = f"; client_max_window_bits={client_bits}; server_max_window_bits={server_bits}"
    yield f"Sec-WebSocket-Extensions: permessage-deflate{bits}{resets}"


_Drained = tuple[list[str | bytes], tuple[int, str] | None, int | None]


def _end(messages: list[str | bytes], exc: ConnectionClosed) -> _Drained:
    received = None if exc.rcvd is None else (int(exc.rcvd.code), exc.rcvd.reason)
    return messages, received, None if exc.sent is None else int(exc.sent.code)


async def _drain(ws: Any, *limit: float) -> _Drained:
    """Receives until the end; blocking connections have a time limit as their argument."""
    messages = []
    while True:
        try:
            messages.append(await attempt(ws.recv, *limit))
        except ConnectionClosed as exc:
            return _end(messages, exc)


def _sync_client(sock: socket.socket, options: dict[str, Any]) -> _Drained:
    with sync.connect("ws://localhost/", sock=sock, **options) as ws:
        return complete(_drain(ws, PATIENCE))


async def _async_client(sock: socket.socket, options: dict[str, Any]) -> _Drained:
    async with wirespeed.connect("ws://localhost/", sock=sock, **options) as ws:
        return await asyncio.wait_for(_drain(ws), PATIENCE)


@dataclasses.dataclass
class EndTally(Tally):
    """Counts of a campaign.

    Attributes:
        connections: The number of connections.
        messages: The number of connections with messages.
        ends: The number of ends by code: that of the peer's close frame, else that of ours.
    """

    connections: int = 0
    messages: int = 0
    ends: collections.Counter[int | None] = dataclasses.field(default_factory=collections.Counter)

    def __str__(self) -> str:
        codes = ", ".join(f"{code} {count}" for code, count in self.ends.most_common())
        return f"{self.connections} connections, {self.messages} with messages, {len(self.failures)} differ; {codes}"


def end_campaign(ends: Ends, seeds: Iterator[str], seconds: float | None = None, *, stop: bool = True) -> EndTally:
    """Runs the streams of seeds at all ends; the arguments are those of ``campaign``."""
    tally = EndTally()

    def one(named: tuple[str, str]) -> list[str]:
        seed, end = named
        case = draw_stream(seed, end)
        wanted, seen = expected(case), ends.run(end, case)
        tally.connections += 1
        tally.messages += bool(seen.messages)
        tally.ends[seen.received[0] if seen.received is not None else seen.sent] += 1
        return [] if seen == wanted else [f"DIFFERS: {end}, seed {seed}\n{case}\n  seen {seen}\nwanted {wanted}"]

    tally.count(((seed, end) for seed in seeds for end in ENDS), one, seconds, stop=stop)
    return tally
