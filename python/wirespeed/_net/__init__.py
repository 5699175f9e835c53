"""Where to connect and where to listen: URIs, redirects, proxies, addresses, sockets that listen.

It knows no option of a connection and no handshake.
"""
