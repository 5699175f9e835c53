"""TLS settings, checked early and passed to the native core as PEM, and the result of the TLS handshake.

It reads files and finds PEM blocks. It does not parse certificates or verify chains: the core does.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

from ._lazy import ssl as ssl_module

__all__ = ["TLS", "NativeTLSArguments", "PEMSource", "Stamp", "TLSInfo", "choose_ssl", "stamp", "tls_info"]

PEMSource = str | bytes | os.PathLike[str]
"""A path, or PEM text as ``str`` or ``bytes``."""

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and modification time of each file; ``None`` for a missing file."""

_VERSIONS = ("1.2", "1.3")


class NativeTLSArguments(TypedDict):
    """The TLS settings that the native core needs."""

    ca_pem: list[bytes]
    system_roots: bool
    cert_pem: bytes | None
    key_pem: bytes | None
    verify: bool
    alpn: list[bytes]
    min_version: str | None
    max_version: str | None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TLS:
    """TLS settings of a connection. Its constructor reads the files.

    When a client connects, it reads the files again if they have changed, including those of the system's authorities.
    If the new content cannot be used, the old content stays in use, and the logger ``wirespeed.client`` warns. A server
    reads them again in ``reload_ssl()``.

    Certificates and keys can be given as a path or as PEM text: text that contains ``-----BEGIN`` is PEM. Use an
    ``ssl.SSLContext`` for features that are missing here, such as encrypted keys.

    Attributes:
        ca: Certificates of the authorities to trust: a PEM file, a directory of PEM files, PEM text, or several of
            these.
        system_roots: Whether to trust the authorities that the system trusts. By default, they are trusted if ``ca`` is
            not given.
        cert: Certificate of this end, followed by intermediate certificates.
        key: Private key of ``cert``. By default, it is read from ``cert``.
        verify: Whether to verify the certificate of the other end. By default, clients verify the server, and servers
            verify clients if ``ca`` is given. With ``False``, attackers on the network can read and change the traffic:
            a client accepts every certificate that can be parsed. It only checks that the server has its key, unless
            that is RSA of less than 2048 or more than 8192 bits.
        alpn: Protocols to offer with ALPN. By default, ALPN is not used.
        minimum_version: ``"1.2"`` or ``"1.3"``; by default 1.2, the lowest version that the core supports.
        maximum_version: ``"1.2"`` or ``"1.3"``; by default 1.3, the highest version that the core supports.

    Raises:
        FileNotFoundError: A file is missing. Other failures of reading raise other subclasses of ``OSError``.
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value, or contains no certificate or key. The message names the argument.
    """

    ca: PEMSource | Iterable[PEMSource] | None = None
    system_roots: bool | None = None
    cert: PEMSource | None = None
    key: PEMSource | None = None
    verify: bool | None = None
    alpn: Sequence[str] = ()
    minimum_version: Literal["1.2", "1.3"] | None = None
    maximum_version: Literal["1.2", "1.3"] | None = None
    _ca_pem: tuple[bytes, ...] = dataclasses.field(init=False)
    _cert_pem: bytes | None = dataclasses.field(init=False)
    _key_pem: bytes | None = dataclasses.field(init=False)
    _alpn: tuple[bytes, ...] = dataclasses.field(init=False)
    # Of the files: their state when they were read, their last unusable state, and the settings read since by clients.
    _stamp: Stamp = dataclasses.field(init=False, compare=False)
    _unusable: Stamp | None = dataclasses.field(init=False, compare=False, default=None)
    _renewed: TLS | None = dataclasses.field(init=False, compare=False, default=None)

    def __post_init__(self) -> None:
        # An iterable may be consumed by the first iteration, and a list cannot be hashed.
        ca = self.ca
        if not isinstance(ca, (str, bytes, os.PathLike)) and isinstance(ca, Iterable):
            ca = tuple(ca)
        alpn = self.alpn if isinstance(self.alpn, str) else tuple(self.alpn)
        self._set(ca=ca, alpn=alpn)
        # Before reading the files, so that a change during reading is noticed.
        self._set(_stamp=self._current_stamp())
        self._set(_ca_pem=_read_authorities(ca), _alpn=_encode_alpn(alpn))
        self._set(_cert_pem=None, _key_pem=None)
        if self.cert is not None:
            cert_pem, key_pem = _read_identity(self.cert, self.key)
            self._set(_cert_pem=cert_pem, _key_pem=key_pem)
        elif self.key is not None:
            raise ValueError("key is given without cert; pass cert, the certificate that belongs to it")
        if self.verify is not False and self.system_roots is False and not self._ca_pem:
            raise ValueError("system_roots is False and there is no ca, so no certificate can be verified; pass ca")
        self._check_versions()

    def __repr__(self) -> str:
        fields = (field for field in dataclasses.fields(self) if field.init)
        shown = (
            f"{field.name}={_describe(getattr(self, field.name))}"
            for field in fields
            if getattr(self, field.name) != field.default
        )
        return f"{type(self).__name__}({', '.join(shown)})"

    def _check_versions(self) -> None:
        for name in ("minimum_version", "maximum_version"):
            if getattr(self, name) not in (None, *_VERSIONS):
                raise ValueError(f'{name} must be "1.2", "1.3" or None, not {getattr(self, name)!r}')
        if self.minimum_version == "1.3" and self.maximum_version == "1.2":
            raise ValueError("minimum_version is above maximum_version")

    @property
    def _trusts_system(self) -> bool:
        return self.ca is None if self.system_roots is None else self.system_roots

    def _current_stamp(self) -> Stamp:
        sources = (*(self.ca if isinstance(self.ca, tuple) else (self.ca,)), self.cert, self.key)
        paths = [source for source in sources if isinstance(source, (str, os.PathLike)) and not _is_pem(source)]
        return stamp(paths)

    def _native_arguments(self) -> NativeTLSArguments:
        return {
            "ca_pem": list(self._ca_pem),
            "system_roots": self._trusts_system,
            "cert_pem": self._cert_pem,
            "key_pem": self._key_pem,
            "verify": self.verify is not False,
            "alpn": list(self._alpn),
            "min_version": self.minimum_version,
            "max_version": self.maximum_version,
        }

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TLSInfo:
    """The result of the TLS handshake.

    Attributes:
        version: ``"TLSv1.2"`` or ``"TLSv1.3"``.
        cipher: Name of the cipher suite as registered by IANA; with an ``ssl.SSLContext`` the name of OpenSSL, which
            differs for TLS 1.2.
        secret_bits: Number of bits of the secret key.
        alpn: Protocol negotiated with ALPN (RFC 7301), ``None`` without one.
        peer_certificates: Certificates sent by the other end, as DER, its own first; empty if it sent none. With an
            ``ssl.SSLContext`` before Python 3.13, only its own.
        verified: Whether they were verified. If not, the other end may be anyone with the key of the first
            certificate; see ``verify`` of :class:`TLS`.
        ssl_object: The object of the standard library, if the connection uses an ``ssl.SSLContext``. Only read from it.
    """

    version: str
    cipher: str
    secret_bits: int
    alpn: str | None
    peer_certificates: tuple[bytes, ...] = dataclasses.field(repr=False)
    verified: bool
    ssl_object: ssl_module.SSLObject | None = dataclasses.field(default=None, repr=False)


