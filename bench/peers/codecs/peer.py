"""Documents in JSON and MessagePack over wirespeed: by its own methods, or by `send` and `recv` with another codec."""

from __future__ import annotations

import argparse
from typing import Any

from models import awaiting, loops, program
from models.asynchronous import on_loop
from models.awaiting import SEND_STEP_BYTES, Loop, Step
from models.content import ContentError, Sink
from peers.codecs.documents import DOCUMENTS
from peers.codecs.ways import WAYS, Bound, Way
from peers.wirespeed import peer as wirespeed


async def pipelined(way: Way, options: argparse.Namespace) -> Loop:
    """Keeps `window` documents under way; every reply is decoded and compared before the next one is sent."""
    bound = way.bind(await wirespeed.open_with(options.url, options.ca))
    documents = DOCUMENTS[options.document]()
    send, recv = bound.send, bound.recv
    for document in documents * (options.window // 2):
        await send(document)

    def prepare(count: int) -> Step:
        turns = documents * (count // 2)

        async def step() -> int:
            for document in turns:
                if await recv() != document:
                    raise ContentError("a reply differs from the document that was sent")
                await send(document)
            return len(turns)

        return step

    async def settle() -> None:
        for document in documents * (options.window // 2):
            if await recv() != document:
                raise ContentError("a reply differs from the document that was sent")

    return Loop(prepare, settle=settle)


async def sending(way: Way, options: argparse.Namespace) -> Loop:
    """Encodes and sends documents to /sink, which tells how many messages and bytes have arrived."""
    documents = DOCUMENTS[options.document]()
    size = await encoded_size(way, documents, options)
    ws = await wirespeed.open_with(options.url, options.ca)
    report = wirespeed.awaiting(ws).report
    send = way.bind(ws).send
    sink = Sink(size)

    def prepare(count: int) -> Step:
        turns = documents * (count // 2)

        async def step() -> int:
            for document in turns:
                await send(document)
            sink.sent += len(turns)
            return len(turns)

        return step

    async def finish() -> None:
        sink.check(await report())

    return Loop(prepare, finish, limit=max(2, SEND_STEP_BYTES // size))


async def encoded_size(way: Way, documents: list[Any], options: argparse.Namespace) -> int:
    """Returns the bytes of a message that each of the documents becomes, as an echo brings it back; checks the echo."""
    ws = await wirespeed.open_with(program.echo_url(options.url), options.ca)
    bound: Bound = way.bind(ws)
    sizes = set()
    for document in documents:
        # One to be measured, one to be decoded.
        await bound.send(document)
        await bound.send(document)
        sizes.add(len(await ws.recv(decode=False)))
        if await bound.recv() != document:
            raise ContentError("the echo of a document that was sent differs from it")
    if len(sizes) != 1:
        raise ContentError(f"the documents do not become messages of one size, but of {sorted(sizes)} bytes")
    return sizes.pop()


WORKLOADS = {"codec-round-trip": pipelined, "codec-send": sending}

if __name__ == "__main__":
    parser = program.parser(list(WORKLOADS))
    parser.add_argument("--style", choices=list(WAYS), default="send-json", help="the codec, and who calls it")
    parser.add_argument("--loop", choices=loops.LOOPS, default="asyncio", help="the event loop")
    parser.add_argument("--document", choices=list(DOCUMENTS), default="tick", help="what is encoded")
    options = parser.parse_args()
    way = WAYS[options.style]
    loop = loops.LIBRARIES[options.loop]
    libraries = [*way.libraries, *([loop] if loop is not None and loop not in way.libraries else [])]

    async def measure() -> dict[str, object]:
        """Runs the workload that the options name."""
        return await awaiting.run(await WORKLOADS[options.workload](way, options), options)

    program.main(options, libraries, list(WORKLOADS), lambda options: on_loop(options, libraries, measure))
