"""The WebSockets of an ASGI application under uvicorn: ``uvicorn --ws wirespeed.asgi:WebSocketProtocol``."""

from ._protocol import WebSocketProtocol

__all__ = ["WebSocketProtocol"]