def stamp(paths: Iterable[str | os.PathLike[str]]) -> Stamp:
    """Return the state of files: two stamps differ if one of the files has changed in between.

    Args:
        paths: The files.
    """
    return tuple(map(_file_stamp, paths))


def _file_stamp(path: str | os.PathLike[str]) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def tls_info(native: Any) -> TLSInfo | None:
    """Return the result of the TLS handshake of a connection.

    Args:
        native: Value of the native connection: a tuple, an ``ssl.SSLObject``, or ``None``.
    """
    if native is None:
        return None
    if isinstance(native, tuple):
        version, cipher, secret_bits, alpn, certificates, verified = native
        return TLSInfo(
            version=version,
            cipher=cipher,
            secret_bits=secret_bits,
            alpn=alpn,
            peer_certificates=certificates,
            verified=verified,
        )
    cipher, _, secret_bits = native.cipher()
    certificate = native.getpeercert(True)
    chain: Sequence[bytes] = () if certificate is None else (certificate,)
    if chain and hasattr(native, "get_unverified_chain"):  # Python 3.13
        chain = native.get_unverified_chain()
    return TLSInfo(
        version=native.version(),
        cipher=cipher,
        secret_bits=secret_bits,
        alpn=native.selected_alpn_protocol(),
        peer_certificates=tuple(chain),
        verified=certificate is not None and native.context.verify_mode != ssl_module.CERT_NONE,
        ssl_object=native,
    )


