"""A certificate for the loopback address, signed by an authority of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import trustme

__all__ = ["Certificate"]


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Paths of PEM files."""

    cert: str
    key: str
    authority: str

    @classmethod
    def make(cls, folder: Path) -> Certificate:
        """Writes a certificate and its authority into a folder."""
        paths = [folder / name for name in ("cert.pem", "key.pem", "authority.pem")]
        authority = trustme.CA()
        # The suite's OpenSSL is old and needs these settings.
        leaf = authority.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.RSA)
        paths[0].write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(str(paths[1]))
        authority.cert_pem.write_to_path(str(paths[2]))
        return cls(*map(str, paths))
