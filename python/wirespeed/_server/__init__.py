"""Server code shared by the asyncio and the blocking API: accepting, the opening handshake, routes, the log."""
