"""A conversation over the emulated network: the subject is at its near end, the peer at the far one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import wirespeed
from interop.certificates import Certificates
from interop.checks import no_leaks
from interop.children import Child
from interop.load_scaling import load_scaled
from interop.threads import no_threads_left

from .clients import DOCUMENTED, Plan, run_client
from .conversation import SOME, Log, converse, talk, talk_to_echo
from .emulator import FAR, NEAR, Link
from .network_cell import check_log, check_serves
from .peer import Peer
from .servers import FIRST, Serving, serving
from .table import Cell

__all__ = ["Network", "run_over"]

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
        tests = str(Path(__file__).parents[2])
        program = f"import sys; sys.path.insert(0, {tests!r}); from campaigns.faults.emulator import main; main()"
        self.child = Child(["unshare", "--net", "--mount", sys.executable, "-c", program, *link.arguments()])
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


class _FarEnd:
    """The peer, in a thread at the far end."""

    def __init__(
        self, network: Network, cell: Cell, make: Callable[[], Peer | None], strike: Callable[[], None]
    ) -> None:
        self.peer: Peer | None = None
        self.errors: list[BaseException] = []

        def nothing() -> None:
            pass

        def run() -> None:
            try:
                with network.far():
                    self.peer = make()
                if self.peer is not None:
                    with contextlib.closing(self.peer):
                        if cell.api.name == "engine-echo":
                            talk_to_echo(self.peer, cell.stage, strike)
                        else:
                            talk(self.peer, cell.stage, strike, hold=nothing, stuck=nothing)
            except BaseException as exc:
                self.errors.append(exc)

        self.thread = threading.Thread(target=run, name="far", daemon=True)
        self.thread.start()

    def join(self) -> Peer | None:
        self.thread.join(load_scaled(PATIENCE))
        assert not self.thread.is_alive(), "the peer waits for the subject"
        if self.errors:
            raise self.errors[0]
        return self.peer


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
    context = certificates.server_context() if cell.is_secure else None
    with network.far():
        listener = socket.create_server((FAR, 0))
    listener.settimeout(PATIENCE)
    with listener:
        uri = f"{'wss' if cell.is_secure else 'ws'}://{FAR}:{listener.getsockname()[1]}/"
        if cell.is_secure:
            options["server_hostname"] = "localhost"
        plan = Plan(uri, options, wirespeed.TLS(ca=certificates.ca_file) if cell.is_secure else None)
        far = _FarEnd(network, cell, lambda: Peer(listener.accept()[0], is_server=True, context=context), strike)
        with network.near():
            run_client(cell.api.name, cell.api.setting, plan, log, converse(cell.stage, log, DOCUMENTED, SOME))
        end()
        return log, far.join()


def _server(
    network: Network,
    cell: Cell,
    certificates: Certificates,
    strike: Callable[[], None],
    end: Callable[[], None],
    options: dict[str, Any],
) -> tuple[Log, Peer | None]:
    log = Log()
    context = certificates.client_context() if cell.is_secure else None
    files = certificates.server_files() if cell.is_secure else None
    what = Serving(
        log,
        converse(cell.stage, log, DOCUMENTED, SOME),
        options,
        None if files is None else wirespeed.TLS(cert=files[0], key=files[1]),
        files,
        NEAR,
    )

    def dial() -> Peer:
        sock = socket.create_connection(what.address, PATIENCE)
        return Peer(sock, is_server=False, context=context, path=FIRST)

    with network.near(), serving(cell.api.name, cell.api.setting, what):
        far = _FarEnd(network, cell, dial, strike)
        if cell.api.name != "engine-echo":
            assert what.done.wait(load_scaled(PATIENCE)), "the application waits"
        end()
        peer = far.join()
        check_serves(what.address[1], context, NEAR)
    return log, peer


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
