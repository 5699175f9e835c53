"""WebSockets for ASGI applications under uvicorn: ``uvicorn --ws wirespeed.asgi:WebSocketProtocol``."""

from ._protocol import WebSocketProtocol

__all__ = ["WebSocketProtocol"]
