"""The keyword arguments of clients and servers: checked here, once, for threads and for event loops."""
