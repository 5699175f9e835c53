"""Between a socket and an open connection, without waiting: the client's plan, the server's answer."""
