"""Proofs that the schedules find errors: each test breaks a connection on purpose, and the oracle has to report it."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest

from campaigns.liveness import asyncio_run, threads_run
from campaigns.liveness.generate import draw
from campaigns.liveness.payload import Damaged, Ident, make, read
from campaigns.liveness.plan import Plan, Step
from campaigns.liveness.settings import SETTINGS, matching, named
from campaigns.liveness.shrink import shrink

pytestmark = pytest.mark.wirespeed_only("the faults are built into connections of ours")

OPTIONS = {
    "actors": 2, "links": 1, "send_buffer": 4096, "receive_buffer": 4096, "max_queue": 4, "ping_interval": None,
    "threaded": False, "end": "close", "write_limit": 500, "max_queue_bytes": 1000, "yield_after": 1024,
}  # fmt: skip
PATIENCE = 0.5


def plan(*steps: Step, setting: str = "asyncio-fd-client-plain", **options: Any) -> Plan:
    return Plan(named(setting), 0, {**OPTIONS, **options}, steps)


def send(actor: int, size: int = 100) -> Step:
    return Step("send", actor, 0, (("size", size), ("text", True), ("turns", 2)))


def message(*sizes: int) -> Step:
    return Step("message", more=(("sizes", sizes or (100,)), ("text", True)))


def receive(actor: int = 0) -> Step:
    return Step("recv", actor, 0, (("turns", 2),))


class Broken:
    """Forwards everything to a connection, except the methods that a test replaces."""

    def __init__(self, ws: Any, **replaced: Callable[..., Any]) -> None:
        self._ws = ws
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        if name in self._replaced:
            return lambda *args, **kwargs: self._replaced[name](self._ws, *args, **kwargs)
        return getattr(self._ws, name)


def broken(**replaced: Callable[..., Any]) -> Callable[[Any], Broken]:
    return lambda ws: Broken(ws, **replaced)


def complaints(steps: Plan, **replaced: Callable[..., Any]) -> str:
    return "\n".join(asyncio_run.run(steps, PATIENCE, wrap=broken(**replaced)))


def test_correct_record_has_no_complaints() -> None:
    steps = plan(send(0), send(1), message(), receive(), Step("check"), send(0, 20_000))
    assert asyncio_run.run(steps, 5) == []


class TestSending:
    def test_lost_wakeup(self) -> None:
        async def never(_ws: Any, _message: Any) -> None:
            await asyncio.get_running_loop().create_future()

        assert "it waits for ever: call 0, actor 0: send" in complaints(plan(send(0)), send=never)

    def test_lost_message(self) -> None:
        async def nothing(_ws: Any, _message: Any) -> None:
            pass

        assert "message 0.0 is lost" in complaints(plan(send(0)), send=nothing)

    def test_duplicated_message(self) -> None:
        async def twice(ws: Any, message: Any) -> None:
            await ws.send(message)
            await ws.send(message)

        assert "message 0.0 arrived twice" in complaints(plan(send(0)), send=twice)

    def test_reordered_messages(self) -> None:
        kept: list[Any] = []

        async def later(ws: Any, message: Any) -> None:
            kept.append(message)
            if len(kept) == 2:
                await ws.send(kept[1])
                await ws.send(kept[0])

        assert "message 0.1 arrived before 0.0" in complaints(plan(send(0), send(0)), send=later)

    def test_receivers_out_of_order(self) -> None:
        first = asyncio.Event()

        async def second_first(ws: Any, message: str) -> None:
            if message.startswith("0."):
                await first.wait()
            await ws.send(message)
            first.set()

        assert "message 1.0 overtook 0.0" in complaints(plan(send(0), send(1)), send=second_first)

    def test_truncated_message(self) -> None:
        async def half(ws: Any, message: str) -> None:
            await ws.send(message[:50])

        assert "message 0.0 has 50 bytes of 100" in complaints(plan(send(0)), send=half)

    def test_changed_message(self) -> None:
        async def other(ws: Any, message: str) -> None:
            await ws.send(message[:-1] + "#")

        assert "message 0.0 of 100 bytes has another content" in complaints(plan(send(0)), send=other)

    def test_refused_message_is_sent(self) -> None:
        def refuse(ws: Any, message: Any) -> None:
            ws.send_nowait(message)
            raise BlockingIOError

        step = dataclasses.replace(send(0), verb="send_nowait")
        assert "message 0.0 was refused and arrived" in complaints(plan(step), send_nowait=refuse)

    def test_undocumented_exception(self) -> None:
        async def fail(_ws: Any, _message: Any) -> None:
            raise KeyError("what")

        assert "it raised what is not documented" in complaints(plan(send(0)), send=fail)


class TestReceiving:
    def test_receiver_is_not_woken(self) -> None:
        async def never(_ws: Any) -> None:
            await asyncio.get_running_loop().create_future()

        assert "it waits for ever: call 0, actor 0: recv" in complaints(plan(receive(), message()), recv=never)

    def test_message_received_twice(self) -> None:
        kept: collections.deque[Any] = collections.deque()

        async def again(ws: Any) -> Any:
            if not kept:
                kept.append(await ws.recv())
                return kept[0]
            return kept.popleft()

        steps = plan(message(), message(), receive(), receive(), end="abort")
        assert "message 99.0 was received twice" in complaints(steps, recv=again)

    def test_dropped_message(self) -> None:
        async def every_other(ws: Any) -> Any:
            await ws.recv()
            return await ws.recv()

        steps = plan(message(), message(), receive(), Step("close", more=(("code", 1000),)))
        assert "1 of 2 messages of the peer were not received, from 99.0 on" in complaints(steps, recv=every_other)


class TestEnding:
    def test_leaked_task(self) -> None:
        async def leave(ws: Any, message: Any) -> None:
            tasks.append(asyncio.ensure_future(asyncio.Event().wait()))
            await ws.send(message)

        tasks: list[Any] = []
        found = complaints(plan(send(0)), send=leave)
        tasks.clear()
        assert "is left" in found

    def test_leaked_connection(self) -> None:
        kept = []

        def keep(ws: Any) -> Any:
            kept.append(ws)
            return ws

        found = asyncio_run.run(plan(send(0)), PATIENCE, wrap=keep)
        assert found == ["a connection is still referred to after its end"]

    def test_exception_reported_to_the_loop(self) -> None:
        async def report(ws: Any, message: Any) -> None:
            asyncio.get_running_loop().call_soon(lambda: 1 / 0)
            await ws.send(message)

        assert "the loop reports: Exception in callback" in complaints(plan(send(0)), send=report)

    def test_call_continues_after_the_end(self) -> None:
        async def nothing(_ws: Any) -> None:
            pass

        assert "after the end, flush returns" in complaints(plan(send(0)), flush=nothing)


class TestThreads:
    SETTING = "threads-client-plain"

    def complaints(self, steps: Plan, **replaced: Callable[..., Any]) -> str:
        return "\n".join(threads_run.run(steps, PATIENCE, wrap=broken(**replaced)))

    def test_correct_record_has_no_complaints(self) -> None:
        steps = plan(send(0), send(1), message(), receive(), Step("check"), setting=self.SETTING, threaded=True)
        assert threads_run.run(steps, 5) == []

    def test_lost_wakeup(self) -> None:
        def ended(ws: Any, _message: Any) -> None:
            while ws.state.name == "OPEN":
                time.sleep(0.01)

        steps = plan(send(0), setting=self.SETTING, threaded=True)
        assert "it waits for ever: call 0, actor 0: send" in self.complaints(steps, send=ended)

    def test_lost_message(self) -> None:
        steps = plan(send(0), setting=self.SETTING, threaded=True)
        assert "message 0.0 is lost" in self.complaints(steps, send=lambda _ws, _message: None)

    def test_duplicated_message(self) -> None:
        def twice(ws: Any, message: Any) -> None:
            ws.send(message)
            ws.send(message)

        steps = plan(send(0), setting=self.SETTING, threaded=True)
        assert "message 0.0 arrived twice" in self.complaints(steps, send=twice)


class TestShrinking:
    def test_shrinking_keeps_relevant_steps(self) -> None:
        drawn = draw(named("uvloop-fd-server-native-deflate"), 3)
        steps = [*drawn.steps[:9], send(1, 777), *drawn.steps[9:], send(0, 888)]
        runs = []

        def fails(candidate: Plan) -> bool:
            runs.append(candidate)
            sizes = [step.get("size") for step in candidate.steps]
            return 777 in sizes and 888 in sizes[sizes.index(777) :]

        smallest = shrink(drawn.with_steps(steps), fails, 20)
        assert [step.get("size") for step in smallest.steps] == [777, 888]
        assert smallest.setting.name == "asyncio-fd-client-plain"
        assert all(step.get("turns") == 0 for step in smallest.steps)
        assert len(runs) < 400

    def test_shrinking_time_is_bounded(self) -> None:
        drawn = draw(named("asyncio-fd-client-plain"), 5)
        assert shrink(drawn, lambda _: True, -1) == drawn


class TestPlans:
    def test_seed_determines_the_plan(self) -> None:
        for setting in SETTINGS:
            assert draw(setting, 11) == draw(setting, 11)
        assert draw(SETTINGS[0], 11) != draw(SETTINGS[0], 12)

    def test_plan_round_trips_as_json(self) -> None:
        for seed, setting in enumerate(SETTINGS):
            drawn = draw(setting, seed)
            assert Plan.load(drawn.dump()) == drawn
            assert str(Plan.load(drawn.dump())) == str(drawn)

    def test_settings_are_found_by_name(self) -> None:
        assert {setting.name for setting in matching("*-dropin")} < {setting.name for setting in SETTINGS}
        assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
        assert all(setting.loop == "threads" for setting in matching("threads"))

    @pytest.mark.parametrize("text", [True, False])
    def test_messages_are_checked(self, text: bool) -> None:
        whole: Any = make(Ident(3, 14), 1000, text=text)
        assert read(whole) == Ident(3, 14)
        assert read(whole[:40], whole=False) == Ident(3, 14)
        for wrong in (whole[:999], whole[:500] + whole[501:] + whole[:1], whole[1:], whole[:0]):
            with pytest.raises(Damaged):
                read(wrong)
