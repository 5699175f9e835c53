"""Where to connect and where to listen: URIs, redirects, proxies, addresses, listening sockets.

It does not know the options of connections, nor the opening handshake.
"""
