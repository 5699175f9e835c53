"""The engine as the server of each peer's client: messages, compression, closing, pings, limits, refusals, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any

import pytest

import wirespeed
from harness.link import Link
from harness.report import Report, seen
from harness.ways import DEADLINE
from peers.contract import LIMIT
from wirespeed.engine import Connected, Disconnected, Engine, Message, Session

# The engine is not one of our client APIs, and needs a loop only for the peers.
pytestmark = pytest.mark.peers(end="client", ways=("fd",))

SIZES = [0, 1, 125, 126, 127, 65_535, 65_536, 65_537, 200_000]
TEXTS = ["hello", "", "ä", "日本語のテキスト", "👋🏽 𝄞 🧑‍🚀", "\x00\x01\n\x7f", "x" * 70_000, "é" * 65_536]
CUT = 700


@dataclasses.dataclass
class Pair:
    """A client of the engine.

    Attributes:
        session: Ours.
        number: What the peer calls it.
    """

    engine: Engine
    session: Session
    number: str
    link: Link
    messages: asyncio.Queue[str | bytes]
    ended: asyncio.Future[Disconnected]

    async def recv(self) -> str | bytes:
        return await asyncio.wait_for(self.messages.get(), DEADLINE)

    async def end(self) -> Disconnected:
        return await asyncio.wait_for(asyncio.shield(self.ended), DEADLINE)

    async def report(self) -> Report:
        return await self.link.report(self.number)

    async def echoes(self, *messages: str | bytes) -> None:
        for message in messages:
            self.session.send(message)
            is_same = await self.recv() == message
            assert is_same


@contextlib.asynccontextmanager
async def serving(link: Link, *, tls: bool = False, **options: Any) -> AsyncIterator[Engine]:
    if tls:
        options["ssl"] = wirespeed.TLS(cert=link.certificate[1], key=link.certificate[2])
    settings = {"workers": 2, "origins": ["*"], "compression": True, "max_size": None, "ping_interval": None}
    async with Engine("127.0.0.1", **{**settings, **options}) as engine:
        yield engine


@contextlib.asynccontextmanager
async def opened(
    link: Link,
    task: str = "echo",
    *,
    variant: str = "default",
    offer: tuple[str, ...] = (),
    tls: bool = False,
    reports: bool = True,
    **options: Any,
) -> AsyncIterator[Pair]:
    """Makes the peer connect to an engine. At the end of the block the session is closed, and the peer has reported."""
    async with serving(link, tls=tls, **options) as engine:
        connected: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        ended: asyncio.Future[Disconnected] = asyncio.get_running_loop().create_future()
        messages: asyncio.Queue[str | bytes] = asyncio.Queue()

        async def collect() -> None:
            async for batch in engine:
                for event in batch:
                    match event:
                        case Connected(session):
                            connected.set_result(session)
                        case Message(_, data):
                            messages.put_nowait(data)
                        case Disconnected():
                            ended.set_result(event)

        collecting = asyncio.create_task(collect())
        try:
            number = await link.dial(engine.addresses[0][1], task, variant=variant, offer=offer, tls=tls)
            session = await link.first(connected, number, engine.stats)
            pair = Pair(engine, session, number, link, messages, ended)
            yield pair
            session.close()
            await pair.end()
            if reports:
                await pair.report()
        finally:
            await asyncio.to_thread(engine.stop)
            await asyncio.wait_for(collecting, DEADLINE)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("compression", [False, True], ids=["whole", "deflate"])
async def test_messages(link: Link, compression: bool, tls: bool) -> None:
    content = random.Random(7).randbytes(SIZES[-1])
    messages = [*TEXTS, bytes(range(256)) * 5, *(content[:size] for size in SIZES)]
    async with opened(link, tls=tls, compression=compression) as pair:
        await pair.echoes(*messages)
        if compression and "compress" not in link.peer.lacks:
            pair.session.close()
            assert "permessage-deflate" in ((await pair.report()).extensions or "")
    report = await pair.report()
    assert report.messages == seen(messages)
    if not compression:
        assert report.extensions is None


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_many_in_order(link: Link, tls: bool) -> None:
    if tls and link.peer.name == "picows.websockets":
        pytest.skip("many messages in one TLS record: it pauses, and forgets what is decrypted already")
    messages = [f"message {number}" if number % 2 else b"%d" % number for number in range(2_000)]
    async with opened(link, tls=tls) as pair:
        for message in messages:
            pair.session.send(message)
        assert [await pair.recv() for _ in messages] == messages
    assert (await pair.report()).messages == seen(messages)


@pytest.mark.parametrize("compression", [False, True], ids=["whole", "deflate"])
async def test_ten_megabytes(link: Link, compression: bool) -> None:
    if compression and "take 10 MB compressed" in link.peer.lacks:
        pytest.skip(link.peer.lacks["take 10 MB compressed"])
    unit = random.Random(7).randbytes(5_000).hex().encode()
    message = unit * (10_000_000 // len(unit))
    async with opened(link, compression=compression) as pair:
        await pair.echoes(message)
    assert (await pair.report()).messages == seen([message])


@pytest.mark.peers("send fragments", end="client", ways=("fd",))
@pytest.mark.parametrize("compression", [False, True], ids=["whole", "deflate"])
async def test_fragments(link: Link, compression: bool) -> None:
    text = "".join(f"{number} é 日本 " for number in range(1_000))
    async with opened(link, f"echo?cut={CUT}", compression=compression) as pair:
        await pair.echoes(text, bytes(range(256)) * 40, "short", text)


@pytest.mark.parametrize("variant", ["default", "no-takeover"])
async def test_published_compressed(link: Link, variant: str) -> None:
    """A message that is encoded once reaches clients with and without compression, each with its own parameters."""
    if variant == "no-takeover" and "ask for no context takeover" in link.peer.lacks:
        pytest.skip(link.peer.lacks["ask for no context takeover"])
    messages = [f"{number} " * 500 for number in range(20)]
    async with opened(link, variant=variant) as pair:
        pair.session.subscribe("news.*")
        for message in messages:
            assert pair.engine.publish("news.today", message) == 1
            assert await pair.recv() == message
            assert pair.engine.broadcast(message.encode())
            assert await pair.recv() == message.encode()


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1001, "away"), (4001, "Grüße 👋"), (4999, "x" * 123)])
async def test_closed_by_us(link: Link, code: int, reason: str) -> None:
    async with opened(link) as pair:
        await pair.echoes("hello")
        pair.session.close(code, reason)
        end = await pair.end()
        report = await pair.report()
    assert (report.code, report.reason or "") == (code, reason)
    assert report.clean is not False
    assert end.failure is None
    assert end.code == (1000 if "echo the code" in link.peer.lacks else code)


@pytest.mark.parametrize(("code", "reason"), [(1000, "done"), (3000, ""), (4999, "x" * 123)])
async def test_closed_by_peer(link: Link, code: int, reason: str) -> None:
    async with opened(link, f"close?code={code}&reason={urllib.parse.quote(reason)}") as pair:
        end = await pair.end()
        report = await pair.report()
    assert (end.code, end.reason, end.failure) == (code, reason, None)
    assert report.code == code
    assert report.clean is not False


async def test_killed(victim: Link) -> None:
    async with opened(victim, reports=False) as pair:
        await pair.echoes("hello")
        victim.process.kill()
        end = await pair.end()
        assert end.code == 1006
        assert end.failure
        assert not pair.session.is_open


@pytest.mark.peers("ping", end="client", ways=("fd",))
async def test_peer_pings_engine(link: Link) -> None:
    async with opened(link, "ping?n=5") as pair:
        assert await pair.recv() == "5 pongs"
        await pair.echoes("hello")


async def test_engine_keepalive(link: Link) -> None:
    """A client that does not answer is closed after half a second."""
    async with opened(link, ping_interval=0.1, ping_timeout=10) as pair:
        await asyncio.sleep(0.5)
        await pair.echoes("hello")


@pytest.mark.peers("keep alive", end="client", ways=("fd",))
async def test_peer_keepalive(link: Link) -> None:
    async with opened(link, variant="keepalive") as pair:
        await asyncio.sleep(1.8)
        await pair.echoes("hello")


@pytest.mark.parametrize("compression", [False, True], ids=["whole", "deflate"])
async def test_message_exceeding_engine_limit(link: Link, compression: bool) -> None:
    async with opened(link, "push?size=100000", max_size=LIMIT, compression=compression) as pair:
        end = await pair.end()
        assert end.failure is not None
        report = await pair.report()
        assert report.code == 1009


async def test_subprotocol(link: Link) -> None:
    async with opened(link, offer=("superchat", "chat"), subprotocols=["chat"]) as pair:
        assert pair.session.subprotocol == "chat"
        await pair.echoes("hello")
    assert (await pair.report()).subprotocol == "chat"


async def test_refused(link: Link) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engine = Engine("127.0.0.1", origins=["*"])
        engine.route("/nowhere")
        await stack.enter_async_context(engine)
        report = await link.report(await link.dial(engine.addresses[0][1], "echo"))
    assert not report.opened
    assert report.error
    if "tell the status" not in link.peer.lacks:
        assert report.status == 404


@pytest.mark.peers(name="chromium", end="client", ways=("fd",))
async def test_origin(link: Link) -> None:
    """A browser sends the origin of its page. By default, and by a list of other origins, another host's page is
    refused.
    """
    for origins in (None, ["https://example.com"]):
        async with serving(link, origins=origins) as engine:
            report = await link.report(await link.dial(engine.addresses[0][1], "echo"))
            assert not report.opened
            assert report.code == 1006
    async with opened(link) as pair:
        origin = pair.session.headers["Origin"]
    async with opened(link, origins=[origin]) as pair:
        await pair.echoes("hello")
