"""Drop-in replacements for other libraries: their names and semantics on connections of this package."""

__all__ = ["websockets"]

from . import websockets
