"""The prompt on a terminal, with prompt_toolkit: line editing, history, and messages above the prompt."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

__all__ = ["Interrupted", "Prompt"]


class Interrupted(Exception):
    """Ctrl-C was pressed on an empty line."""


class Prompt:
    """A prompt on the terminal that is the standard input and output.

    It stays active from the first line to the last, so that no key is lost.

    Args:
        text: Text before the line.

    Raises:
        ImportError: prompt_toolkit is not installed.
    """

    def __init__(self, text: str = "> ") -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory

        path = _history_file()
        history: History = InMemoryHistory() if path is None else FileHistory(str(path))
        self._text = text
        # None marks the end of the input.
        self._entered: asyncio.Queue[str | None] = asyncio.Queue()
        self._session: PromptSession[str] = PromptSession(
            text, history=history, key_bindings=self._key_bindings(), reserve_space_for_menu=0
        )

    async def read_lines(self) -> AsyncGenerator[list[str], None]:
        """Yield the entered lines, one at a time, until Ctrl-D. Empty lines are skipped.

        Raises:
            Interrupted: Ctrl-C was pressed on an empty line.
        """
        # SIGINT of other processes is handled by the command.
        running = asyncio.ensure_future(self._session.prompt_async(handle_sigint=False))
        running.add_done_callback(lambda _: self._entered.put_nowait(None))
        try:
            while (line := await self._entered.get()) is not None:
                yield [line]
            with contextlib.suppress(EOFError):
                await running
        finally:
            running.cancel()
            # Retrieves the exception of the prompt, if it ended at the same time.
            await asyncio.gather(running, return_exceptions=True)

    async def print_above(self, write: Callable[[], None]) -> None:
        """Remove the prompt, write to the terminal, and show the prompt again.

        Args:
            write: The function that writes.
        """
        app = self._session.app
        while app.is_running and app.is_done:
            # The prompt is about to be drawn for the last time.
            await asyncio.sleep(0)
        if app.is_running:
            # Not run_in_terminal, which releases the keyboard meanwhile.
            app.renderer.erase()
            write()
            app.renderer.reset()
            app.invalidate()
        else:
            write()

    def _key_bindings(self) -> KeyBindings:
        from prompt_toolkit.enums import DEFAULT_BUFFER
        from prompt_toolkit.filters import has_focus
        from prompt_toolkit.key_binding import KeyBindings

        bindings = KeyBindings()
        # Not during a search in the history.
        typing = has_focus(DEFAULT_BUFFER)

        @bindings.add("enter", filter=typing)
        def enter(event: KeyPressEvent) -> None:
            line = event.current_buffer.text
            if line:
                event.current_buffer.reset(append_to_history=True)
                event.current_buffer.load_history_if_not_yet_loaded()
                event.app.renderer.erase()
                event.app.output.write(f"{self._text}{line}\n")
                event.app.output.flush()
                event.app.renderer.reset()
                self._entered.put_nowait(line)

        @bindings.add("c-c", filter=typing)
        def interrupt(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=Interrupted())

        return bindings


def _history_file() -> Path | None:
    """Return the path of the history, readable by the user only, because messages may contain passwords."""
    chosen = os.environ.get("WIRESPEED_HISTORY")
    if chosen == "":
        return None
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        path = state / "wirespeed" / "history" if chosen is None else Path(chosen)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except (OSError, RuntimeError):
        # The home directory does not exist or is not writable.
        return None
    return path
