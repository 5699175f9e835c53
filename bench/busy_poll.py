"""What busy polling gains and costs: round trips between two cores, with sleeping and with polling at either end.

    python bench/busy_poll.py [--rounds N] [--seconds S] [--pause US]

The client is ``wirespeed.run(..., busy_poll=)``. The server is one blocking socket, the same code twice: it sleeps in
``recv``, or polls it. All four combinations take turns; a table shows the medians over the rounds. ``--pause`` is the
time that the server computes for before it answers: the longer it is, the deeper the client's core sleeps meanwhile.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time

SIZE = 256
BUSY_POLL = 0.01
KEY = b"sec-websocket-key: "


def serve(core: int, poll: bool, pause: float) -> None:
    """Serves one connection: messages of SIZE bytes, each sent back."""
    os.sched_setaffinity(0, {core})
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(4096)
    key = next(line[len(KEY) :] for line in head.split(b"\r\n") if line.lower().startswith(KEY))
    accept = base64.b64encode(hashlib.sha1(key.strip() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    sock.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )
    sock.setblocking(not poll)
    # An unmasked frame in answer to a masked one, both with a length of two bytes.
    answer = bytes([0x82, 126]) + SIZE.to_bytes(2, "big")
    while True:
        frame = b""
        while len(frame) < 8 + SIZE:
            try:
                data = sock.recv(65536)
            except BlockingIOError:
                continue
            if not data:
                return
            frame += data
            if frame[0] != 0x82:
                return  # a close frame: the client has finished
        mask = int.from_bytes(frame[4:8] * (SIZE // 4), "big")
        payload = (int.from_bytes(frame[8:], "big") ^ mask).to_bytes(SIZE, "big")
        until = time.perf_counter() + pause
        while time.perf_counter() < until:
            pass
        sock.send(answer + payload)


def measure(core: int, port: int, busy_poll: float, seconds: float) -> None:
    """Prints the rate, the times of round trips in microseconds, and how much of the core they took."""
    import wirespeed

    os.sched_setaffinity(0, {core})
    times: list[float] = []
    message = os.urandom(SIZE)

    async def main() -> dict[str, float]:
        ws = await wirespeed.connect(f"ws://127.0.0.1:{port}", compression=None, ping_interval=None)
        try:
            for _ in range(200):
                await ws.send(message)
                await ws.recv()
            clock = time.perf_counter
            begin = now = clock()
            processor = time.process_time()
            while now - begin < seconds:
                before = now
                await ws.send(message)
                reply = await ws.recv()
                now = clock()
                times.append(now - before)
                if reply != message:
                    raise ValueError("not what was sent")
            processor = time.process_time() - processor
        finally:
            ws.abort()
        times.sort()
        return {
            "rate": len(times) / (now - begin),
            "median": times[len(times) // 2] * 1e6,
            "p99": times[len(times) * 99 // 100] * 1e6,
            "processor": processor / (now - begin),
        }

    print(json.dumps(wirespeed.run(main(), busy_poll=busy_poll)))


def window(client_polls: bool, server_polls: bool, options: argparse.Namespace) -> dict[str, float]:
    """Measures one combination once."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("this needs two cores: on one, whoever polls takes the time of the other")
    program = [sys.executable, __file__]
    server_command = ["--serve", "--pause", str(options.pause), *(["--poll"] if server_polls else [])]
    server = subprocess.Popen([*program, "--core", str(cores[1]), *server_command], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        client_command = ["--core", str(cores[0]), "--port", port, "--seconds", str(options.seconds)]
        client = subprocess.run(
            [*program, *client_command, *(["--poll"] if client_polls else [])],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=options.seconds + 30,
        )
    finally:
        server.terminate()
        server.wait()
    return json.loads(client.stdout)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a window")
    parser.add_argument("--pause", type=float, default=0.0, help="microseconds that the server takes for an answer")
    for internal in ("--serve", "--poll"):
        parser.add_argument(internal, action="store_true", help=argparse.SUPPRESS)
    for internal in ("--core", "--port"):
        parser.add_argument(internal, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.core, options.poll, options.pause / 1e6)
        return
    if options.port is not None:
        measure(options.core, options.port, BUSY_POLL if options.poll else 0.0, options.seconds)
        return
    combinations = [(client, server) for client in (False, True) for server in (False, True)]
    found: dict[tuple[bool, bool], list[dict[str, float]]] = {combination: [] for combination in combinations}
    for _ in range(options.rounds):
        for combination in combinations:
            found[combination].append(window(*combination, options))
    print("client  server  round trips/s  median us  99 % us  client's core")
    for (client, server), windows in found.items():
        middle = {name: statistics.median(one[name] for one in windows) for name in windows[0]}
        print(
            f"{'polls' if client else 'sleeps':7} {'polls' if server else 'sleeps':7}"
            f"{middle['rate']:14,.0f} {middle['median']:10.1f} {middle['p99']:8.1f} {middle['processor']:14.0%}"
        )


if __name__ == "__main__":
    main()
