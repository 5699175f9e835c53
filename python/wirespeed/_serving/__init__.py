"""What servers do beside the handshake, with threads or on an event loop: handlers, routes, the log."""
