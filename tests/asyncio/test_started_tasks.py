"""Tasks that only the library refers to."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from support.asyncio_tools import new_loop
from wirespeed.asyncio._tasks import start_task

pytestmark = pytest.mark.wirespeed_only("the tasks are ours")


def test_tasks_of_closed_loops_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    """An application stops a loop and starts another: the tasks of a stream in the first are no longer kept."""

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
    assert [record.name for record in caplog.records] == ["asyncio"]  # it reports that the task was pending
