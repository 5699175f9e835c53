"""Load by somebody else's client: many connections of picows, each sends a message when its echo has come."""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect


class Client(WSListener):
    """A connection. Its messages are numbered, so that none can be taken for another."""

    def __init__(self, size: int) -> None:
        self.message = bytearray(index % 251 for index in range(size))
        self.count = 0
        self.fault: str | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport
        self.send(transport)

    def send(self, transport: WSTransport) -> None:
        self.message[:8] = self.count.to_bytes(8, "little")
        transport.send(WSMsgType.BINARY, self.message)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.BINARY or frame.get_payload_as_memoryview() != self.message:
            self.fault = self.fault or f"a frame that is not the echo: {frame.msg_type.name}"
            return
        self.count += 1
        self.send(transport)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.fault = self.fault or "the server has left"


async def main() -> None:
    """Puts load on the server that the command line names; prints `begin`, then what it did as a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--warmup", type=float, default=0.3)
    parser.add_argument("url")
    options = parser.parse_args()
    clients = [Client(options.size) for _ in range(options.connections)]
    for client in clients:
        await ws_connect(lambda client=client: client, options.url)
    await asyncio.sleep(options.warmup)
    print("begin", flush=True)
    cpu, before, start = time.process_time(), sum(client.count for client in clients), time.perf_counter()
    await asyncio.sleep(options.seconds)
    count, seconds = sum(client.count for client in clients) - before, time.perf_counter() - start
    used = time.process_time() - cpu
    faults = [client.fault for client in clients if client.fault is not None]
    if faults:
        raise SystemExit(faults[0])
    print(json.dumps({"count": count, "seconds": seconds, "checked": True, "cpu": used}), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
