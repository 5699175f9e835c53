"""Tasks that nobody but the library refers to."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from interop.asyncio_tools import new_loop
from wirespeed.asyncio._tasks import start_task

pytestmark = pytest.mark.wirespeed_only("the tasks are ours")


def test_tasks_of_closed_loops_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    """An application stops a loop and begins another: what a stream left in the first is not kept any longer."""

    def leave() -> weakref.ref[asyncio.Task[None]]:
        async def main() -> weakref.ref[asyncio.Task[None]]:
            return weakref.ref(start_task(asyncio.get_running_loop(), asyncio.sleep(60)))

        loop = new_loop("asyncio")
        try:
            return loop.run_until_complete(main())
        finally:
            loop.close()

    first = leave()
    gc.collect()
    assert first() is not None
    second = leave()
    gc.collect()
    assert first() is None
    assert second() is not None
    assert [record.name for record in caplog.records] == ["asyncio"]  # which says that it was pending
