"""Documents in JSON and MessagePack over wirespeed: by its own methods, or by `send` and `recv` with another codec."""

from __future__ import annotations

import argparse
import dataclasses
from functools import partial
from typing import Any

from models.connection import Client, Connection
from models.content import ContentError, Sink
from models.exchanging import exchange
from models.peer import main
from models.program import echo_url
from models.running import Loop, Step
from models.sending import stream_out
from peers.codecs.ways import WAYS, WIRESPEED, Way
from peers.wirespeed.peer import LIBRARY

LEVELS = 200


def documents(name: str) -> list[Any]:
    """Returns two documents that take turns, so that a reply that is late by one is noticed.

    They are trades of about 130 bytes in JSON, or order books of 200 levels a side, of about 8 KiB. The two differ in
    every number, and become messages of the same length.
    """
    if name == "tick":
        names = ("stream", "symbol", "id", "time", "price", "quantity", "maker")
        one = ("btcusdt@trade", "BTCUSDT", 812_345_671, 1_700_000_012_345, 64_250.31, 0.012_57, True)
        other = ("ethusdt@trade", "ETHUSDT", 912_345_678, 1_700_000_067_891, 13_427.85, 0.348_29, True)
        return [dict(zip(names, values, strict=True)) for values in (one, other)]
    return [_book("BTCUSDT", 64_250, 1), _book("ETHUSDT", 43_420, 4)]


def _book(symbol: str, price: int, first: int) -> Any:
    bids = [_level(price - 1 - depth, first + depth) for depth in range(LEVELS)]
    asks = [_level(price + depth, first + depth + 3) for depth in range(LEVELS)]
    numbers = {"sequence": 9_123_456_780 + first, "time": 1_700_000_012_340 + first}
    return {"symbol": symbol, **numbers, "bids": bids, "asks": asks}


def _level(price: int, seed: int) -> list[Any]:
    # Numbers that end in a digit other than 0 have all their digits in JSON.
    cents = seed % 9 + 1
    return [price + 0.5 + cents / 100, (1000 + seed * 37 % 9000 // 10 * 10 + cents) / 10_000, seed % 9 + 1]


async def connect(way: Way, url: str, ca: str | None, size: int = 0) -> Connection:
    """Connects; `send` takes a document, `recv` returns one."""
    connection = await LIBRARY.connect(url, ca, size)
    send, recv = way.bind(connection.kept)
    return dataclasses.replace(connection, send=send, recv=recv, report=partial(ask, connection))


async def ask(connection: Connection) -> Any:
    """Asks the server's /sink, without a codec."""
    await connection.send("report")
    return await connection.recv()


async def round_trips(way: Way, client: Client, options: argparse.Namespace) -> Loop:
    """Keeps `window` documents under way; every reply is decoded and compared before the next one is sent."""
    connection = await connect(way, options.url, options.ca)
    return await exchange(connection, documents(options.document), options, options.window)


async def sending(way: Way, client: Client, options: argparse.Namespace) -> Loop:
    """Encodes and sends documents to /sink, which tells how many messages and bytes have arrived."""
    echo, sizes = await connect(way, echo_url(options.url), options.ca), set()
    ws: Any = echo.kept
    for document in documents(options.document):
        # One to be measured, one to be decoded.
        await echo.send(document)
        await echo.send(document)
        sizes.add(len(await ws.recv(decode=False)))
        if await echo.recv() != document:
            raise ContentError("the echo of a document that was sent differs from it")
    if len(sizes) != 1:
        raise ContentError(f"the documents do not become messages of one size, but of {sorted(sizes)} bytes")
    connection = await connect(way, options.url, options.ca)
    return stream_out(connection, documents(options.document), Sink(sizes.pop()))


async def serialization(way: Way, client: Client, options: argparse.Namespace) -> Loop:
    """Encodes documents, or decodes them, without a connection.

    What comes of both is compared before the clock runs; while it does, the last one of a step: comparing each would
    cost more than some codecs do.
    """
    encode, decode = way.load()
    two = documents(options.document)
    encoded = [encode(document) for document in two]
    wrong = ContentError("what was decoded differs from the document that was encoded")
    if [decode(message) for message in encoded] != two:
        raise wrong
    call, given, due = (encode, two, encoded) if options.workload == "encode" else (decode, encoded, two)

    def prepare(count: int) -> Step:
        turns = given * (count // 2)

        async def step() -> int:
            made = None
            for one in turns:
                made = call(one)
            if made != due[1]:
                raise wrong
            return len(turns)

        return step

    async def figures(seconds: float) -> dict[str, object]:
        return {"encoded": len(encoded[0])}

    return Loop(prepare, figures=figures)


def client_of(way: Way) -> Client:
    """Returns what can be done with a way."""
    own = {"codec-round-trip": round_trips, "codec-send": sending}
    if way.codec is not None:
        own |= dict.fromkeys(("encode", "decode"), serialization)
    workloads = {name: partial(function, way) for name, function in own.items()}
    return Client(partial(connect, way), own=workloads, libraries=(WIRESPEED, way.library))


if __name__ == "__main__":
    main(WIRESPEED, {style: client_of(way) for style, way in WAYS.items()})
