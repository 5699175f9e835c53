"""The keyword arguments of clients and servers, checked once for both APIs."""
