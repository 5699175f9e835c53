"""An engine leaves descriptors to the application while clients take as many as they can."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import time

import pytest

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

# Of 256 descriptors 32 are reserved, half of them for the application.
APPLICATION = """
    import resource, sys, time
    from wirespeed.engine import Engine

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with Engine("127.0.0.1", workers=int(sys.argv[1])) as engine:
        print(engine.addresses[0][1], flush=True)
        least = 1000
        until = time.monotonic() + 7
        while time.monotonic() < until:
            files = []
            try:
                for _ in range(14):
                    files.append(open("/dev/null"))
            except OSError:
                pass
            least = min(least, len(files))
            for file in files:
                file.close()
            time.sleep(0.05)
        print(least, flush=True)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_silent_clients_leave_descriptors_to_the_application(workers: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(APPLICATION), str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        clients: list[socket.socket] = []
        until = time.monotonic() + 6
        try:
            while time.monotonic() < until:
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
                clients.append(client)
                if len(clients) > 600:
                    clients.pop(0).close()
                time.sleep(0.008)
            least = int(process.stdout.readline())
        finally:
            for client in clients:
                client.close()
            process.kill()
    assert least == 14
