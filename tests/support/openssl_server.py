"""Servers of OpenSSL's own command, and certificates of all kinds that ``openssl`` makes."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from .children import Child

__all__ = ["Maker", "openssl_server"]


def _openssl(*arguments: str) -> str:
    finished = subprocess.run(["openssl", *arguments], check=False, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


KEYS: dict[str, Sequence[str]] = {
    "P-256": ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"),
    "RSA": ("-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"),
    "RSA 1024": ("-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:1024"),
    "RSA-PSS": ("-algorithm", "RSA-PSS", "-pkeyopt", "rsa_keygen_bits:2048"),
    "Ed448": ("-algorithm", "ED448"),
}


class Maker:
    """Makes certificates for ``localhost``, and an authority, in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        key = self.key("P-256")
        self.ca = str(folder / "ca.pem")
        self._ca = ("-CA", self.ca, "-CAkey", key)
        _openssl("req", "-x509", "-key", key, "-out", self.ca, "-subj", f"/CN={folder.name}", "-days", "9")

    def key(self, kind: str) -> str:
        """Returns the path of a key of a kind."""
        path = self.folder / f"{kind}.key"
        if not path.exists():
            _openssl("genpkey", *KEYS[kind], "-out", str(path))
        return str(path)

    def certificate(
        self, key: str = "P-256", extensions: str | None = "subjectAltName=DNS:localhost", *options: str
    ) -> tuple[str, str]:
        """Returns the paths of a certificate of the authority, and of its key.

        Without extensions, it is of X.509 version 1.
        """
        name = f"{len(list(self.folder.iterdir()))}"
        request, path, file = (str(self.folder / f"{name}.{suffix}") for suffix in ("csr", "pem", "ext"))
        _openssl("req", "-new", "-key", self.key(key), "-out", request, "-subj", "/CN=localhost")
        if extensions is not None:
            Path(file).write_text(extensions)
            options = ("-extfile", file, *options)
        number = ("-set_serial", name, "-days", "9")
        _openssl("x509", "-req", "-in", request, *self._ca, *number, "-out", path, *options)
        if extensions is None and "Version: 1 " not in _openssl("x509", "-in", path, "-noout", "-text"):
            # Newer versions have an option for it.
            _openssl("req", "-x509", "-x509v1", "-in", request, *self._ca, *number, "-out", path)
        return path, self.key(key)


@contextlib.contextmanager
def openssl_server(certificate: tuple[str, str], *options: str) -> Iterator[int]:
    """Runs a server that answers requests with a page; yields its port.

    Args:
        certificate: Paths of its certificate and key.
        options: More arguments of ``openssl s_server``.
    """
    cert, key = certificate
    # It ends with its standard input, which it reads unless it sends pages.
    command = ["openssl", "s_server", "-accept", "127.0.0.1:0", "-cert", cert, "-key", key, "-www"]
    # By default some systems refuse short keys and old algorithms.
    command += ["-cipher", "DEFAULT:@SECLEVEL=0", *options]
    child = Child(command)
    try:
        yield int(child.read_until("ACCEPT ").rpartition(":")[2])
    finally:
        child.process.kill()
        child.stop()