def choose_ssl(
    secure: bool,
    ssl: TLS | ssl_module.SSLContext | bool | None,
    server_hostname: str | None,
    host: str,
) -> tuple[TLS | ssl_module.SSLContext | None, str | None]:
    """Choose the TLS settings of a client connection.

    Args:
        secure: Whether the URI is a wss URI.
        ssl: The argument of the user.
        server_hostname: The argument of the user.
        host: Host of the URI.

    Returns:
        The settings, and the name that the certificate of the server must have; both are ``None`` for ws.

    Raises:
        TypeError: ``ssl`` has a wrong type.
        ValueError: ``ssl`` does not match the scheme of the URI.
    """
    if not secure:
        if ssl is not None:
            raise ValueError("ssl argument is incompatible with a ws:// URI; use a wss:// URI")
        return None, None
    if ssl is False:
        raise ValueError("ssl=False is incompatible with a wss:// URI; use a ws:// URI, or ssl=TLS(verify=False)")
    if ssl is None or ssl is True:
        ssl = TLS()
    elif not isinstance(ssl, (TLS, ssl_module.SSLContext)):
        raise TypeError(f"ssl must be True, a TLS or an ssl.SSLContext, not {type(ssl).__name__}")
    if server_hostname is None:
        # RFC 6066, section 3: the name in SNI has no trailing dot. The zone of an address is meaningful on this machine
        # only.
        server_hostname = host.partition("%")[0].rstrip(".")
    return ssl, server_hostname


class _Block(NamedTuple):
    label: str
    text: bytes


# RFC 7468, section 3.
_BLOCK = rb"(?s)-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----"
_KEY_LABELS = ("PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY")


def _read_authorities(ca: PEMSource | tuple[PEMSource, ...] | None) -> tuple[bytes, ...]:
    if ca is None:
        return ()
    sources = ca if isinstance(ca, tuple) else (ca,)
    if not sources:
        raise ValueError("ca is empty; leave it out to trust the authorities of the system")
    return tuple(map(_read_authority, sources))


def _read_authority(source: PEMSource) -> bytes:
    _check_type("ca", source)
    pem = b""
    if not _is_pem(source) and os.path.isdir(path := os.fsdecode(source)):
        certificates = b"".join(_directory(path))
    else:
        pem = _read("ca", source)
        certificates = _certificates(pem, "ca", source)
    if not certificates:
        raise ValueError(f"ca: there is no certificate in {_describe(source)}{_hint(pem)}")
    return certificates


def _directory(directory: str) -> Iterator[bytes]:
    from pathlib import Path

    # c_rehash adds links to such directories, so each certificate is there twice.
    for path in sorted({path.resolve() for path in Path(directory).iterdir()}):
        if path.is_file():
            yield _certificates(path.read_bytes(), "ca", path)


