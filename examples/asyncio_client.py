"""A client that stays connected: it sends ticks, prints the replies, and reconnects when the connection is lost.

It talks to an echo server, which `wirespeed serve` starts in another terminal:

    python examples/asyncio_client.py ws://localhost:8765 # until Ctrl-C
    python examples/asyncio_client.py ws://localhost:8765 10 # ten ticks
"""

import asyncio
import contextlib
import itertools
import sys

import wirespeed


async def send_ticks(ws: wirespeed.ClientConnection) -> None:
    """Sends a number ten times a second."""
    for number in itertools.count():
        await ws.send(f"tick {number}")
        await asyncio.sleep(0.1)


async def follow(uri: str, limit: int | None) -> None:
    """Prints the messages of the server, on one connection after another."""
    received = 0
    async for ws in wirespeed.connect(uri, reconnect_after_close=True):
        sending = asyncio.ensure_future(send_ticks(ws))
        try:
            async for message in ws:
                print(message)
                received += 1
                if received == limit:
                    print(f"latency: {await (await ws.ping()) * 1e6:.0f} microseconds")
                    await ws.close()
                    return
        except wirespeed.ConnectionClosed as exc:
            print(f"connection lost: {exc}", file=sys.stderr)
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, wirespeed.ConnectionClosed):
                await sending


def main() -> None:
    """Runs until Ctrl-C, or until the wanted number of messages was received."""
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    with contextlib.suppress(KeyboardInterrupt):
        wirespeed.run(follow(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else None))


if __name__ == "__main__":
    main()
