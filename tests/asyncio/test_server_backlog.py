"""Hundreds of clients at the same moment: the server empties the system's backlog and accepts them gradually."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from support.asyncio_tools import Setting, new_loop
from support.checks import no_leaks
from support.serving import Raw, echo, idle, request, serve

pytestmark = [
    pytest.mark.wirespeed_only("the server is ours"),
    pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells how long the queue is"),
]

CLIENTS = 600
# The maximum number of clients accepted in one turn of the loop.
IN_A_TURN = 32


def in_queue(server: Any) -> int:
    """Returns the number of connections in the system's backlog."""
    # `tcpi_unacked` of a listening socket is its backlog: see tcp(7) and tcp_get_info of Linux.
    count: int = struct.unpack_from("I", server.sockets[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 24)[0]
    return count


@contextlib.contextmanager
def storm(server: Any, count: int = CLIENTS) -> Iterator[list[Raw]]:
    """Clients that have all sent their request before the loop has its next turn."""
    with contextlib.ExitStack() as stack:
        raws = []
        for _ in range(count):
            sock = socket.create_connection(server.sockets[0].getsockname())
            sock.sendall(request())
            sock.setblocking(False)
            raws.append(stack.enter_context(Raw(sock)))
        assert in_queue(server) == count
        yield raws


def came_in() -> int:
    """Returns the number of accepted clients: each has a task while it is served."""
    return len(asyncio.all_tasks()) - 1


@pytest.mark.no_leaks
@pytest.mark.within(20)
async def test_backlog_is_emptied_first(setting: Setting) -> None:
    async with serve(setting, echo) as server:
        with storm(server) as raws:
            before = 0
            while in_queue(server):
                await asyncio.sleep(0)
                # A turn may be counted with the next.
                assert came_in() - before <= 2 * IN_A_TURN
                before = came_in()
            assert came_in() < CLIENTS / 2
            for raw in raws:
                assert (await raw.head()).status == 101


@pytest.mark.no_leaks
@pytest.mark.within(20)
async def test_accepted_clients_count_for_max_pending(setting: Setting) -> None:
    async with serve(setting, idle, max_pending=1) as server:
        with storm(server, 300) as raws:
            for _ in range(4):
                await asyncio.sleep(0)
                assert 300 - in_queue(server) - came_in() <= IN_A_TURN
            for raw in raws:
                assert (await raw.head()).status == 101


@pytest.mark.parametrize("turns", [1, 2, 3, 5])
@pytest.mark.no_leaks
@pytest.mark.within(20)
async def test_closing_answers_all_accepted_clients(setting: Setting, turns: int) -> None:
    async with serve(setting, echo, close_timeout=0.5) as server:
        with storm(server, 300) as raws:
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting = in_queue(server)
            server.close()
            await server.wait_closed()
            answers = []
            for raw in raws:
                # Clients that were not accepted are reset.
                with contextlib.suppress(ConnectionResetError):
                    answers.append((await raw.head()).status)
            assert len(answers) >= 300 - waiting
            assert set(answers) <= {101, 503}


def test_closed_loop_leaves_no_socket_open(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirespeed.asyncio._accept._STARTED_AT_ONCE", 0)
    loop = new_loop(setting.loop)

    async def main() -> tuple[Any, contextlib.ExitStack]:
        server = await serve(setting, idle)
        with contextlib.ExitStack() as stack:
            stack.enter_context(storm(server))
            while in_queue(server):
                await asyncio.sleep(0)
            return server, stack.pop_all()

    server, stack = loop.run_until_complete(main())
    # An open connection that becomes garbage warns, which is an error here.
    with stack, no_leaks():
        loop.close()
        server.close()
        del server
        gc.collect()
