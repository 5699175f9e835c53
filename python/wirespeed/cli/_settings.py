"""The settings of ``wirespeed connect``, independent of the command line's syntax."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["Settings"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of the command line and the environment.

    Attributes:
        uri: URI to connect to.
        options: Keyword arguments of ``wirespeed.connect``.
        json: Whether messages are JSON.
        binary: Whether to send binary messages.
        wait: Seconds without a message after the end of the input until the connection is closed.
        count: Number of messages until the connection is closed; ``None`` for no limit.
        verbose: Whether to show handshake, frames, pings and the closing.
        interactive: Whether both input and output are a terminal.
        terminal: Whether the standard output is a terminal.
        color: Whether to use colors on the standard output.
        note_color: Whether to use colors on the standard error.
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
