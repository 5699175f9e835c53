"""The engine under test. It echoes every message without limits, prints its port, and ends when its standard input
ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
import threading
from pathlib import Path

from runner.certificate import Certificate
from runner.ends import chosen
from runner.libraries import identified

from wirespeed import InvalidState
from wirespeed.engine import Engine, Message, Session


def announce(engine: Engine) -> None:
    print(engine.addresses[0][1], flush=True)


async def serve(engine: Engine) -> None:
    async with engine:
        serving = asyncio.create_task(engine.serve())
        announce(engine)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        engine.stop()
        await serving


def drain(engine: Engine) -> None:
    for batch in engine.batches():
        for event in batch:
            if isinstance(event, Message):
                # The suite has closed the connection, or broken a rule after closing it.
                with contextlib.suppress(InvalidState):
                    event.session.send(event.data)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("end", help="its name")
    parser.add_argument("--library", choices=["wirespeed"], required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where the files of a certificate may be made")
    options = parser.parse_args()
    # An error that the engine reports is a problem of the engine, because the suite breaks every rule on purpose.
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    [end] = chosen([options.end], options.library)
    engine = Engine(
        "127.0.0.1",
        workers=2,
        compression=True,
        max_size=None,
        max_fragments=None,
        ping_interval=None,
        # Room for everything that the suite sends before it reads.
        outbox_limit=64 * 2**20,
        **identified(Certificate.make(options.folder) if end.tls else None),
    )
    if end.api == "engine-handler":

        @engine.on_message
        async def echo(session: Session, message: str | bytes) -> None:
            session.send(message)

        asyncio.run(serve(engine))
        return
    if end.api == "engine":
        engine.echo("/")
    with engine:
        if end.api == "engine-batches":
            threading.Thread(target=drain, args=[engine], daemon=True).start()
        announce(engine)
        sys.stdin.read()


if __name__ == "__main__":
    main()
