"""The settings in which schedules run: API, loop, I/O backend, end, TLS, compression. Pure: it opens nothing."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib.util
import random


@dataclasses.dataclass(frozen=True)
class Setting:
    """One combination of a connection's properties.

    Attributes:
        loop: An event loop, or "threads" for the blocking API.
        io_backend: "fd", "transport", or "" for the blocking API.
        role: Whether the connection under test is the "client" or the "server".
        tls: "plain", "native" for ``wirespeed.TLS``, "context" for ``ssl.SSLContext``.
        deflate: Whether permessage-deflate is negotiated.
        dropin: Whether the connection is one of ``wirespeed.compat.websockets``.
    """

    loop: str
    io_backend: str
    role: str
    tls: str
    deflate: bool
    dropin: bool

    @property
    def blocking(self) -> bool:
        return self.loop == "threads"

    @property
    def name(self) -> str:
        parts = [self.loop, self.io_backend, self.role, self.tls]
        parts += ["deflate"] * self.deflate + ["dropin"] * self.dropin
        return "-".join(part for part in parts if part)

    @property
    def weight(self) -> float:
        """How often it is drawn: rare combinations share most code with the plain ones."""
        weight = {"plain": 4.0, "native": 2.0, "context": 1.0}[self.tls]
        if self.blocking:
            weight *= 3
        return weight / (2 if self.deflate else 1) / (3 if self.dropin else 1)

    def __str__(self) -> str:
        return self.name


def _settings() -> list[Setting]:
    loops = ["asyncio", "wirespeed"]
    if importlib.util.find_spec("uvloop") is not None:
        loops.insert(1, "uvloop")
    ports = [(loop, port) for loop in loops for port in ("fd", "transport")]
    found = []
    for dropin in (False, True):
        # The drop-in has no argument for the I/O backend.
        for loop, port in [*(ports if not dropin else [(loop, "fd") for loop in loops]), ("threads", "")]:
            for role in ("client", "server"):
                for tls in ("plain", "native", "context"):
                    # The drop-in passes TLS and compression on to the code of the other settings.
                    deflates = (False, True) if tls != "context" and not dropin else (False,)
                    if dropin and tls == "native":
                        continue
                    found += [Setting(loop, port, role, tls, deflate, dropin) for deflate in deflates]
    return found


SETTINGS = _settings()


def named(name: str) -> Setting:
    """Returns the setting of a name.

    Raises:
        KeyError: No setting has that name.
    """
    return {setting.name: setting for setting in SETTINGS}[name]


def matching(pattern: str) -> list[Setting]:
    """Returns the settings whose name equals, begins with, or matches a pattern such as ``*-server-*``."""
    return [
        setting
        for setting in SETTINGS
        if fnmatch.fnmatch(setting.name, pattern) or f"{setting.name}-".startswith(f"{pattern}-")
    ]


def choose(rng: random.Random, settings: list[Setting]) -> Setting:
    """Draws a setting."""
    return rng.choices(settings, [setting.weight for setting in settings])[0]
