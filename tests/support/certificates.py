"""Certificates made for the run by trustme: one authority that clients trust, and certificates for TLS faults."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Certificates"]


class Certificates:
    """A certificate authority and the contexts of servers of each kind.

    ``localhost`` and 127.0.0.1 are in the good server certificate. Files lie in ``folder``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.other_ca = trustme.CA()
        self.server = self.ca.issue_cert("localhost", "127.0.0.1")
        self.client = self.ca.issue_cert("client@example.com")
        self.stranger = self.other_ca.issue_cert("client@example.com")
        self.ca_file = str(folder / "ca.pem")
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.other_ca_file = str(folder / "other-ca.pem")
        self.other_ca.cert_pem.write_to_path(self.other_ca_file)
        self.client_cert, self.client_key = self._write("client", self.client)
        self.stranger_cert, self.stranger_key = self._write("stranger", self.stranger)

    def _write(self, name: str, leaf: trustme.LeafCert) -> tuple[str, str]:
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(str(key))
        return str(cert), str(key)

    def server_files(self) -> tuple[str, str]:
        return self._write("server", self.server)

    @staticmethod
    def _serving(leaf: trustme.LeafCert) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        leaf.configure_cert(context)
        return context

    def server_context(self, *, client_required: bool = False, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        context = self._serving(self.server)
        if client_required:
            context.verify_mode = ssl.CERT_REQUIRED
            self.ca.configure_trust(context)
        if version is not None:
            context.minimum_version = context.maximum_version = version
        return context

    def expired_context(self) -> ssl.SSLContext:
        now = datetime.datetime.now(datetime.timezone.utc)
        day = datetime.timedelta(days=1)
        return self._serving(self.ca.issue_cert("localhost", not_before=now - 9 * day, not_after=now - day))

    def future_context(self) -> ssl.SSLContext:
        now = datetime.datetime.now(datetime.timezone.utc)
        day = datetime.timedelta(days=1)
        return self._serving(self.ca.issue_cert("localhost", not_before=now + day, not_after=now + 9 * day))

    def wrong_host_context(self) -> ssl.SSLContext:
        return self._serving(self.ca.issue_cert("elsewhere.example"))

    def unknown_authority_context(self) -> ssl.SSLContext:
        return self._serving(self.other_ca.issue_cert("localhost"))

    def self_signed_context(self) -> ssl.SSLContext:
        # An authority's own certificate, used as a server's, is signed by itself.
        cert, key = self.folder / "self.pem", self.folder / "self.key"
        self.other_ca.cert_pem.write_to_path(str(cert))
        self.other_ca.private_key_pem.write_to_path(str(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        return context

    def own_certificate(self, name: str = "localhost", *, expired: bool = False) -> tuple[str, str]:
        """Returns paths of a self-signed certificate, as ``openssl req -x509`` makes it, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 9 * day)
            .not_valid_after(now - day if expired else now + day)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .sign(key, hashes.SHA256())
        )
        cert_file, key_file = self.folder / f"own-{name}-{expired}.pem", self.folder / f"own-{name}-{expired}.key"
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return str(cert_file), str(key_file)

    def client_context(self, *, trusted: bool = True, certificate: bool = False) -> ssl.SSLContext:
        """Returns the context that a user would pass as ``ssl=`` with the standard library."""
        context = ssl.create_default_context()
        if trusted:
            self.ca.configure_trust(context)
        if certificate:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context
