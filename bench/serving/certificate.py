"""A certificate for servers that serve TLS, made by the load generator's program."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from serving.load import GENERATOR
from serving.process import ChildError

__all__ = ["certificate"]


@contextlib.contextmanager
def certificate() -> Iterator[tuple[str, str]]:
    """Makes a certificate for 127.0.0.1, valid until the block is left.

    Yields:
        The PEM file of the certificate with its key, and that of the authority.

    Raises:
        ChildError: the program is not there, or failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [str(GENERATOR), "certificate", folder]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=10)
        except OSError as error:
            raise ChildError(f"no certificate: {command[0]}: {error.strerror}") from error
        except subprocess.CalledProcessError as error:
            raise ChildError(f"no certificate: {error.stderr.strip()}") from error
        yield str(Path(folder, "server.pem")), str(Path(folder, "authority.pem"))
