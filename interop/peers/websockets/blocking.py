"""websockets with threads, client and server."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory, ServerPerMessageDeflateFactory
from websockets.sync.client import connect
from websockets.sync.server import serve

from peers.contract import (
    HEARTBEAT,
    LIMIT,
    PATIENCE,
    REFUSAL,
    SUBPROTOCOLS,
    UNLIMITED,
    Job,
    Record,
    Task,
    announce,
    client_context,
    jobs,
    mode,
    server_context,
    until_input_ends,
)

VARIANTS = ("default", "no-takeover", "limited", "keepalive", "tls")


def options(variant: str, factory: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "max_size": LIMIT if variant == "limited" else UNLIMITED,
        "ping_interval": HEARTBEAT if variant == "keepalive" else None,
        "ping_timeout": PATIENCE,
    }
    if variant == "no-takeover":
        extension = factory(server_no_context_takeover=True, client_no_context_takeover=True)
        chosen.update(compression=None, extensions=[extension])
    return chosen


def perform(ws: Any, task: Task, record: Record) -> None:
    record.opened(ws.subprotocol, ws.response.headers.get("Sec-WebSocket-Extensions"))
    with contextlib.suppress(ConnectionClosed):
        if task.name == "close":
            ws.close(task.number("code"), task.query.get("reason", ""))
        if task.name == "push":
            ws.send(bytes(task.number("size")))
        if task.name == "headers":
            ws.send(json.dumps({name.lower(): value for name, value in ws.request.headers.items()}))
        if task.name == "ping":
            for number in range(task.number("n")):
                ws.ping(f"ping {number}").wait()
            ws.send(f"{task.number('n')} pongs")
        for message in ws:
            record.message(message)
            ws.send(task.pieces(message) or message)
    ws.close()
    record.closed(ws.close_code, ws.close_reason)


def run(job: Job) -> None:
    record = Record(job.task)
    secure = {"ssl": client_context()} if job.uri.startswith("wss:") else {}
    try:
        with connect(
            job.uri,
            subprotocols=job.subprotocols or None,
            additional_headers=job.headers,
            proxy=None,
            **secure,
            **options(job.variant, ClientPerMessageDeflateFactory),
        ) as ws:
            perform(ws, job.task, record)
    except InvalidStatus as exc:
        record.failed(exc)
        record.refused(exc.response.status_code, (exc.response.body or b"").decode())
    except (WebSocketException, OSError) as exc:
        record.failed(exc)
    record.emit()


def refuse(connection: Any, request: Any) -> Any:
    return connection.respond(403, REFUSAL) if Task.parse(request.path).name == "reject" else None


def choose(_: Any, offered: Sequence[str]) -> str | None:
    """Otherwise websockets refuses clients that offer no subprotocol."""
    return next((name for name in SUBPROTOCOLS if name in offered), None)


def answer(ws: Any) -> None:
    task = Task.parse(ws.request.path)
    record = Record(task)
    try:
        perform(ws, task, record)
    finally:
        record.emit()


def main() -> None:
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        ports = {}
        for variant in VARIANTS:
            server = serve(
                answer,
                "127.0.0.1",
                0,
                subprotocols=SUBPROTOCOLS,
                select_subprotocol=choose,
                process_request=refuse,
                ssl=server_context() if variant == "tls" else None,
                **options(variant, ServerPerMessageDeflateFactory),
            )
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            ports[variant] = server.socket.getsockname()[1]
        announce(ports)
        until_input_ends(stop.set)
        stop.wait()


if __name__ == "__main__":
    if mode() == "server":
        main()
    else:
        for given in jobs():
            run(given)
