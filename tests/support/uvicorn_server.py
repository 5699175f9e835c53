"""uvicorn in a thread with a loop of its own, with any implementation of WebSockets."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

import uvicorn
from typing_extensions import Self

__all__ = ["OURS", "THEIRS", "UvicornServer"]

OURS = "wirespeed.asgi:WebSocketProtocol"
# uvicorn's default where websockets is installed.
THEIRS = "websockets-sansio"


class UvicornServer:
    """A server of one application; options are those of ``uvicorn.run``."""

    def __init__(self, app: Any, **options: Any) -> None:
        self.is_secure = "ssl_certfile" in options
        defaults = {"ws": OURS, "loop": "asyncio", "http": "h11", "log_config": None, "log_level": "info"}
        self.config = uvicorn.Config(app, port=0, **{**defaults, **options})
        self.server = uvicorn.Server(self.config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        deadline = time.monotonic() + 20
        while not self.server.started:
            assert self.thread.is_alive(), "uvicorn did not start"
            assert time.monotonic() < deadline, "uvicorn did not start in time"
            time.sleep(0.005)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def begin_stop(self) -> None:
        self.server.should_exit = True

    def stop(self) -> None:
        self.begin_stop()
        self.thread.join(30)
        assert not self.thread.is_alive(), "uvicorn did not stop"

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.server.servers[0].sockets[0].getsockname()[:2]
        return host, port

    @property
    def uri(self) -> str:
        return f"{'wss' if self.is_secure else 'ws'}://127.0.0.1:{self.address[1]}"

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    @property
    def tasks(self) -> int:
        return len(self.server.server_state.tasks)
