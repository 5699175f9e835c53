"""Reloading of certificates, with checks of their files triggered by the test."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.serving import LOGGER, logged
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the command is ours")

if IS_WIRESPEED:
    from wirespeed.cli import _serve as serving


class Server:
    def __init__(self) -> None:
        self.reads = 0
        self.failure: Exception | None = None

    def reload_ssl(self) -> None:
        self.reads += 1
        if self.failure is not None:
            raise self.failure


class Looks:
    """Replaces time: a check happens when the test triggers it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses: list[float] = []
        self._turn = asyncio.Event()
        names = SimpleNamespace(get_running_loop=asyncio.get_running_loop, sleep=self._sleep)
        monkeypatch.setattr(serving, "asyncio", names)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self._turn.wait()
        self._turn.clear()

    async def __call__(self) -> None:
        self._turn.set()
        while self._turn.is_set():
            await asyncio.sleep(0)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Runs a test with two files, whose certificate is renewed."""
    files = [tmp_path / name for name in ("cert", "key")]
    for file in files:
        file.write_text("old")
        os.utime(file, ns=(0, 0))

    def run(test: Callable[[Server, Looks, list[Path]], Awaitable[None]]) -> None:
        async def main() -> None:
            server: Any = Server()
            looks = Looks(monkeypatch)
            with serving.Renewal(server, [str(file) for file in files], logging.getLogger(LOGGER)):
                await asyncio.sleep(0)
                await test(server, looks, files)
            # Nothing of it is left.
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert not asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

        asyncio.run(main())

    return run


def other_file(path: Path) -> None:
    """Replaces the file by an equal one."""
    fresh = path.with_suffix(".new")
    fresh.write_text("new")
    os.utime(fresh, ns=(0, 0))
    fresh.replace(path)


def other_size(path: Path) -> None:
    path.write_text("longer")
    os.utime(path, ns=(0, 0))


def other_time(path: Path) -> None:
    path.write_text("new")
    os.utime(path, ns=(0, 1))


@pytest.mark.parametrize("change", [other_file, other_size, other_time, Path.unlink])
@pytest.mark.parametrize("index", [0, 1])
def test_change_of_a_file(run: Callable[..., None], change: Callable[[Path], None], index: int) -> None:
    """Read once, when the file no longer changes."""

    async def test(server: Server, look: Looks, files: list[Path]) -> None:
        await look()
        await look()
        assert server.reads == 0
        change(files[index])
        await look()
        assert server.reads == 0
        await look()
        assert server.reads == 1
        await look()
        await look()
        assert server.reads == 1
        assert set(look.pauses) == {1.0}

    run(test)


def test_certificate_and_key_change_one_after_the_other(run: Callable[..., None]) -> None:
    """Between the changes of certificate and key nothing is read: they would not match."""

    async def test(server: Server, look: Looks, files: list[Path]) -> None:
        other_file(files[0])
        await look()
        other_file(files[1])
        await look()
        assert server.reads == 0
        await look()
        assert server.reads == 1

    run(test)


def test_reverted_change(run: Callable[..., None]) -> None:
    async def test(server: Server, look: Looks, files: list[Path]) -> None:
        os.utime(files[0], ns=(0, 1))
        await look()
        os.utime(files[0], ns=(0, 0))
        await look()
        await look()
        assert server.reads == 0

    run(test)


def test_signal(run: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    """At once, changed or not; files read this way are not read again."""
    caplog.set_level(logging.INFO, LOGGER)

    async def test(server: Server, look: Looks, files: list[Path]) -> None:
        other_file(files[0])
        os.kill(os.getpid(), signal.SIGHUP)
        for _ in range(100):
            if server.reads:
                break
            await asyncio.sleep(0.01)
        assert server.reads == 1
        await look()
        await look()
        assert server.reads == 1

    run(test)
    assert logged(caplog, logging.INFO) == ["the certificate was read again"]


@pytest.mark.parametrize("failure", [OSError(2, "No such file"), ValueError("no key")])
def test_unreadable_file(run: Callable[..., None], caplog: pytest.LogCaptureFixture, failure: Exception) -> None:
    """Reported once, and retried when the file has changed again."""
    caplog.set_level(logging.INFO, LOGGER)

    async def test(server: Server, look: Looks, files: list[Path]) -> None:
        server.failure = failure
        other_file(files[0])
        for _ in range(4):
            await look()
        assert server.reads == 1
        server.failure = None
        other_size(files[0])
        for _ in range(4):
            await look()
        assert server.reads == 2

    run(test)
    first, second = logged(caplog, logging.INFO)
    assert first.startswith("the certificate cannot be read again, the old one stays in use: ")
    assert first.endswith(failure.args[-1])
    assert second == "the certificate was read again"
