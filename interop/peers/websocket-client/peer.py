"""websocket-client, its blocking ``WebSocket``. Its user has to handle closing and the types of frames."""

from __future__ import annotations

import os
import struct
from typing import Any

import websocket
from websocket import ABNF

from peers.contract import Job, Record, jobs

PING_TIMEOUT = 10


def send(ws: Any, opcode: int, payload: bytes, pieces: list[bytes] | None) -> None:
    if pieces is None:
        ws.send(payload, opcode)
        return
    for index, piece in enumerate(pieces):
        last = index == len(pieces) - 1
        ws.send_frame(ABNF(int(last), 0, 0, 0, ABNF.OPCODE_CONT if index else opcode, 1, piece))


def ping(ws: Any, times: int) -> None:
    for number in range(times):
        ws.ping(f"ping {number}")
        opcode, pong = ws.recv_data(control_frame=True)
        if (opcode, pong) != (ABNF.OPCODE_PONG, b"ping %d" % number):
            raise ValueError(f"not the pong: {opcode} {pong!r}")
    ws.send(f"{times} pongs")


def close_frame(payload: bytes) -> tuple[int, str]:
    return (struct.unpack("!H", payload[:2])[0], payload[2:].decode()) if payload else (1005, "")


def perform(ws: Any, job: Job, record: Record) -> None:
    task = job.task
    if task.name == "close":
        ws.close(task.number("code"), task.query.get("reason", "").encode(), timeout=PING_TIMEOUT)
        if ws.close_frame is not None:
            record.closed(*close_frame(ws.close_frame.data))
        return
    if task.name == "push":
        ws.send(bytes(task.number("size")), ABNF.OPCODE_BINARY)
    if task.name == "ping":
        ping(ws, task.number("n"))
    while True:
        opcode, payload = ws.recv_data()
        if opcode == ABNF.OPCODE_CLOSE:
            # recv_data has already answered it.
            record.closed(*close_frame(payload))
            ws.shutdown()
            return
        record.message(payload.decode() if opcode == ABNF.OPCODE_TEXT else payload)
        send(ws, opcode, payload, task.pieces(payload))


def run(job: Job) -> None:
    record = Record(job.task)
    try:
        ws = websocket.create_connection(
            job.uri,
            subprotocols=job.subprotocols or None,
            header=[f"{name}: {value}" for name, value in job.headers],
            sslopt={"ca_certs": os.environ["INTEROP_CA"]},
            timeout=None,
        )
        record.opened(ws.subprotocol, ws.headers.get("sec-websocket-extensions"))
        try:
            perform(ws, job, record)
        finally:
            ws.shutdown()
    except websocket.WebSocketBadStatusException as exc:
        record.failed(exc)
        record.refused(exc.status_code, (exc.resp_body or b"").decode())
    except (websocket.WebSocketConnectionClosedException, ConnectionError) as exc:
        record.failed(exc)
        record.closed(1006, None)
    except (websocket.WebSocketException, OSError) as exc:
        record.failed(exc)
    record.emit()


if __name__ == "__main__":
    for given in jobs():
        run(given)
