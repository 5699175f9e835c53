"""Connects to real WebSocket servers over ws and wss, and exchanges messages.

The servers: the native echo server of this project, and one of the `websockets` package, if it is installed.

    make demo
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import wirespeed
from wirespeed.sync import connect

ROOT = Path(__file__).resolve().parent.parent
ECHO_SERVER = os.environ.get("WIRESPEED_BENCH") or str(
    ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release" / "wirespeed-bench"
)


@contextlib.contextmanager
def native_server() -> Iterator[list[tuple[str, str | None]]]:
    """Starts the native echo server; yields (URI, path of the authority's certificate or None) for ws and wss."""
    command = [ECHO_SERVER, "echo", "--port", "0", "--tls-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            plain = process.stdout.readline().split()
            secure = process.stdout.readline().split()
            yield [(plain[1], None), (secure[1], secure[2].removeprefix("ca="))]
        finally:
            process.terminate()


@contextlib.contextmanager
def websockets_server() -> Iterator[list[tuple[str, str | None]]]:
    """Starts an echo server of the `websockets` package in a thread, plain and with TLS."""
    import ssl

    import trustme
    from websockets.asyncio.server import ServerConnection, serve

    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    ports: list[int] = []
    ready, stop, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

    async def run() -> None:
        async with serve(echo, "127.0.0.1", 0) as plain, serve(echo, "127.0.0.1", 0, ssl=context) as secure:
            ports.extend(server.sockets[0].getsockname()[1] for server in (plain, secure))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    with tempfile.TemporaryDirectory() as directory:
        certificate = Path(directory, "ca.pem")
        authority.cert_pem.write_to_path(str(certificate))
        try:
            ready.wait(10)
            yield [(f"ws://127.0.0.1:{ports[0]}", None), (f"wss://127.0.0.1:{ports[1]}", str(certificate))]
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()


def exchange(uri: str, certificate: str | None) -> None:
    """Exchanges messages with an echo server and prints the result."""
    tls = None if certificate is None else wirespeed.TLS(ca=certificate)
    with connect(uri, ssl=tls, proxy=None, max_size=None) as ws:
        print(f"  {uri}: connected; compression: {ws.response.headers.get('Sec-WebSocket-Extensions', 'none')}")
        ws.send("Grüße, 世界")
        print(f"    text:   sent and received back: {ws.recv(timeout=5)!r}")
        ws.send(["a message ", "in ", "fragments"])
        print(f"    pieces: sent as fragments, received: {ws.recv(timeout=5)!r}")
        print(f"    ping:   answered after {ws.ping().wait(5) * 1e6:.0f} microseconds")
        big = os.urandom(1_000_000)
        ws.send(big)
        print(f"    binary: 1 MB sent and received back whole: {ws.recv(timeout=10) == big}")
    print(f"    closed: code {ws.close_code}, {ws.state.name.lower()}")
    with connect(uri, ssl=tls, proxy=None, compression=None) as ws:
        payload, count, end = os.urandom(256), 0, time.perf_counter() + 1
        while time.perf_counter() < end:
            ws.send(payload)
            if ws.recv() != payload:
                sys.exit("the reply is not what was sent")
            count += 1
        print(f"    speed:  {count:,} round trips of 256 bytes in a second, every reply compared")


def main() -> None:
    """Runs the demonstration."""
    print(f"wirespeed {wirespeed.__version__} on Python {sys.version.split()[0]}")
    print("The native echo server:")
    with native_server() as uris:
        for uri, certificate in uris:
            exchange(uri, certificate)
    try:
        import trustme  # noqa: F401
        from websockets.version import version
    except ImportError:
        print("The `websockets` package is not installed: its server is left out.")
        return
    print(f"A server that others wrote, websockets {version}:")
    with websockets_server() as uris:
        for uri, certificate in uris:
            exchange(uri, certificate)


if __name__ == "__main__":
    main()
