"""The other end: a raw socket that pauses, dribbles, sends, closes and resets on command.

It never waits. Its owner calls ``pump``: the loop of the library under test, so that a schedule repeats exactly, or a
thread of its own. It records received messages, and judges only each message by itself.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import select
import socket
import ssl
import struct
import termios
import threading
from typing import Any

from campaigns.common.wire import Codec, Violation
from support.frames import CLOSE, PING, PONG, Close
from support.openssl import forget_errors

from . import payload
from .payload import Damaged, Ident

# The number in messages of the peer.
PEER_TASK = 99

_CHUNK = 65_536
# Bytes of one read: the library under test may write as much meanwhile.
_MOST = 1 << 21


class Peer:
    """One connection's other end, after the opening handshake.

    Args:
        sock: Connected; a TLS socket after its handshake.
        masks: Whether it is the client.
        deflate: Whether permessage-deflate was negotiated.
        early: What came behind the handshake.
        threaded: Whether it has a thread of its own.

    Attributes:
        received: Messages that came whole, in their order.
        problems: What was wrong with any.
        sent: Messages that it has sent.
        ended: Why nothing comes any more: "eof", "reset" or "left", by itself.
        broke: It has ended the connection in another way than by a close frame.
        close_received: The close frame of the library under test.
    """

    def __init__(self, sock: socket.socket, *, masks: bool, deflate: bool, early: bytes, threaded: bool) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.codec = Codec(masks=masks, deflate=deflate)
        self.lock = threading.RLock()
        self.outgoing = bytearray()
        self.reading = True
        self.most = _MOST
        self.trickling: int | None = None
        self.answering = True
        self.unanswered: list[bytes] = []
        self.received: list[Ident] = []
        self.problems: list[str] = []
        self.sent: list[Ident] = []
        self.pings = 0
        self.ended: str | None = None
        self.broke = False
        self.close_received: Close | None = None
        self.close_sent = False
        self.close_sent_first = False
        self._finishing = False
        self._shut = False
        self._retrying = 0
        self._take(early)
        self._stopping = False
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._run, name="liveness-peer", daemon=True)
            self._thread.start()

    # ---- commands ----

    def do(self, verb: str, **more: Any) -> None:
        """Executes a step; nothing, if the connection has ended."""
        with self.lock:
            if self.ended is None:
                getattr(self, f"_do_{verb}")(**more)

    def relax(self) -> None:
        """Behaves well from now on: reads everything, answers everything, writes as fast as possible."""
        with self.lock:
            if self.ended is None:
                self._do_resume()
                self._do_talk()

    def _do_pause(self) -> None:
        self.reading = False

    def _do_resume(self) -> None:
        self.reading, self.most, self.trickling = True, _MOST, None

    def _do_drain(self) -> None:
        self._read(_MOST)

    def _do_sip(self, count: int = 1500) -> None:
        self._read(count)

    def _do_dribble(self, count: int) -> None:
        self.reading, self.most = True, count

    def _do_trickle(self, count: int) -> None:
        self.trickling = count

    def _do_quiet(self) -> None:
        self.answering = False

    def _do_talk(self) -> None:
        self.answering = True
        unanswered, self.unanswered = self.unanswered, []
        for data in unanswered:
            self._say(PONG, data)

    def _do_ping(self) -> None:
        self.pings += 1
        self._say(PING, b"%d" % self.pings)

    def _do_pong(self) -> None:
        self._say(PONG, b"unsolicited")

    def _do_message(
        self, sizes: tuple[int, ...] = (200,), text: bool = True, ping: bool = False, garbage: bool = False
    ) -> None:
        if self.close_sent:
            return
        ident = Ident(PEER_TASK, len(self.sent))
        message = payload.make(ident, sum(max(size, payload.HEADER) for size in sizes), text=False)
        assert isinstance(message, bytes)
        if garbage and not text:
            message = payload.spoil(message)
        parts = []
        for size in sizes:
            parts.append(message[: max(size, payload.HEADER)])
            message = message[len(parts[-1]) :]
        between = self.codec.frame(PING, b"inside") if ping else b""
        self.outgoing += self.codec.message(parts, text=text, between=between)
        self.sent.append(ident)
        self._write()

    def _do_flood(self, sizes: tuple[int, ...], count: int) -> None:
        for _ in range(count):
            self._do_message(sizes)

    def _do_close(self, code: int = 1000) -> None:
        if not self.close_sent:
            self.close_sent_first = self.close_received is None
            self._say(CLOSE, struct.pack("!H", code))
            self.close_sent = True

    def _do_reset(self) -> None:
        self.broke = True
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._end("left")

    def _do_finish(self) -> None:
        """Ends this direction of TCP, without a close frame."""
        if not self.close_sent:
            self.broke = True
            self.close_sent = True
        self._finishing = True
        self._write()

    # ---- moving bytes ----

    def pump(self) -> bool:
        """Writes and reads as far as this is possible now; returns whether anything moved."""
        with self.lock:
            moved = self._write()
            if self.reading and self.ended is None:
                moved = self._read(self.most) or moved
            return moved

    @property
    def idle(self) -> bool:
        """Returns whether all its data is with the kernel."""
        return not self.outgoing or self.ended is not None

    @property
    def backlog(self) -> int:
        """Returns the number of bytes that it has yet to write, or that the other kernel has yet to take."""
        with self.lock:
            if self.ended is not None:
                return 0
            unacknowledged = array.array("i", [0])
            fcntl.ioctl(self.sock, termios.TIOCOUTQ, unacknowledged)
            return len(self.outgoing) + unacknowledged[0]

    def _say(self, opcode: int, data: bytes) -> None:
        if not self.close_sent:
            self.outgoing += self.codec.frame(opcode, data)
            self._write()

    def _write(self) -> bool:
        moved = False
        while self.outgoing and self.ended is None:
            chunk = self.outgoing[: max(self._retrying, self.trickling or _CHUNK)]
            try:
                size = self.sock.send(chunk)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                # OpenSSL requires the same bytes again.
                self._retrying = len(chunk)
                break
            except OSError:
                self._forget_errors()
                # Data that the other end had sent before it left can still be read.
                self.outgoing.clear()
                break
            self._retrying = 0
            del self.outgoing[:size]
            moved = moved or size > 0
            if self.trickling:
                break
        over = self._finishing or (self.close_sent and self.close_received is not None)
        if over and not self.outgoing and not self._shut and self.ended is None:
            self._shut = True
            with contextlib.suppress(OSError):
                # The method of a TLS socket would continue without decrypting.
                socket.socket.shutdown(self.sock, socket.SHUT_WR)
        return moved

    def _read(self, most: int) -> bool:
        moved = False
        while most > 0 and self.ended is None:
            try:
                data = self.sock.recv(min(most, _CHUNK))
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                data = b""
            except BrokenPipeError:
                # At the end of the stream OpenSSL sends an alert, for which it is too late.
                self._forget_errors()
                data = b""
            except OSError:
                self._forget_errors()
                self._end("reset")
                return True
            if not data:
                self._end("eof")
                return True
            moved = True
            most -= len(data)
            self._take(data)
        return moved

    def _forget_errors(self) -> None:
        """Makes sure that no other connection of this thread gets the errors of this one."""
        if isinstance(self.sock, ssl.SSLSocket):
            forget_errors()

    def _take(self, data: bytes) -> None:
        try:
            for frame in self.codec.feed(data):
                # RFC 6455, section 5.5.1, forbids data; a ping may still have to be answered.
                if self.close_received is not None and frame.opcode not in (PING, PONG):
                    raise Violation(f"a frame with opcode {frame.opcode} comes behind the close frame")
                if frame.opcode == PING:
                    if self.answering:
                        self._say(PONG, frame.payload)
                    else:
                        self.unanswered.append(frame.payload)
                elif frame.opcode == CLOSE:
                    self.close_received = Close.parse(frame.payload)
                    self._say(CLOSE, frame.payload)
                    self.close_sent = True
                    self._write()
                elif frame.opcode != PONG and (message := self.codec.assemble(frame)) is not None:
                    self.received.append(payload.read(message))
        except (Violation, Damaged) as exc:
            self.problems.append(str(exc))
            self._end("left")

    def _end(self, why: str) -> None:
        self.ended = why
        self.sock.close()

    # ---- its thread ----

    def _run(self) -> None:
        while not self._stopping:
            with self.lock:
                if self.ended is not None:
                    return
                slow = self.trickling is not None or self.most != _MOST
                reads = [self.sock] if self.reading else []
                writes = [self.sock] if self.outgoing else []
            try:
                # A TLS socket may hold data that select does not see, and commands come at any time: it polls often.
                select.select(reads, writes, [], 0.0005)
            except (OSError, ValueError):
                continue
            if self.pump() and slow:
                threading.Event().wait(0.0002)

    def stop(self) -> None:
        """Ends the thread at any point."""
        self._stopping = True
        with self.lock:
            if self.ended is None:
                self._end("left")
        if self._thread is not None:
            self._thread.join(5)
