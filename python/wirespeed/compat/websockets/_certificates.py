"""Returns the TLS state of a connection as an ``ssl.SSLObject``, also for native TLS.

The standard library parses the certificates.
"""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import Any, cast

from ...tls import TLSInfo, tls_info
from . import protocol

__all__ = ["NativeTLSView", "ssl_object"]


class NativeTLSView:
    """The state of native TLS, with the methods of ``ssl.SSLObject``.

    Args:
        info: The result of the TLS handshake.
        server_hostname: Name that the certificate of the server must have.
        server_side: Whether this end is the server.
    """

    def __init__(self, info: TLSInfo, server_hostname: str | None, server_side: bool) -> None:
        self._info = info
        self.server_hostname = server_hostname
        self.server_side = server_side

    def __getattr__(self, name: str) -> Any:
        if name == "context":
            raise NotImplementedError("native TLS has no ssl.SSLContext; pass one as ssl= to have it")
        raise AttributeError(f"wirespeed does not tell ssl_object.{name} of native TLS; pass an ssl.SSLContext as ssl=")

    def version(self) -> str:
        """Return the TLS version."""
        return self._info.version

    def cipher(self) -> tuple[str, str, int]:
        """Return the name of the cipher suite as in OpenSSL, the TLS version, and the number of bits of the key."""
        return _openssl_name(self._info.cipher), self._info.version, self._info.secret_bits

    def compression(self) -> None:
        """Return ``None``: TLS compression is not used."""

    def selected_alpn_protocol(self) -> str | None:
        """Return the protocol negotiated with ALPN."""
        return self._info.alpn

    def selected_npn_protocol(self) -> None:
        """Return ``None``: NPN is not used."""

    def get_unverified_chain(self) -> list[bytes]:
        """Return the certificates sent by the other end, as DER."""
        return list(self._info.peer_certificates)

    def getpeercert(self, binary_form: bool = False) -> dict[str, Any] | bytes | None:
        """Return the certificate of the other end; ``None`` if it sent none.

        Args:
            binary_form: Whether to return it as DER; otherwise as a dict, which is empty if it was not verified.

        Raises:
            NotImplementedError: The interpreter cannot parse certificates.
        """
        certificates = self._info.peer_certificates
        if not certificates:
            return None
        if binary_form:
            return certificates[0]
        return _decode(certificates[0]) if self._info.verified else {}


def ssl_object(connection: Any) -> Any:
    """Return the ``ssl.SSLObject`` of a connection or a view of native TLS; ``None`` without TLS.

    Args:
        connection: The connection.
    """
    native = connection._tls
    if not isinstance(native, tuple):
        return native
    view, info = connection.protocol, cast("TLSInfo", tls_info(native))
    return NativeTLSView(info, view._server_hostname, view.side == protocol.Side.SERVER)


def _openssl_name(cipher: str) -> str:
    # RFC 8446, appendix B.4: names of TLS 1.3 suites have no key exchange, and are the same in OpenSSL.
    exchange, _, rest = cipher.removeprefix("TLS_").partition("_WITH_")
    if not rest:
        return cipher
    name = rest.replace("AES_", "AES").replace("_POLY1305_SHA256", "_POLY1305")
    return f"{exchange}-{name}".replace("_", "-")


def _decode(certificate: bytes) -> dict[str, Any]:
    decode = getattr(getattr(ssl, "_ssl", None), "_test_decode_cert", None)
    if decode is None:
        raise NotImplementedError("this interpreter parses no certificates; use getpeercert(binary_form=True)")
    # The function reads files only.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.pem"
        path.write_text(ssl.DER_cert_to_PEM_cert(certificate))
        decoded: dict[str, Any] = decode(str(path))
    return decoded
