"""The engine under test: it echoes everything, without limits, and prints its port. It ends with its standard input."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

import trustme
from runner.testees import ENGINES

from wirespeed import TLS
from wirespeed.engine import Engine, Session


def certificate(folder: Path) -> TLS:
    leaf = trustme.CA().issue_cert("localhost", "127.0.0.1")
    cert, key = folder / "server.pem", folder / "server.key"
    cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(str(key))
    return TLS(cert=str(cert), key=str(key))


async def serve(engine: Engine) -> None:
    async with engine:
        serving = asyncio.create_task(engine.serve())
        print(engine.addresses[0][1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        engine.stop()
        await serving


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--api", choices=ENGINES, required=True)
    parser.add_argument("--tls", type=Path, help="with TLS; where the files of a certificate may be made")
    options = parser.parse_args()
    # What the engine reports as an error is a problem of the engine: the suite breaks every rule.
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    engine = Engine(
        "127.0.0.1",
        workers=2,
        ssl=None if options.tls is None else certificate(options.tls),
        compression=True,
        max_size=None,
        max_fragments=None,
        ping_interval=None,
        # All that the suite sends before it reads.
        outbox_limit=64 * 2**20,
    )
    if options.api == "engine-handler":

        @engine.on_message
        async def echo(session: Session, message: str | bytes) -> None:
            session.send(message)

        asyncio.run(serve(engine))
        return
    engine.echo("/")
    with engine:
        print(engine.addresses[0][1], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
