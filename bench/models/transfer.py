"""A whole file, in or out, in messages of a size; both ends hash it, and the hashes are compared."""

from __future__ import annotations

import argparse
import hashlib
from typing import TYPE_CHECKING, Any

from models import stepping
from models.awaiting import Awaiting, Connect, Loop
from models.content import ContentError, File, payload_of, unwrapping

if TYPE_CHECKING:
    from models import blocking

__all__ = ["BLOCKING", "LOOPS"]

NO_TEXT = "this peer does not say how its library sends a text message"


class _Arriving:
    """A file that arrives: counts and hashes."""

    def __init__(self, encode: Any, options: argparse.Namespace) -> None:
        self.file = File(options.size, options.bytes)
        self.payload = unwrapping(encode, options.size)
        self.text = payload_of(encode)
        self.digest = hashlib.sha256()
        self.arrived = 0

    def take(self, reply: Any) -> None:
        """Takes the next message."""
        part = self.payload(reply)
        try:
            self.digest.update(part)
        except TypeError:
            raise ContentError(f"in place of a message of the file came {str(part)[:100]}") from None
        self.arrived += len(part)

    def look_whole(self) -> None:
        """Checks that all bytes are there, before what the server says at the end is waited for."""
        arrived, self.arrived = self.arrived, 0
        if arrived != self.file.length:
            raise ContentError(f"{arrived} bytes came in the messages of a file of {self.file.length}")

    def end(self, reply: Any) -> int:
        """Checks what the server says at the end; returns the messages of the file."""
        self.file.check(self.text(reply), self.digest.hexdigest())
        self.digest = hashlib.sha256()
        return self.file.count


async def _transfer_in(connect: Connect, style: str, options: argparse.Namespace) -> Loop:
    connection = await connect(options.url, options.ca, options.size)
    arriving = _Arriving(connection.encode, options)
    recv, take, file, send_text = connection.recv, arriving.take, arriving.file, connection.send_text
    if send_text is None:
        raise ContentError(NO_TEXT)
    first = True

    async def step() -> int:
        nonlocal first
        if not first:
            pending = send_text("again")
            if pending is not None:
                await pending
        first = False
        for _ in range(file.count):
            take(await recv())
        arriving.look_whole()
        return arriving.end(await recv())

    return Loop(lambda count: step, limit=2)


async def _transfer_out(connect: Connect, style: str, options: argparse.Namespace) -> Loop:
    connection = await connect(options.url, options.ca, options.size)
    file = File(options.size, options.bytes)
    messages = list(file.messages())
    digest = hashlib.sha256()
    times = 0

    async def step() -> int:
        nonlocal times
        await _send_file(connection, messages, digest)
        times += 1
        # The answer ends the file: nothing of it is in a buffer any more.
        file.check(await connection.report(), digest.hexdigest(), times)
        return file.count

    return Loop(lambda count: step, limit=2)


async def _send_file(connection: Awaiting, messages: list[bytes], digest: Any) -> None:
    send, writable, update = connection.send, connection.writable, digest.update
    for message in messages:
        update(message)
        try:
            pending = send(message)
        except BlockingIOError:
            if writable is None:
                raise
            await writable()
            pending = send(message)
        if pending is not None:
            await pending


def _transfer_in_blocking(connect: blocking.Connect, options: argparse.Namespace) -> stepping.Loop:
    connection = connect(options.url, options.ca, options.size)
    arriving = _Arriving(lambda message: connection.encode(message)[1], options)
    recv, take, file, send_text = connection.recv, arriving.take, arriving.file, connection.send_text
    if send_text is None:
        raise ContentError(NO_TEXT)
    first = True

    def step() -> int:
        nonlocal first
        if not first:
            send_text("again")
        first = False
        for _ in range(file.count):
            take(recv())
        arriving.look_whole()
        return arriving.end(recv())

    return stepping.Loop(lambda count: step, limit=2)


def _transfer_out_blocking(connect: blocking.Connect, options: argparse.Namespace) -> stepping.Loop:
    connection = connect(options.url, options.ca, options.size)
    file = File(options.size, options.bytes)
    messages = list(file.messages())
    digest = hashlib.sha256()
    times = 0

    def step() -> int:
        nonlocal times
        send, update = connection.send, digest.update
        for message in messages:
            update(message)
            send(message)
        times += 1
        file.check(connection.report(), digest.hexdigest(), times)
        return file.count

    return stepping.Loop(lambda count: step, limit=2)


LOOPS: dict[str, Any] = {"transfer-in": _transfer_in, "transfer-out": _transfer_out}
BLOCKING = {"transfer-in": _transfer_in_blocking, "transfer-out": _transfer_out_blocking}
