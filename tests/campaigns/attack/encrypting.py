"""Attacks on TLS, before and after its handshake."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator

from campaigns.common.handshake import fresh_request as head

from .opening import halves
from .target import Target

OPENSSL = shutil.which("openssl")


def hello() -> bytes:
    """Returns the first message of a client, in its record."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def half_hellos(target: Target) -> Iterator[None]:
    """Nothing, half of the first message, or all of it and nothing after."""
    whole = hello()
    return halves(target, [b"", whole[:30], whole[:-1], whole], lambda: None)


def garbage(target: Target) -> Iterator[None]:
    """Bytes that are not TLS, or break it after a good beginning; and plain requests."""
    good = hello()
    record = b"\x16\x03\x03"
    wrong = [
        os.urandom(5_000), head(), good + os.urandom(5_000), good + b"\x15\x03\x03\x00\x02\x02\x28",
        record + b"\x00\x00", (record + b"\x00\x00") * 2_000, record + b"\xff\xff" + bytes(70_000),
        b"\x17\x03\x03\x40\x00" + bytes(2**14), record + b"\x00\x04\x01\xff\xff\xff" + bytes(90_000), good[:5] + good,
        (b"\x14\x03\x03\x00\x01\x01") * 5_000, record + struct.pack("!H", 2**14) + b"\x01\x00\xff\xff" + bytes(2**14),
    ]  # fmt: skip
    for data in itertools.cycle(wrong):
        with target.connect() as sock:
            target.push(sock, data, 0.3)
            # Clients without an answer in this time have been waited for, and leave.
            sock.settimeout(0.3)
            with contextlib.suppress(OSError):
                while sock.recv(65_536):
                    pass
                target.tally["closed"] += 1
        yield


def renegotiations(target: Target) -> Iterator[None]:
    """TLS sessions that request renegotiations or key updates repeatedly."""
    assert OPENSSL is not None
    for number in itertools.count():
        version, letter = (("-tls1_2", b"R"), ("-tls1_3", b"K"))[number % 2]
        command = [OPENSSL, "s_client", "-connect", f"127.0.0.1:{target.port}", version]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as child:
            target.tally["connections"] += 1
            assert child.stdin is not None
            try:
                child.stdin.write(head())
                child.stdin.flush()
                for _ in range(100):
                    # A command is a letter that arrives alone, in one read.
                    os.write(child.stdin.fileno(), letter + b"\n")
                    time.sleep(0.002)
                    yield
            except BrokenPipeError:
                target.tally["closed"] += 1
            finally:
                child.kill()
