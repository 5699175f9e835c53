"""A conversation over the emulated network: the subject is at its near end, the peer at the far one."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from campaigns.common.program import command
from support.certificates import Certificates
from support.checks import no_leaks
from support.children import Child
from support.load_scaling import load_scaled
from support.threads import no_threads_left

from .clients import DOCUMENTED, Plan, run_client
from .conversation import SOME, Log, converse
from .emulator import FAR, NEAR, Link
from .network_cell import Far, check_log, check_serves, client_tls, serving_of
from .peer import Peer
from .servers import FIRST, serving
from .table import Cell

CLONE_NEWNET = 0x40000000
PATIENCE = 60.0


def _enter(namespace: int) -> None:
    """Moves this thread, and those that it starts from now on, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Network:
    """The emulated network, in a process of its own.

    ``near()`` and ``far()`` run the block in the namespace of an end.
    """

    def __init__(self, link: Link) -> None:
        self.child = Child(["unshare", "--net", "--mount", *command("faults.emulator", *link.arguments())])
        try:
            far = int(self.child.read_until("ready "))
            status = Path(f"/proc/{far}/status").read_text()
            near = int(status.partition("PPid:")[2].split()[0])
            self._here = os.open("/proc/self/ns/net", os.O_RDONLY)
            self._near = os.open(f"/proc/{near}/ns/net", os.O_RDONLY)
            self._far = os.open(f"/proc/{far}/ns/net", os.O_RDONLY)
        except BaseException:
            self.child.stop()
            raise

    def stop(self) -> None:
        for namespace in (self._here, self._near, self._far):
            os.close(namespace)
        self.child.stop()

    def say(self, command: str) -> None:
        assert self.child.process.stdin is not None
        self.child.process.stdin.write(f"{command}\n")
        self.child.process.stdin.flush()
        self.child.read_until("done")

    @contextlib.contextmanager
    def near(self) -> Iterator[None]:
        _enter(self._near)
        try:
            yield
        finally:
            _enter(self._here)

    @contextlib.contextmanager
    def far(self) -> Iterator[None]:
        _enter(self._far)
        try:
            yield
        finally:
            _enter(self._here)


def _options(strikes: bool) -> dict[str, Any]:
    return {
        "open_timeout": 30.0,
        "ping_interval": 0.3 if strikes else None,
        "ping_timeout": 1.5 if strikes else None,
        "close_timeout": 0.5 if strikes else 30.0,
    }


def _client(
    network: Network,
    cell: Cell,
    certificates: Certificates,
    strike: Callable[[], None],
    end: Callable[[], None],
    options: dict[str, Any],
) -> tuple[Log, Peer | None]:
    log = Log()
    scheme, tls, context = client_tls(cell, certificates)
    with network.far():
        listener = socket.create_server((FAR, 0))
    listener.settimeout(PATIENCE)
    with listener:
        if cell.is_secure:
            options["server_hostname"] = "localhost"
        plan = Plan(f"{scheme}://{FAR}:{listener.getsockname()[1]}/", options, tls)
        make = lambda: Peer(listener.accept()[0], is_server=True, context=context)  # noqa: E731
        far = Far(cell, make, strike, within=network.far())
        with network.near():
            conversation = functools.partial(converse, stage=cell.stage, documented=DOCUMENTED, big=SOME)
            run_client(cell.api.name, cell.api.setting, plan, log, conversation)
        end()
        return log, far.join(PATIENCE)


def _server(
    network: Network,
    cell: Cell,
    certificates: Certificates,
    strike: Callable[[], None],
    end: Callable[[], None],
    options: dict[str, Any],
) -> tuple[Log, Peer | None]:
    what, context = serving_of(cell, certificates, options, NEAR, documented=DOCUMENTED, big=SOME)

    def dial() -> Peer:
        sock = socket.create_connection(what.address, PATIENCE)
        return Peer(sock, is_server=False, context=context, path=FIRST)

    with network.near(), serving(cell.api.name, cell.api.setting, what):
        far = Far(cell, dial, strike, within=network.far())
        if cell.api.name != "engine-echo":
            assert what.done.wait(load_scaled(PATIENCE)), "the application waits"
        end()
        peer = far.join(PATIENCE)
        check_serves(what.address[1], context, NEAR)
    return what.log, peer


def run_over(
    network: Network, cell: Cell, certificates: Certificates, *, vanishes: bool = False
) -> tuple[Log, Peer | None]:
    """Holds the conversation of a cell over the network.

    Args:
        network: The network.
        cell: The cell.
        certificates: For TLS.
        vanishes: Whether all packets vanish when the stage is reached, until the subject has noticed.
    """

    def strike() -> None:
        if vanishes:
            network.say("blackhole")

    def end() -> None:
        if vanishes:
            network.say("heal")

    with no_leaks(), no_threads_left():
        run = _server if cell.api.is_server else _client
        try:
            log, peer = run(network, cell, certificates, strike, end, _options(vanishes))
        finally:
            end()
    check_log(cell, log, peer)
    return log, peer
