"""A cell whose fault the network makes: a conversation through a relay, and the invariants afterwards."""

from __future__ import annotations

import contextlib
import functools
import gc
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import wirespeed
from support.addresses import full_listener
from support.certificates import Certificates
from support.checks import no_leaks
from support.load_scaling import load_scaled
from support.threads import no_threads_left, wait_until

from .clients import DOCUMENTED, Plan, run_client
from .conversation import BACK, HELLO, MESSAGE, OPENING, RECEIVING, Log, converse, talk, talk_to_echo
from .peer import Gone, Peer
from .process import PROCESS, Interrupted, give_descriptors_back, struck
from .relay import RELAYED, Relay, Trigger
from .servers import FIRST, Serving, serving
from .table import Cell

PATIENCE = 30.0


def options_of(cell: Cell) -> dict[str, Any]:
    """Returns the time limits: short ones where a wait must end by timeout, so that a cell does not take long."""
    silent = cell.fault == "blackhole"
    # A handshake that must time out; other waits have enough time for any machine.
    opening = silent and cell.stage in OPENING
    return {
        "open_timeout": 1.0 if opening else 20.0,
        "ping_interval": 0.3 if silent else None,
        "ping_timeout": 1.0 if silent else None,
        "close_timeout": 20.0 if cell.is_harmless else 0.5,
    }


# The number of bytes of a stage before the fault: the first part of a record of TLS, or of a head.
TRIGGERS: dict[str, tuple[bool, int]] = {
    "dialling": (True, 0),
    "tls-hello": (False, 100),
    "tls-answer": (True, 100),
    "tunnel": (True, 20),
    "request": (False, 40),
    "response": (True, 40),
}


def _trigger(cell: Cell, act: Callable[[], None]) -> Trigger | None:
    if cell.stage not in TRIGGERS:
        return None
    to_client, after = TRIGGERS[cell.stage]
    fault: Any = "none" if cell.fault not in RELAYED else cell.fault
    return Trigger(fault, to_client is not cell.api.is_server, after, act)


class Far:
    """The peer in its thread.

    Args:
        cell: The cell.
        make: Returns the peer, or ``None`` if there is no connection.
        strike: Triggers the fault.
        hold: Prevents the subject's data from being read.
        stuck: Waits until the subject can send no more.
        within: The context in which the peer is made.
    """

    def __init__(
        self,
        cell: Cell,
        make: Callable[[], Peer | None],
        strike: Callable[[], None],
        *,
        hold: Callable[[], None] = lambda: None,
        stuck: Callable[[], None] = lambda: None,
        within: contextlib.AbstractContextManager[object] = contextlib.nullcontext(),  # noqa: B008
    ) -> None:
        self.peer: Peer | None = None
        self.errors: list[BaseException] = []

        def run() -> None:
            try:
                with within:
                    self.peer = make()
                if self.peer is not None:
                    with contextlib.closing(self.peer):
                        if cell.api.name == "engine-echo":
                            talk_to_echo(self.peer, cell.stage, strike)
                        else:
                            talk(self.peer, cell.stage, strike, hold=hold, stuck=stuck)
            except BaseException as exc:
                self.errors.append(exc)

        self.thread = threading.Thread(target=run, name="peer", daemon=True)
        self.thread.start()

    def join(self, patience: float = PATIENCE) -> Peer | None:
        self.thread.join(load_scaled(patience))
        assert not self.thread.is_alive(), "the peer waits for the subject"
        if self.errors:
            raise self.errors[0]
        return self.peer


def _behind(relay: Relay, cell: Cell, make: Callable[[], Peer | None], act: Callable[[], None]) -> Far:
    """Returns the peer at the other end of a relay."""
    fault: Any = cell.fault if cell.fault in RELAYED else "none"

    def strike() -> None:
        relay.strike(fault)
        act()
        if cell.stage == "sending" and cell.fault not in ("blackhole", "full"):
            relay.release()

    return Far(cell, make, strike, hold=relay.hold, stuck=relay.wait_stuck)


def client_tls(cell: Cell, certificates: Certificates) -> tuple[str, wirespeed.TLS | None, ssl.SSLContext | None]:
    """Returns the scheme and settings of a subject that is a client, and the context of its peer."""
    if not cell.is_secure:
        return "ws", None, None
    return "wss", wirespeed.TLS(ca=certificates.ca_file), certificates.server_context()


