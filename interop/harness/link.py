"""A link between one of our APIs and a peer. It opens connections in either direction.

The link knows which end is ours; tests need not.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import wirespeed

from .peers import Peer
from .process import PeerError, PeerProcess
from .relay import Relay, relaying
from .report import Report
from .ways import DEADLINE, Way

__all__ = ["Link", "Pair"]

T = TypeVar("T")

_numbers = itertools.count(1)


@dataclasses.dataclass
class Pair:
    """A connection that is open, with our end of it.

    Attributes:
        ours: Our end, with the methods of an asyncio connection.
        number: What the peer calls it.
    """

    ours: Any
    number: str
    link: Link
    relay: Relay | None

    async def report(self) -> Report:
        """Returns the peer's report, once the connection has ended."""
        return await self.link.report(self.number)

    @property
    def sent(self) -> int:
        """Bytes on the wire that we sent, including the handshake."""
        assert self.relay is not None
        return self.relay.downstream if self.link.peer.end == "client" else self.relay.upstream

    @property
    def received(self) -> int:
        """Bytes on the wire that the peer sent, including the handshake."""
        assert self.relay is not None
        return self.relay.upstream if self.link.peer.end == "client" else self.relay.downstream


class Link:
    """One of our ways and one peer.

    Args:
        way: Ours.
        peer: Theirs.
        start: Starts a process of the peer, or returns the one that runs.
        certificate: File of the authority, of a certificate, and of its key.
        is_shared: Whether the process has to survive, and so has to report each connection.
    """

    def __init__(
        self,
        way: Way,
        peer: Peer,
        start: Callable[[], PeerProcess],
        certificate: Sequence[str],
        *,
        is_shared: bool = True,
    ) -> None:
        self.way = way
        self.peer = peer
        self.certificate = certificate
        self._start = start
        self._is_shared = is_shared
        self._process: PeerProcess | None = None
        self._reports: dict[str, asyncio.Future[dict[str, Any]]] = {}

    @property
    def process(self) -> PeerProcess:
        """The peer's process; it is started when it is first needed."""
        if self._process is None:
            self._process = self._start()
        return self._process

    def renew(self) -> None:
        """Kills the peer's process and uses another one from now on."""
        if self._process is not None:
            self._process.kill()
        self._process = None
        self._reports.clear()

    async def report(self, number: str) -> Report:
        """Returns the report of a connection."""
        try:
            return Report.of(await asyncio.wait_for(asyncio.shield(self._reports[number]), DEADLINE))
        except asyncio.TimeoutError:
            complaints = self.process.complaints()
            raise PeerError(f"{self.peer} did not report connection {number} in {DEADLINE} s\n{complaints}") from None

    @property
    def is_settled(self) -> bool:
        """Returns whether the peer has reported every connection."""
        return all(report.done() for report in self._reports.values())

    async def _expect(self) -> str:
        """Returns the number of the next connection."""
        number = f"{os.getpid()}-{next(_numbers)}"
        # The process may have to be started first.
        process = await asyncio.to_thread(lambda: self.process)
        self._reports[number] = asyncio.wrap_future(process.expect(number))
        return number

    @contextlib.asynccontextmanager
    async def open(
        self,
        task: str = "echo",
        *,
        variant: str = "default",
        offer: Sequence[str] = (),
        headers: Sequence[str] = (),
        cookie: str | None = None,
        tls: bool = False,
        relayed: bool = False,
        **options: Any,
    ) -> AsyncIterator[Pair]:
        """Open a connection. At the end of the block it is closed, and the peer has reported.

        Args:
            task: What the peer is to do: a path with its query.
            variant: Settings of the peer.
            offer: Subprotocols that the peer offers, if it is a client.
            headers: Header lines that it sends, if it is a client.
            cookie: Cookie that it sends, if it is a client.
            tls: Whether to connect with TLS.
            relayed: Whether to count the bytes on the wire.
            options: Arguments of our ``connect`` or ``serve``.
        """
        options = {"max_size": None, "ping_interval": None, "close_timeout": DEADLINE / 2, **options}
        async with contextlib.AsyncExitStack() as stack:
            if self.peer.end == "server":
                number = await self._expect()
                options.setdefault("ssl", wirespeed.TLS(ca=self.certificate[0]) if tls else None)
                port = self.process.ports["tls" if tls else variant]
                relay = await stack.enter_async_context(relaying(port)) if relayed else None
                uri = _uri(relay.port if relay else port, task, number, tls)
                ours = await self.way.connect(uri, **options)
            else:
                connections: asyncio.Queue[Any] = asyncio.Queue()
                port = await stack.enter_async_context(self.listen(connections.put_nowait, tls=tls, **options))
                relay = await stack.enter_async_context(relaying(port)) if relayed else None
                number = await self.dial(
                    relay.port if relay else port,
                    task,
                    variant=variant,
                    offer=offer,
                    headers=headers,
                    cookie=cookie,
                    tls=tls,
                )
                ours = await self.first(connections.get(), number)
            stack.callback(ours.abort)
            pair = Pair(ours, number, self, relay)
            yield pair
            await ours.close()
            if self._is_shared:
                await pair.report()

    async def first(self, connection: Awaitable[T], number: str, tell: Callable[[], object] = dict) -> T:
        """Our end of a connection. A report that comes before it says why there is none.

        Args:
            connection: What becomes our end.
            number: What the peer calls it.
            tell: Returns how our end stands, for the error.
        """
        first = asyncio.ensure_future(connection)
        ends: list[asyncio.Future[Any]] = [first, self._reports[number]]
        await asyncio.wait(ends, timeout=DEADLINE, return_when=asyncio.FIRST_COMPLETED)
        # Both exist if the connection was short.
        await asyncio.wait([first], timeout=1)
        if not first.done():
            first.cancel()
            report = self._reports[number]
            theirs = report.result() if report.done() else f"it reports nothing\n{self.process.complaints()}"
            raise PeerError(f"{self.peer} did not connect: {tell()}\n{theirs}")
        return first.result()

    @contextlib.asynccontextmanager
    async def listen(self, take: Callable[[Any], None], *, tls: bool = False, **options: Any) -> AsyncIterator[int]:
        """Runs our server for a peer that is a client; yields its port."""
        if tls:
            options["ssl"] = wirespeed.TLS(cert=self.certificate[1], key=self.certificate[2])
        async with self.way.serve(take, **options) as port:
            yield port

    async def dial(
        self,
        port: int,
        task: str,
        *,
        variant: str = "default",
        offer: Sequence[str] = (),
        headers: Sequence[str] = (),
        cookie: str | None = None,
        tls: bool = False,
    ) -> str:
        """Makes the peer, which is a client, connect; returns the number of the connection."""
        number = await self._expect()
        fields = [("uri", _uri(port, task, number, tls)), ("variant", variant)]
        fields += [("subprotocol", name) for name in offer]
        fields += [("header", line) for line in headers]
        if cookie is not None:
            fields.append(("cookie", cookie))
        job = urllib.parse.urlencode(fields, quote_via=urllib.parse.quote)
        await asyncio.to_thread(lambda: self.process.assign(job))
        return number


def _uri(port: int, task: str, number: str, tls: bool) -> str:
    # The name is in the certificate. It need not have an IPv6 address, and the browser would ask for one.
    host = f"wss://localhost:{port}" if tls else f"ws://127.0.0.1:{port}"
    return f"{host}/{task}{'&' if '?' in task else '?'}id={number}"
