"""Failing handlers: what is logged, when, and which connection's end counts."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from support.frames import CLOSE, Close
from support.serving import LOGGER, logged, masked
from support.subject import IS_WIRESPEED, connect
from support.threads import PATIENCE, Raw, idle, serving, uri, wait_until

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    import wirespeed.sync


def abort(ws: Any) -> None:
    ws.recv()
    ws.abort()


def close(ws: Any) -> None:
    ws.recv()
    ws.close(1001)


@pytest.mark.parametrize("end", [abort, close], ids=["lost", "closed"])
def test_end_of_another_connection_is_logged(caplog: pytest.LogCaptureFixture, end: Any) -> None:
    """The end of another connection is a failure of the handler: it is logged as an error."""
    caplog.set_level(logging.DEBUG, LOGGER)
    with serving(end) as upstream:
        # Its selector is not to be taken for a leak of the other server.
        wait_until(lambda: upstream._pending_handshakes is not None)

        def handler(ws: Any) -> None:
            with connect(uri(upstream)) as other:
                other.send(ws.recv())
                other.recv()

        with serving(handler) as server, connect(uri(server, "/chat?token=secret")) as ws:
            ws.send("x")
            with pytest.raises(Exception, match="1011"):
                ws.recv(timeout=PATIENCE)
            wait_until(lambda: any("connection handler" in text for text in logged(caplog, logging.DEBUG)))
    [record] = [record for record in caplog.records if "connection handler" in record.getMessage()]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[0] is not None
    assert record.exc_info[0].__name__ == "ConnectionClosed" + ("Error" if end is abort else "OK")
    assert "secret" not in caplog.text


def test_upstream_end_with_equal_text(caplog: pytest.LogCaptureFixture) -> None:
    """The connection that raised decides, not the text."""
    with serving(close) as upstream:
        # Its selector is not to be taken for a leak of the other server.
        wait_until(lambda: upstream._pending_handshakes is not None)

        def handler(ws: Any) -> None:
            with connect(uri(upstream)) as other:
                other.send(ws.recv())
                with pytest.raises(wirespeed.ConnectionClosed):
                    ws.recv()
                other.recv()

        with serving(handler) as server, connect(uri(server)) as ws:
            ws.send("x")
            ws.close(1001)
            wait_until(lambda: logged(caplog, logging.ERROR))
    [record] = [record for record in caplog.records if "connection handler" in record.getMessage()]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], wirespeed.ConnectionClosedOK)
    assert (record.exc_info[1].code, record.exc_info[1].reason) == (1001, "")


@pytest.mark.parametrize("how", ["recv", "send", "reset"])
def test_end_of_own_connection_is_not_logged(caplog: pytest.LogCaptureFixture, how: str) -> None:
    """The end of the handler's own connection is not an error."""
    caplog.set_level(logging.DEBUG, LOGGER)

    def handler(ws: Any) -> None:
        ws.recv()
        while how == "send":
            ws.send("x")
            ws.ping().wait(PATIENCE)
        ws.recv()

    with serving(handler) as server, Raw.open(server) as raw:
        raw.send(masked(1, b"x"))
        if how == "reset":
            raw.reset()
        else:
            raw.send(masked(CLOSE, b"\x0f\xa0bye"))
            assert raw.until_close()[1] == Close(4000, "bye")
        wait_until(lambda: any("ended by the end" in text for text in logged(caplog, logging.DEBUG)))
    assert logged(caplog, logging.ERROR) == []


def test_failure_is_logged_before_closing(caplog: pytest.LogCaptureFixture) -> None:
    """A client that does not answer the close frame does not delay logging."""

    def handler(ws: Any) -> None:
        raise ZeroDivisionError

    with serving(handler, close_timeout=30) as server, Raw.open(server, "/path") as raw:
        wait_until(lambda: logged(caplog, logging.ERROR))
        assert raw.until_close()[1] == Close(1011)
        [connection] = server._connections
        label = f"{connection.id} from 127.0.0.1:{raw.sock.getsockname()[1]} to /path"
        assert logged(caplog, logging.ERROR) == [f"connection handler failed ({label})"]
        raw.close()
        wait_until(lambda: not server._connections)
    assert len(logged(caplog, logging.ERROR)) == 1


def test_no_handler_after_closing_began() -> None:
    """A connection whose handshake was answered before the server began to close is closed without a handler."""
    called: list[Any] = []
    threads: list[Any] = []

    def create(*args: Any, **options: Any) -> Any:
        # Closing has begun when the answer is sent, as when this thread is late.
        made = wirespeed.sync.ServerConnection(*args, **options)
        server._close_frame = (1001, "")
        threads.append(threading.current_thread())
        return made

    with serving(called.append, create_connection=create) as server, Raw.open(server) as raw:
        assert raw.until_close()[1] == Close(1001)
        raw.send(masked(CLOSE, b"\x03\xe9"))
        wait_until(lambda: threads and not threads[0].is_alive())
    assert called == []


def test_second_shutdown_closes_connections() -> None:
    """The second shutdown closes the connections that the first has left open."""
    with serving(idle) as server, Raw.open(server) as raw:
        wait_until(lambda: server.connections)
        first = threading.Thread(target=server.shutdown, kwargs={"close_connections": False})
        first.start()
        wait_until(lambda: not server.sockets)
        assert len(server.connections) == 1
        second = threading.Thread(target=server.shutdown, kwargs={"code": 1012, "reason": "restart"})
        second.start()
        assert raw.until_close()[1] == Close(1012, "restart")
        raw.send(masked(CLOSE, b"\x03\xf4"))
        for thread in (first, second):
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_connections_with_overridden_close(caplog: pytest.LogCaptureFixture) -> None:
    """Exceptions of an overridden close are logged; other connections are closed nevertheless."""

    class Own(wirespeed.sync.ServerConnection):
        def close(self, *args: Any, **options: Any) -> None:
            super().close(*args, **options)
            if self.request is not None and self.request.path == "/own":
                raise ZeroDivisionError("mine")

    with serving(idle, create_connection=Own) as server, Raw.open(server, "/own") as own, Raw.open(server) as other:
        wait_until(lambda: len(server.connections) == 2)
        closing = threading.Thread(target=server.shutdown)
        closing.start()
        for raw in (own, other):
            assert raw.until_close()[1] == Close(1001)
            raw.send(masked(CLOSE, b"\x03\xe9"))
        closing.join(PATIENCE)
        assert not closing.is_alive()
    lines = [line.partition(" (")[0] for line in logged(caplog, logging.ERROR)]
    assert "closing a connection failed" in lines
    assert caplog.text.count("ZeroDivisionError: mine") == len(lines)