def serving_of(
    cell: Cell, certificates: Certificates, options: dict[str, Any], host: str = "127.0.0.1", **more: Any
) -> tuple[Serving, ssl.SSLContext | None]:
    """Returns a subject that is a server, and the context of its clients; ``more`` is for its conversation."""
    files = certificates.server_files() if cell.is_secure else None
    tls = None if files is None else wirespeed.TLS(cert=files[0], key=files[1])
    conversation = functools.partial(converse, stage=cell.stage, **more)
    what = Serving(Log(), conversation, options, tls, files, host)
    return what, certificates.client_context() if cell.is_secure else None


# What a conversation survives where a signal handler raises.
INTERRUPTED: dict[str, Any] = {"documented": (*DOCUMENTED, Interrupted), "again": (Interrupted,)}


@contextlib.contextmanager
def _listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        yield listener


def _accept(listener: socket.socket, context: ssl.SSLContext | None) -> Callable[[], Peer | None]:
    def make() -> Peer | None:
        try:
            sock = listener.accept()[0]
        except OSError:
            return None
        return Peer(sock, is_server=True, context=context)

    return make


def run_client_cell(cell: Cell, certificates: Certificates, act: Callable[[], None]) -> tuple[Log, Peer | None]:
    log = Log()
    scheme, tls, context = client_tls(cell, certificates)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listener())
        relay = stack.enter_context(
            Relay(
                listener.getsockname()[:2],
                subject_dials=True,
                trigger=_trigger(cell, act),
                tunnel=cell.stage == "tunnel",
            )
        )
        port = relay.port
        if cell.fault == "blackhole" and cell.stage == "dialling":
            # No end answers at all.
            port, _ = stack.enter_context(full_listener())
        proxied = cell.stage == "tunnel"
        host = "localhost" if cell.is_secure else "127.0.0.1"
        if cell.fault == "names":
            host = "unknown.invalid"
        target = listener.getsockname()[1] if proxied else port
        plan = Plan(
            f"{scheme}://{host}:{target}/",
            options_of(cell),
            tls,
            f"http://127.0.0.1:{port}" if proxied else None,
        )
        if cell.fault == "descriptors" and cell.stage == "dialling":
            plan.before = act
        far = _behind(relay, cell, _accept(listener, context), act)
        try:
            conversation = functools.partial(converse, stage=cell.stage, **INTERRUPTED)
            run_client(cell.api.name, cell.api.setting, plan, log, conversation)
        finally:
            _end(cell, relay, listener)
        peer = far.join()
    return log, peer


def _end(cell: Cell, relay: Relay, listener: socket.socket | None = None) -> None:
    """The subject is done: lets the peer see it where the fault would not, or where no connection was made."""
    if cell.fault == "blackhole":
        relay.strike("reset")
    if listener is not None:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _dial(port: int, context: ssl.SSLContext | None, path: str, host: str = "127.0.0.1") -> Peer:
    return Peer(socket.create_connection((host, port), PATIENCE), is_server=False, context=context, path=path)


def _dialler(cell: Cell, port: int, context: ssl.SSLContext | None) -> Callable[[], Peer | None]:
    def make() -> Peer | None:
        try:
            return _dial(port, context, FIRST)
        except ConnectionResetError:
            # The relay may be quicker than the call that connects to it.
            if (cell.fault, cell.stage) != ("reset", "dialling"):
                raise
            return None

    return make


def check_serves(port: int, context: ssl.SSLContext | None, host: str = "127.0.0.1") -> None:
    """Checks that a server serves the next client, for any outcome of the last one."""
    with contextlib.closing(_dial(port, context, "/", host)) as peer:
        peer.open()
        peer.send(MESSAGE)
        assert peer.receive() == MESSAGE
        peer.begin_close()
        with contextlib.suppress(Gone):
            peer.receive()
        assert peer.code == 1000


def _wait_until_let_go(relay: Relay) -> None:
    """Waits until the subject has ended its end of the relayed connection, even if its data is not read."""
    pair = relay._first
    if pair is None or pair.dead:
        return
    poll = select.poll()
    poll.register(pair.near.fileno(), select.POLLRDHUP)
    assert poll.poll(load_scaled(10) * 1000), "the subject keeps the connection"


