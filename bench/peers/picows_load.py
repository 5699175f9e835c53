"""Load by somebody else's client: many connections of picows, each sends a message when its echo has come."""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect


class Client(WSListener):
    def __init__(self, message: bytes) -> None:
        self.message = message
        self.count = 0
        self.fault: str | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport
        transport.send(WSMsgType.BINARY, self.message)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.BINARY or frame.get_payload_as_memoryview() != self.message:
            self.fault = f"a frame that is not the echo: {frame.msg_type}"
            return
        self.count += 1
        transport.send(WSMsgType.BINARY, self.message)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.fault = "the server has left"


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--warmup", type=float, default=0.3)
    parser.add_argument("url")
    options = parser.parse_args()
    clients = [Client(bytes([index % 251]) * options.size) for index in range(options.connections)]
    for client in clients:
        await ws_connect(lambda client=client: client, options.url)
    await asyncio.sleep(options.warmup)
    print("begin", flush=True)
    before, start = sum(client.count for client in clients), time.perf_counter()
    await asyncio.sleep(options.seconds)
    count, seconds = sum(client.count for client in clients) - before, time.perf_counter() - start
    faults = [client.fault for client in clients if client.fault is not None]
    if faults:
        raise SystemExit(faults[0])
    print(json.dumps({"count": count, "seconds": seconds, "checked": True}), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
