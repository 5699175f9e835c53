"""An asyncio event loop whose selector serves WebSocket connections inside :meth:`Selector.select`.

It owns the selector, the loop class and the ways to get a loop: ``run``, ``new_event_loop``, ``EventLoopPolicy``.
Timers, signals, subprocesses, threads and transports are those of the standard library. The native selector finds the
native connections by itself. On a system without epoll, the loops are those of ``asyncio``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import selectors
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .. import _native

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

    from .._native import NativeSelector
else:
    # Type hints are also evaluated at run time, and the system may have no epoll.
    FileDescriptorLike = Any
    NativeSelector = getattr(_native, "NativeSelector", None)

__all__ = ["EventLoop", "Selector", "new_event_loop", "run"]

_T = TypeVar("_T")

_EVENTS = selectors.EVENT_READ | selectors.EVENT_WRITE


class Selector(selectors.BaseSelector):
    """A replacement for :class:`selectors.EpollSelector` that also serves WebSocket connections.

    Args:
        busy_poll: Seconds to poll without sleeping before :meth:`select` blocks.

    Raises:
        NotImplementedError: The system has no epoll.
    """

    native_class: ClassVar[Callable[[float], NativeSelector] | None] = getattr(_native, "NativeSelector", None)
    """The native implementation; ``None`` if the system has no epoll."""

    def __init__(self, *, busy_poll: float = 0.0) -> None:
        _check_busy_poll(busy_poll)
        native_class = type(self).native_class
        if native_class is None:
            raise NotImplementedError("wirespeed.asyncio.loop.Selector needs epoll, which this system does not have")
        self._native = native_class(busy_poll)
        self._keys: dict[int, selectors.SelectorKey] = self._native.map()
        self._map: _KeysByFile | None = _KeysByFile(self._keys)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve the connections of a loop, which must use this selector and no other.

        It sets ``loop._wirespeed_selector``, where connections look for it. A loop that does not store its callbacks
        like the standard library gets no such attribute; its connections work without.

        Args:
            loop: The loop.
        """
        ready, scheduled = (getattr(loop, name, None) for name in ("_ready", "_scheduled"))
        if isinstance(ready, deque) and isinstance(scheduled, list):
            self._native.attach(ready, scheduled, loop)
            loop._wirespeed_selector = self._native  # type: ignore[attr-defined]

    def fileno(self) -> int:
        """Return the file descriptor of epoll."""
        return self._native.fileno()

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        """Register a file object: see :meth:`selectors.BaseSelector.register`."""
        if not events or events & ~_EVENTS:
            raise ValueError(f"Invalid events: {events!r}")
        fd = _descriptor(fileobj, self._keys)
        if fd in self._keys:
            raise KeyError(f"{fileobj!r} (FD {fd}) is already registered")
        key = selectors.SelectorKey(fileobj, fd, events, data)
        self._native.register(fd, events, key)
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        """Unregister a file object, closed or not: see :meth:`selectors.BaseSelector.unregister`."""
        key = self._registered(fileobj)
        self._native.unregister(key.fd)
        return key

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        """Change the events or the data of a file object: see :meth:`selectors.BaseSelector.modify`."""
        key = self._registered(fileobj)._replace(events=events, data=data)
        try:
            self._native.modify(key.fd, events, key)
        except BaseException:
            self._native.unregister(key.fd)
            raise
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for file objects to be ready: see :meth:`selectors.BaseSelector.select`."""
        return self._native.select(timeout)

    def get_key(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        """Return the key of a registered file object: see :meth:`selectors.BaseSelector.get_key`."""
        if self._map is None:
            raise RuntimeError("Selector is closed")
        return self._registered(fileobj)

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        """Return the keys of all registered file objects; ``None`` once the selector is closed."""
        return self._map  # type: ignore[return-value]  # the standard library's selectors return None as well

    def close(self) -> None:
        """Close epoll and forget all file objects, which stay open."""
        self._native.close()
        self._map = None

    def _registered(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        key = self._keys.get(_descriptor(fileobj, self._keys))
        if key is None:
            raise KeyError(f"{fileobj!r} is not registered")
        return key


class _KeysByFile(Mapping["FileDescriptorLike", selectors.SelectorKey]):
    """A mapping from file objects or descriptors to the keys of a selector."""

    def __init__(self, keys: dict[int, selectors.SelectorKey]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def __getitem__(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        key = self._keys.get(_descriptor(fileobj, self._keys))
        if key is None:
            raise KeyError(f"{fileobj!r} is not registered")
        return key

    # Mapping.get raises and catches a KeyError; the loop calls this method whenever it adds or removes a reader.
    def get(self, fileobj: FileDescriptorLike, default: Any = None) -> Any:
        return self._keys.get(_descriptor(fileobj, self._keys), default)


def _descriptor(fileobj: FileDescriptorLike, keys: Mapping[int, selectors.SelectorKey]) -> int:
    """Return the descriptor of a file object; for a closed file, the descriptor that it was registered with."""
    if isinstance(fileobj, int):
        fd, problem = fileobj, "descriptor"
    else:
        try:
            fd, problem = int(fileobj.fileno()), "descriptor"
        except (AttributeError, TypeError, ValueError):
            fd, problem = -1, "object"
    if fd >= 0:
        return fd
    for key in keys.values():
        if key.fileobj is fileobj:
            return key.fd
    raise ValueError(f"Invalid file {problem}: {fileobj!r}")


class EventLoop(asyncio.SelectorEventLoop):
    """The selector event loop of the standard library, on a :class:`Selector`.

    Args:
        selector: The selector to use, closed with the loop; by default a new :class:`Selector`, or the selector of
            the standard library if the system has no epoll.
    """

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        if selector is None and Selector.native_class is not None:
            selector = Selector()
        super().__init__(selector)
        if isinstance(selector, Selector):
            selector.attach(self)

    def run_forever(self) -> None:
        """Run until :meth:`stop` is called: see :meth:`asyncio.loop.run_forever`."""
        with _signals_wake(self):
            super().run_forever()


@contextlib.contextmanager
def _signals_wake(loop: EventLoop) -> Iterator[None]:
    """Let every signal end a wait of the loop, also if its handler is set with ``signal.signal``.

    The interpreter runs such a handler between two instructions. If a signal, such as Ctrl+C, arrives between the last
    instruction and the system call that waits, or in another thread, its handler would be delayed until the wait ends.
    """
    if loop.is_closed() or threading.current_thread() is not threading.main_thread():
        yield
        return
    # The loop does the same for its own signal handlers, and ignores bytes for which it has no handler.
    mine = loop._csock.fileno()  # type: ignore[attr-defined]
    previous = signal.set_wakeup_fd(mine, warn_on_full_buffer=False)
    if previous not in (-1, mine):
        signal.set_wakeup_fd(previous)
    try:
        yield
    finally:
        if previous == -1 and not loop._signal_handlers:  # type: ignore[attr-defined]
            signal.set_wakeup_fd(-1)


def new_event_loop(*, busy_poll: float = 0.0) -> asyncio.AbstractEventLoop:
    """Return a new event loop, the fastest for this library. Usable as ``loop_factory`` of :class:`asyncio.Runner`.

    Args:
        busy_poll: Seconds to poll without sleeping before the loop blocks: lower latency at the price of a busy core.
            It has no effect if the system has no epoll.
    """
    _check_busy_poll(busy_poll)
    if Selector.native_class is None:
        # Not EventLoop(): the default loop of asyncio need not be a selector loop.
        return asyncio.new_event_loop()
    return EventLoop(Selector(busy_poll=busy_poll))


def run(main: Coroutine[Any, Any, _T], *, debug: bool | None = None, busy_poll: float = 0.0) -> _T:
    """Run a coroutine on a new event loop and return its result, as :func:`asyncio.run` does.

    Args:
        main: The coroutine.
        debug: Whether the loop is in debug mode; ``None`` leaves that to ``PYTHONASYNCIODEBUG`` and ``-X dev``.
        busy_poll: Seconds to poll without sleeping before the loop blocks: lower latency at the price of a busy core.

    Raises:
        RuntimeError: A loop is running in this thread.
        ValueError: ``main`` is not a coroutine. From Python 3.14 on, like ``asyncio.run``, any awaitable is accepted,
            and other objects raise TypeError.
    """
    _check_busy_poll(busy_poll)
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("wirespeed.run() cannot be called from a running event loop")

    def loop_factory() -> asyncio.AbstractEventLoop:
        loop = new_event_loop(busy_poll=busy_poll)
        # The runner sets only loops that it created itself. Child watchers, before Python 3.12, need the loop to be
        # set.
        asyncio.set_event_loop(loop)
        return loop

    if sys.version_info < (3, 11):
        return _run(main, debug, loop_factory)
    try:
        with asyncio.Runner(debug=debug, loop_factory=loop_factory) as runner:
            return runner.run(main)
    finally:
        asyncio.set_event_loop(None)


def _run(main: Coroutine[Any, Any, _T], debug: bool | None, loop_factory: Callable[[], Any]) -> _T:
    """Like ``asyncio.run`` in Python 3.10, which does not accept a loop factory."""
    if not asyncio.iscoroutine(main):
        raise ValueError(f"a coroutine was expected, got {main!r}")
    loop: asyncio.AbstractEventLoop = loop_factory()
    try:
        if debug is not None:
            loop.set_debug(debug)
        return loop.run_until_complete(main)
    finally:
        try:
            _cancel_all_tasks(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_all_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    for task in tasks:
        if not task.cancelled() and task.exception() is not None:
            loop.call_exception_handler(
                {
                    "message": "unhandled exception during wirespeed.run() shutdown",
                    "exception": task.exception(),
                    "task": task,
                }
            )


if sys.version_info < (3, 16):
    __all__ += ["EventLoopPolicy"]

    with warnings.catch_warnings():
        # Python 3.14 deprecates policies and warns when one is set; importing this module must not warn.
        warnings.simplefilter("ignore", DeprecationWarning)

        class EventLoopPolicy(asyncio.DefaultEventLoopPolicy):
            """The default policy of ``asyncio``, with loops from :func:`new_event_loop`.

            Python 3.14 deprecates policies, and Python 3.16 has none: prefer :func:`run`, or
            ``asyncio.Runner(loop_factory=wirespeed.new_event_loop)``.

            Args:
                busy_poll: As in :func:`new_event_loop`, for all loops.
            """

            def __init__(self, *, busy_poll: float = 0.0) -> None:
                _check_busy_poll(busy_poll)
                super().__init__()
                self._busy_poll = busy_poll

            def new_event_loop(self) -> asyncio.AbstractEventLoop:
                """Return a new event loop."""
                if Selector.native_class is None:
                    # Not new_event_loop(), which would call this policy again.
                    return super().new_event_loop()
                return EventLoop(Selector(busy_poll=self._busy_poll))


def _check_busy_poll(busy_poll: float) -> None:
    if not isinstance(busy_poll, (int, float)) or isinstance(busy_poll, bool):
        raise TypeError(f"busy_poll must be a number of seconds, not {type(busy_poll).__name__}")
    if not 0 <= busy_poll < math.inf:
        raise ValueError(f"busy_poll must be a finite number of seconds, 0 or more, not {busy_poll}")
