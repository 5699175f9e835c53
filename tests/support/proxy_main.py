"""One proxy server in a process of its own.

``python proxy_main.py KIND [--user NAME:PASSWORD] [--cert FILE --key FILE]``, where KIND is http, https, socks4 (with
the 4a extension) or socks5. HTTP and SOCKS 5 are served by pproxy, SOCKS 4 by Twisted: neither does all of them.

It prints ``listening PORT`` once it accepts connections, then one line ``connect HOST PORT`` for each connection that
it makes, HOST as the client named it. It ends when its standard input does, so it cannot outlive the tests.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any


def end_with_stdin() -> None:
    """Ends the process when the parent ends in any way."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def say(line: str) -> None:
    print(line, flush=True)


def serve_pproxy(kind: str, user: str | None, cert: str | None, key: str | None) -> None:
    import asyncio
    import ssl

    # Names that are imported dynamically have no useful types.
    pproxy = importlib.import_module("pproxy")

    def report(line: str) -> None:
        found = re.search(r" -> (\S+):(\d+)$", line)
        if found:
            say(f"connect {found[1]} {found[2]}")

    async def main() -> None:
        scheme = "http" if kind == "https" else kind
        fragment = f"#{user}" if user else ""
        proxy = pproxy.Server(f"{scheme}://127.0.0.1:0{fragment}")
        if kind == "https":
            assert cert is not None
            proxy.sslserver = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            proxy.sslserver.load_cert_chain(cert, key)
        # Without a negative authtime, an address that has logged in once needs no password later.
        server = await proxy.start_server({"rserver": [], "verbose": report, "authtime": -1})
        say(f"listening {server.sockets[0].getsockname()[1]}")
        await asyncio.Event().wait()

    asyncio.run(main())


def serve_twisted(allowed: str | None) -> None:
    from twisted.internet import protocol
    from twisted.protocols import socks

    # Unlike the declared interface, this has the methods of all reactors.
    reactor: Any = importlib.import_module("twisted.internet.reactor")

    class Resolver:
        """Reports that the client requested a name, as only SOCKS 4a can."""

        def resolve(self, name: bytes) -> object:
            say(f"resolve {name.decode()}")
            return reactor.resolve(name)

    class Socks4(socks.SOCKSv4):
        def authorize(self, code: int, server: str | bytes, port: int, user: bytes) -> Any:
            host = server.decode() if isinstance(server, bytes) else server
            if allowed is not None and user != allowed.split(":")[0].encode():
                return False
            say(f"connect {host} {port}")
            return True

        def log(self, proto: object, data: bytes) -> None:
            pass

    make: Callable[..., Any] = Socks4
    factory: Any = protocol.Factory()
    factory.protocol = lambda: make(None, Resolver())
    port = reactor.listenTCP(0, factory, interface="127.0.0.1")
    say(f"listening {port.getHost().port}")
    reactor.run(installSignalHandlers=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=["http", "https", "socks4", "socks5"])
    parser.add_argument("--user")
    parser.add_argument("--cert")
    parser.add_argument("--key")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    end_with_stdin()
    if args.kind == "socks4":
        serve_twisted(args.user)
    else:
        serve_pproxy(args.kind, args.user, args.cert, args.key)


if __name__ == "__main__":
    main()
