"""Publishing to engines from programs that have none, over each kind of broker: with real servers."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support import broker_fixtures
from support.broker_fixtures import Broker, Server
from support.brokers import free_port, wait_for
from support.nodes import Node, receive
from wirespeed.engine import Publisher

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

any_broker, server = broker_fixtures.any_broker, broker_fixtures.server


def test_publisher(any_broker: Broker) -> None:
    with Node(any_broker.url, broker_prefix="app") as node, Publisher(any_broker.url, prefix="app") as publisher:
        ws = node.client("t", "u.>")
        node.wait_for_patterns(2)
        for number in range(1000):
            publisher.publish("t", f"{number}")
        publisher.publish("u.v", b"\x00", key="k")
        publisher.publish("t", b"as text", text=True)
        publisher.publish(None, "to all")
        publisher.flush(20)
        assert receive(ws, 1003) == [*map(str, range(1000)), b"\x00", "as text", "to all"]
        status = publisher.status
        assert (status.published, status.queued, status.state) == (1003, 0, "connected")
        with pytest.raises(ValueError, match="wildcard"):
            publisher.publish("t.*", "")
        with pytest.raises(ValueError, match="_wirespeed"):
            publisher.publish("_wirespeed.broadcast", "")
        with pytest.raises(UnicodeError):
            publisher.publish("t", b"\xff", text=True)
        with pytest.raises(TypeError):
            publisher.publish("t", 1)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="closed"):
        publisher.publish("t", "late")
    publisher.close()


def test_publisher_on_an_event_loop(any_broker: Broker) -> None:
    async def publish() -> None:
        async with Publisher(any_broker.url, limit=10_000) as publisher:
            for number in range(500):
                await publisher.apublish("t", f"{number}".ljust(100))
            await publisher.aflush(20)

    with Node(any_broker.url) as node:
        ws = node.client("t")
        node.wait_for_patterns(1)
        asyncio.run(publish())
        assert [int(message) for message in receive(ws, 500)] == list(range(500))


def test_publisher_whose_broker_is_down(server: Server) -> None:
    with Publisher(server.url, limit=10_000) as publisher:
        publisher.publish("t", "x")
        publisher.flush(20)
        server.kill()
        wait_for(lambda: not publisher.status.is_connected)
        with pytest.raises(TimeoutError, match="no room"):
            for _ in range(100):
                publisher.publish("t", "x" * 1000, timeout=0.1)
        with pytest.raises(TimeoutError, match="not got everything"):
            publisher.flush(0.1)

        async def wait() -> None:
            with pytest.raises(TimeoutError):
                await publisher.aflush(0.1)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(publisher.apublish("t", "x" * 1000), 0.1)

        asyncio.run(wait())
        server.start()
        publisher.flush(20)
        assert publisher.status.queued == 0


def break_with_something_under_way(server: Server, publisher: Publisher, published: int) -> None:
    """Kills the broker after one or several messages were sent and not confirmed."""
    wait_for(lambda: publisher.status.queued < published)
    # Messages that a client library has taken, and not written yet, are sent on the next connection.
    time.sleep(0.3)
    server.kill()
    wait_for(lambda: not publisher.status.is_connected, "nobody has noticed")
    server.start()
    wait_for(lambda: publisher.status.is_connected, "not connected again")


def test_each_flush_reports_lost_messages(server: Server) -> None:
    """With several threads and tasks, whether they wait at once or one after the other."""
    barrier, told = threading.Barrier(4), list[str]()

    def publish(publisher: Publisher) -> None:
        publisher.publish("t", "x")
        barrier.wait(20)
        barrier.wait(20)
        with pytest.raises(ConnectionError, match="may not have got"):
            publisher.flush(20)
        publisher.flush(20)
        told.append("thread")

    async def tasks(publisher: Publisher) -> None:
        published, broken = asyncio.Event(), asyncio.Event()

        async def one() -> None:
            await publisher.apublish("t", "x")
            published.set()
            await broken.wait()
            with pytest.raises(ConnectionError, match="may not have got"):
                await publisher.aflush(20)
            await publisher.aflush(20)

        async def none() -> None:
            # It has published nothing, and another task was notified of the earlier loss.
            await publisher.aflush(20)

        publishing = asyncio.ensure_future(one())
        await published.wait()
        flushing = [asyncio.ensure_future(publisher.aflush(20)) for _ in range(3)]
        await asyncio.sleep(0.05)  # they wait
        flushing[0].cancel()
        await asyncio.to_thread(break_with_something_under_way, server, publisher, 1)
        for waiting in flushing[1:]:
            with pytest.raises(ConnectionError, match="may not have got"):
                await waiting
        broken.set()
        await publishing
        await none()

    with Publisher(server.url) as publisher:
        publisher.publish("t", "before")
        publisher.flush(20)
        server.pause()
        threads = [threading.Thread(target=publish, args=(publisher,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        publisher.publish("t", "x")
        barrier.wait(20)
        break_with_something_under_way(server, publisher, 4)
        with pytest.raises(ConnectionError, match="may not have got"):
            publisher.flush(20)
        barrier.wait(20)
        for thread in threads:
            thread.join(20)
        assert told == ["thread"] * 3
        for _ in range(5):
            server.pause()
            before = publisher.status.unconfirmed
            try:
                asyncio.run(tasks(publisher))
                break
            except pytest.fail.Exception:
                # Messages that a client library had not written yet were sent on the next connection: nothing was lost.
                if publisher.status.unconfirmed > before:
                    raise
        else:
            raise AssertionError("no message was ever lost")
        publisher.flush(20)


def test_closing_sends_published_messages(any_broker: Broker) -> None:
    with Node(any_broker.url) as node:
        ws = node.client("t")
        node.wait_for_patterns(1)
        # Before there is a connection.
        with Publisher(any_broker.url) as publisher:
            for number in range(500):
                publisher.publish("t", f"{number}")
        assert receive(ws, 500) == [str(number) for number in range(500)]

        async def publish() -> None:
            async with Publisher(any_broker.url) as publisher:
                for number in range(500):
                    await publisher.apublish("t", f"{number}")

        asyncio.run(publish())
        assert receive(ws, 500) == [str(number) for number in range(500)]


@pytest.mark.parametrize("scheme", ["nats", "redis"])
def test_closing_reports_undelivered_messages(scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    url = f"{scheme}://127.0.0.1:{free_port()}"
    with (
        pytest.raises(ConnectionError, match=r"may not have got 2 of the messages: .*refused"),
        Publisher(url, close_timeout=0.5) as publisher,
    ):
        publisher.publish("t", "x")
        publisher.publish("t", "x")
        wait_for(lambda: publisher.status.reason is not None)
    publisher.close()  # it was reported
    assert publisher.status.state == "closed"

    async def publish() -> None:
        async with Publisher(url, close_timeout=0.5) as publisher:
            await publisher.apublish("t", "x")

    with pytest.raises(ConnectionError, match="may not have got 1 of the messages"):
        asyncio.run(publish())
    # An exception of the block is not replaced.
    with pytest.raises(ZeroDivisionError), Publisher(url, close_timeout=0) as publisher:
        publisher.publish("t", "x")
        raise ZeroDivisionError
    assert "may not have got 1 of the messages" in caplog.text
    with pytest.raises(ValueError, match="close_timeout"):
        Publisher(url, close_timeout=-1)


def test_waiting_tasks_do_not_use_up_the_executor() -> None:
    """The default executor of an event loop stays free for name resolution and other work."""
    submitted: list[object] = []

    class Executor(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            submitted.append(fn)
            return super().submit(fn, *args, **kwargs)

    async def main(url: str) -> None:
        asyncio.get_running_loop().set_default_executor(Executor(1))
        publisher = Publisher(url, limit=1, close_timeout=0)
        publisher.publish("t", "x")
        waiting = [asyncio.ensure_future(publisher.apublish("t", "x")) for _ in range(50)]
        waiting += [asyncio.ensure_future(publisher.aflush(30)) for _ in range(50)]
        await asyncio.sleep(0.05)  # they wait
        assert not any(one.done() for one in waiting)
        for one in waiting:
            one.cancel()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended)
        with pytest.raises(ConnectionError):
            await publisher.aclose()
        assert submitted == []

    asyncio.run(main(f"nats://127.0.0.1:{free_port()}"))
