"""The opening handshake without I/O: the plan of the client, and the response of the server."""
