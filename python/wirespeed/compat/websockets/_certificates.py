"""The TLS of a connection as ``ssl.SSLObject`` tells it, whoever made it: the standard library, or the native core.

It parses no certificates: the standard library does.
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
    """What native TLS tells, by the names of ``ssl.SSLObject``.

    Args:
        info: What is known of it.
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
        """Return the version of TLS."""
        return self._info.version

    def cipher(self) -> tuple[str, str, int]:
        """Return the name of the cipher suite as OpenSSL has it, the version of TLS, and the bits of the key."""
        return _openssl_name(self._info.cipher), self._info.version, self._info.secret_bits

    def compression(self) -> None:
        """Return that nothing is compressed."""

    def selected_alpn_protocol(self) -> str | None:
        """Return the protocol agreed on by ALPN."""
        return self._info.alpn

    def selected_npn_protocol(self) -> None:
        """Return that NPN is not used."""

    def get_unverified_chain(self) -> list[bytes]:
        """Return the certificates that the other end has sent, as DER."""
        return list(self._info.peer_certificates)

    def getpeercert(self, binary_form: bool = False) -> dict[str, Any] | bytes | None:
        """Return the certificate of the other end; ``None`` if it has sent none.

        Args:
            binary_form: Whether to return it as DER. Else it is a dict, empty if the certificate was not verified.

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
    """Return the ``ssl.SSLObject`` of a connection, or what stands for it; ``None`` without TLS.

    Args:
        connection: The connection.
    """
    native = connection._tls
    if not isinstance(native, tuple):
        return native
    view, info = connection.protocol, cast("TLSInfo", tls_info(native))
    return NativeTLSView(info, view._server_hostname, view.side == protocol.Side.SERVER)


def _openssl_name(cipher: str) -> str:
    # RFC 8446, appendix B.4: those of TLS 1.3 name no key exchange, and OpenSSL calls them as IANA does.
    exchange, _, rest = cipher.removeprefix("TLS_").partition("_WITH_")
    if not rest:
        return cipher
    name = rest.replace("AES_", "AES").replace("_POLY1305_SHA256", "_POLY1305")
    return f"{exchange}-{name}".replace("_", "-")


def _decode(certificate: bytes) -> dict[str, Any]:
    decode = getattr(getattr(ssl, "_ssl", None), "_test_decode_cert", None)
    if decode is None:
        raise NotImplementedError("this interpreter parses no certificates; use getpeercert(binary_form=True)")
    # It reads files only.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.pem"
        path.write_text(ssl.DER_cert_to_PEM_cert(certificate))
        decoded: dict[str, Any] = decode(str(path))
    return decoded
