"""Server code shared by the asyncio and the blocking API, besides the handshake: handlers, routes, the log."""
