"""What the command line of ``wirespeed connect`` says, in a form that does not know how it was said."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["Settings"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line and the environment say.

    Attributes:
        uri: Where to connect.
        options: Keyword arguments of ``wirespeed.connect``.
        json: Whether messages are JSON.
        binary: Whether to send binary messages.
        wait: Seconds without a message, after the end of the input, until the connection is closed.
        count: Messages until the connection is closed; ``None`` for no limit.
        verbose: Whether to show what happens.
        interactive: Whether a person types on a terminal, and reads there.
        terminal: Whether the standard output is a terminal.
        color: Whether colors are wanted on the standard output.
        note_color: Whether they are on the standard error.
        prompt: Whether the terminal can show a prompt.
    """

    uri: str
    options: dict[str, Any]
    json: bool
    binary: bool
    wait: float
    count: int | None
    verbose: bool
    interactive: bool
    terminal: bool
    color: bool
    note_color: bool
    prompt: bool