def _read_identity(cert: PEMSource, key: PEMSource | None) -> tuple[bytes, bytes]:
    cert_pem = _read("cert", cert)
    chain = _certificates(cert_pem, "cert", cert)
    if not chain:
        raise ValueError(f"cert: there is no certificate in {_describe(cert)}{_hint(cert_pem)}")
    if key is None:
        private = _private_key(cert_pem, "cert", cert)
        if private is None:
            raise ValueError(f"cert is given without key, and there is no private key in {_describe(cert)}; pass key")
        return chain, private
    key_pem = _read("key", key)
    private = _private_key(key_pem, "key", key)
    if private is None:
        raise ValueError(f"key: there is no private key in {_describe(key)}{_hint(key_pem)}")
    return chain, private


def _certificates(pem: bytes, argument: str, source: PEMSource) -> bytes:
    return b"".join(block.text for block in _blocks(pem, argument, source) if block.label == "CERTIFICATE")


def _private_key(pem: bytes, argument: str, source: PEMSource) -> bytes | None:
    for block in _blocks(pem, argument, source):
        # RFC 5958 has its own label for encrypted keys, RFC 1421 a header.
        if block.label == "ENCRYPTED PRIVATE KEY" or b"Proc-Type: 4,ENCRYPTED" in block.text:
            raise ValueError(
                f"{argument}: the private key in {_describe(source)} is encrypted; decrypt it, or pass an "
                f"ssl.SSLContext instead, whose load_cert_chain takes a password"
            )
        if block.label in _KEY_LABELS:
            return block.text
    return None


def _blocks(pem: bytes, argument: str, source: PEMSource) -> Iterator[_Block]:
    pem = pem.replace(b"\r\n", b"\n")
    for match in re.finditer(_BLOCK, pem):
        label = match[1].decode()
        if label == "CERTIFICATE" or (label in _KEY_LABELS and b":" not in match[2]):
            try:
                base64.b64decode(b"".join(match[2].split()), validate=True)
            except binascii.Error:
                raise ValueError(f"{argument}: the {label.lower()} in {_describe(source)} is damaged") from None
        yield _Block(label, match[0] + b"\n")


def _read(argument: str, source: PEMSource) -> bytes:
    if isinstance(source, bytes):
        return source
    _check_type(argument, source)
    if isinstance(source, str) and _is_pem(source):
        return source.encode()
    try:
        with open(source, "rb") as file:
            return file.read()
    except OSError as exc:
        # The same exception class, with the name of the argument.
        raise type(exc)(exc.errno, f"{argument}: {exc.strerror}", os.fspath(source)) from None


def _check_type(argument: str, source: object) -> None:
    if not isinstance(source, (str, bytes, os.PathLike)):
        raise TypeError(f"{argument} must be a path or PEM text, not {type(source).__name__}")


def _is_pem(source: object) -> bool:
    return isinstance(source, bytes) or (isinstance(source, str) and "-----BEGIN " in source)


def _hint(data: bytes) -> str:
    # DER and PKCS #12 both begin with a DER sequence.
    return "; PEM is needed, this looks like DER or PKCS #12" if data[:1] == b"\x30" else ""


def _encode_alpn(alpn: str | tuple[str, ...]) -> tuple[bytes, ...]:
    if isinstance(alpn, str):
        raise TypeError(f"alpn must be a sequence of str, not a str; write [{alpn!r}]")
    for protocol in alpn:
        if not isinstance(protocol, str):
            raise TypeError(f"alpn must be a sequence of str, it contains a {type(protocol).__name__}")
    encoded = tuple(protocol.encode() for protocol in alpn)
    # RFC 7301, section 3.1: ProtocolName<1..2^8-1>.
    if not all(1 <= len(protocol) <= 255 for protocol in encoded):
        raise ValueError("alpn: each protocol must have from 1 to 255 bytes")
    return encoded


def _describe(value: object) -> str:
    """Return the text of an argument for messages. PEM text is hidden, because it may be a private key."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_describe, value)) + "]"
    if _is_pem(value):
        return "<PEM>"
    return repr(os.fspath(value)) if isinstance(value, os.PathLike) else repr(value)
