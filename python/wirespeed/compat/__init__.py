"""Drop-ins for other libraries: their names and semantics on our connections."""

__all__ = ["websockets"]

from . import websockets
