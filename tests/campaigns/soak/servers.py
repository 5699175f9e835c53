"""The servers under test, each a program: ``servers NAME``. They echo, and the engine publishes too."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import wirespeed
from campaigns.common import echo
from campaigns.common.program import answer, serve_in_thread
from wirespeed import InvalidState
from wirespeed.engine import Connected, Engine, Message, Publisher, Session

from .counting import figures_of_loop, objects

LIMITS: dict[str, Any] = {"open_timeout": 2.0, "close_timeout": 2.0, "ping_interval": 2.0, "ping_timeout": 2.0}
CONNECTIONS = ("ServerConnection", "AsyncConnection", "BlockingConnection", "WebSocketProtocol")


async def serve(**options: Any) -> None:
    async with wirespeed.serve(host="127.0.0.1", port=0, **LIMITS, **options) as server:
        serve_in_thread(figures_of_loop(asyncio.get_running_loop(), *CONNECTIONS))
        answer({"port": next(iter(server.sockets)).getsockname()[1]})
        await asyncio.Event().wait()


def handlers() -> None:
    asyncio.run(serve(handler=echo.handler))


def listeners() -> None:
    wirespeed.run(serve(handler=None, listener=echo.Listener))


def transports() -> None:
    import uvloop

    uvloop.run(serve(handler=echo.handler, io_backend="transport"))


def threads() -> None:
    from wirespeed.sync import serve as serve_threads

    with serve_threads(echo.handle, "127.0.0.1", 0, **LIMITS) as server:
        serve_in_thread(lambda: {"objects": objects(*CONNECTIONS)})
        answer({"port": server.socket.getsockname()[1]})
        server.serve_forever()


def uvicorn() -> None:
    import uvicorn as theirs

    async def main() -> None:
        config = theirs.Config(
            echo.application,
            port=0,
            ws="wirespeed.asgi:WebSocketProtocol",
            lifespan="off",
            log_config=None,
            ws_ping_interval=2,
            ws_ping_timeout=2,
        )
        server = theirs.Server(config)
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        serve_in_thread(figures_of_loop(asyncio.get_running_loop(), *CONNECTIONS))
        answer({"port": server.servers[0].sockets[0].getsockname()[1]})
        await serving

    asyncio.run(main())


def engine_with(**options: Any) -> Engine:
    engine = Engine(
        "127.0.0.1", workers=2, compression=True, outbox_limit=2**20, max_event_bytes=4 * 2**20, **LIMITS, **options
    )
    engine.route("/")
    engine.echo("/echo")
    engine.relay("/relay/{topic}")
    return engine


def engine_figures(engine: Engine) -> dict[str, float]:
    return {"objects": objects("Session", "Message", "Connected", "Disconnected")}


def engine_batches() -> None:
    engine = engine_with()

    def drain() -> None:
        for batch in engine.batches():
            for event in batch:
                with contextlib.suppress(InvalidState, BlockingIOError):
                    if isinstance(event, Connected):
                        event.session.subscribe(f"room/{event.session.id % 7}")
                    elif isinstance(event, Message):
                        event.session.send(event.data)
                        engine.publish(f"room/{event.session.id % 7}", "news")

    with engine:
        threading.Thread(target=drain, daemon=True).start()
        serve_in_thread(lambda: engine_figures(engine))
        answer({"port": engine.addresses[0][1]})
        threading.Event().wait()


def engine_handlers() -> None:
    engine = engine_with()

    @engine.on_message
    async def send_back(session: Session, message: str | bytes) -> None:
        with contextlib.suppress(InvalidState, BlockingIOError):
            session.send(message)

    async def main() -> None:
        async with engine:
            serve_in_thread(figures_of_loop(asyncio.get_running_loop(), "Session", "Message"))
            answer({"port": engine.addresses[0][1]})
            await engine.serve()

    asyncio.run(main())


def engine_broker() -> None:
    """Two engines and a publisher."""
    engine, other = engine_with(broker="memory://soak"), Engine("127.0.0.1", broker="memory://soak")

    def drain() -> None:
        for batch in engine.batches():
            for event in batch:
                with contextlib.suppress(InvalidState, BlockingIOError):
                    if isinstance(event, Connected) and event.session.path != "/":
                        event.session.subscribe("news")
                    elif isinstance(event, Message):
                        event.session.send(event.data)

    def publish() -> None:
        with Publisher("memory://soak") as publisher:
            while True:
                for source in (publisher, other):
                    with contextlib.suppress(BlockingIOError):
                        source.publish("news", "x" * 100)
                threading.Event().wait(0.005)

    with engine, other:
        for work in (drain, publish):
            threading.Thread(target=work, daemon=True).start()
        serve_in_thread(lambda: engine_figures(engine))
        answer({"port": engine.addresses[0][1]})
        threading.Event().wait()


SERVERS = {
    "handlers": handlers,
    "listeners": listeners,
    "transports": transports,
    "threads": threads,
    "uvicorn": uvicorn,
    "engine-batches": engine_batches,
    "engine-handlers": engine_handlers,
    "engine-broker": engine_broker,
}


def main(name: str) -> None:
    SERVERS[name]()