def run_server_cell(cell: Cell, certificates: Certificates, act: Callable[[], None]) -> tuple[Log, Peer | None]:
    what, context = serving_of(cell, certificates, options_of(cell), **INTERRUPTED)
    log = what.log
    echoes = cell.api.name == "engine-echo"
    with serving(cell.api.name, cell.api.setting, what):
        with Relay(what.address, subject_dials=False, trigger=_trigger(cell, act)) as relay:
            far = _behind(relay, cell, _dialler(cell, relay.port, context), act)
            if cell.fault == "blackhole":
                if cell.stage not in OPENING and not echoes:
                    assert what.done.wait(load_scaled(PATIENCE)), "the application waits"
                else:
                    wait_until(lambda: relay._first is not None)
                if cell.stage != "sending":
                    # Behind unread data, the end would not be visible.
                    _wait_until_let_go(relay)
            elif not echoes and (cell.is_harmless or cell.stage not in OPENING):
                assert what.done.wait(load_scaled(PATIENCE)), "the application waits"
            _end(cell, relay)
            peer = far.join()
        if log.opened:
            # A request may be complete when its answer is lost: then there was a handler.
            assert what.done.wait(load_scaled(PATIENCE)), "the application waits"
        give_descriptors_back()
        check_serves(what.address[1], context)
    return log, peer


def check_log(cell: Cell, log: Log, peer: Peer | None) -> None:
    """Checks that nothing is lost silently or doubled, and that failures are as documented."""
    if cell.api.name == "engine-echo":
        assert peer is not None
        expected = [HELLO, MESSAGE] if cell.stage in RECEIVING else [HELLO]
        assert peer.received == expected[: len(peer.received)]
        if cell.is_harmless:
            assert (peer.received, peer.code) == (expected, 1000)
        return
    detail = f"{log.error=}, {log.code=}"
    assert log.wrong is None, log.wrong
    assert log.finished or not log.opened
    sent = [] if peer is None else peer.sent
    arrived = [] if peer is None else peer.received
    possible = [BACK, MESSAGE]
    assert log.received == possible[: len(log.received)], detail
    joined, submitted = b"".join(arrived), b"".join(log.submitted)
    assert submitted.startswith(joined), f"{len(joined)} of {len(submitted)} bytes: {detail}"
    if cell.api.name != "stream":
        assert arrived == log.submitted[: len(arrived)], detail
    if cell.fault == "interrupt":
        # Only the call was interrupted: the connection is as good as before.
        check_interrupted(cell, log, arrived)
        return
    if cell.is_harmless and not (cell.fault == "descriptors" and cell.stage == "dialling"):
        assert log.error is None, log.error
        assert log.finished
        assert log.received == sent, detail
        assert joined == submitted, detail
        assert log.submitted == log.accepted
        assert log.code == 1000
        assert peer is not None
        assert peer.code == 1000
        return
    if cell.stage in OPENING and not cell.api.is_server:
        assert not log.opened, detail
        assert log.error is not None, detail
    if cell.stage in RECEIVING or cell.stage == "sending":
        # A call was in progress, and got an exception.
        assert log.error is not None, detail
        # An ASGI application gets the reason, in the form of uvicorn.
        assert log.code == 1006 or (cell.api.name == "asgi" and log.code == 1011), detail
        assert not log.reported_clean
    if len(joined) < len(b"".join(log.accepted)):
        assert log.error is not None or log.reported_loss, f"lost silently: {detail}"
        assert not log.reported_clean, detail
    if cell.stage == "closed":
        assert log.error is None, log.error
        assert log.code == 1000


def check_interrupted(cell: Cell, log: Log, arrived: list[bytes]) -> None:
    """Checks that a signal handler has raised in a call, or came too late for it."""
    if log.error is None:
        assert cell.stage in (*OPENING, "closing", "closed"), "it was not interrupted"
    else:
        assert log.error.startswith("Interrupted"), log.error
    if log.opened:
        assert log.code == 1000, log.code
        assert [message for message in log.accepted if message not in arrived] == []


def run_cell(cell: Cell, certificates: Certificates) -> Log:
    """Runs a cell, and checks that nothing is left of it."""
    with no_leaks(), no_threads_left(), contextlib.ExitStack() as stack:

        def act() -> None:
            return None

        if cell.fault in PROCESS:
            act = stack.enter_context(struck(cell.fault))
        log, peer = (run_server_cell if cell.api.is_server else run_client_cell)(cell, certificates, act)
    check_log(cell, log, peer)
    deadline = time.monotonic() + load_scaled(5)
    while any(reference() is not None for reference in log.watched):
        gc.collect()
        assert time.monotonic() < deadline, "the connection is kept alive"
        time.sleep(0.01)
    return log
