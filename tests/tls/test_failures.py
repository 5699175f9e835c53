"""Errors when TLS fails: the cause and the advice, against servers of OpenSSL, and a test that the advice works."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.certificates import Certificates
from support.openssl_server import Maker, openssl_server
from support.servers import WebSocketsServer
from wirespeed import TLS
from wirespeed.sync import connect

pytestmark = pytest.mark.wirespeed_only("the texts are ours")

SAN = "subjectAltName=DNS:localhost"


class Case(NamedTuple):
    """A server that native TLS does not accept."""

    says: str
    key: str = "P-256"
    extensions: str | None = SAN
    signed: Sequence[str] = ()
    """More arguments of the command that makes the certificate."""
    server: Sequence[str] = ()
    context: bool = True
    """Whether an ``ssl.SSLContext`` accepts it, which the text then names."""


CASES = {
    "CBC suites only": Case(
        r"TLS alert: handshake failure.*CBC suites", server=["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA256"]
    ),
    "P-521 only": Case(r"TLS alert: handshake failure.*P-521", server=["-groups", "P-521"]),
    "X448 only": Case(r"TLS alert: handshake failure.*X448", server=["-groups", "X448"]),
    "an RSA-PSS key": Case(r"TLS alert: handshake failure.*RSA-PSS", key="RSA-PSS"),
    "an Ed448 key": Case(r"TLS alert: handshake failure.*Ed448", key="Ed448"),
    "TLS 1.1": Case("no version of TLS in common.*1.2 and 1.3", key="RSA", server=["-tls1_1"]),
    "a common name only": Case("no subjectAltName.*common name", extensions="basicConstraints=CA:FALSE"),
    "X.509 version 1": Case("X.509 version 1.*version 3", extensions=None),
    "SHA-1": Case("signed with SHA-1 and ECDSA.*SHA-256", signed=["-sha1"]),
    "a critical extension": Case(
        "extension.*critical.*issued", extensions=f"{SAN}\n1.2.3.4.5=critical,ASN1:UTF8String:x", context=False
    ),
    "another purpose": Case(
        "another purpose.*server authentication", extensions=f"{SAN}\nextendedKeyUsage=clientAuth", context=False
    ),
    "another name": Case(
        "not valid for the host name localhost, only for elsewhere.example.*server_hostname=",
        extensions="subjectAltName=DNS:elsewhere.example",
        context=False,
    ),
    "RSA of 1024 bits": Case("RSA of less than 2048 bits.*issued anew", key="RSA 1024"),
    "an unknown authority": Case("unknown issuer.*ca=", context=False),
    "a client certificate, TLS 1.2": Case(
        "client certificate.*cert= and key=", server=["-tls1_2", "-Verify", "1"], context=False
    ),
    "a client certificate, TLS 1.3": Case(
        "requires a client certificate: pass cert= and key=", server=["-Verify", "1"], context=False
    ),
}


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("openssl"))


def failure(port: int, tls: TLS) -> str:
    """Returns the error text of a client that cannot connect."""
    with pytest.raises(ssl.SSLError) as caught:
        connect(f"wss://localhost:{port}", ssl=tls, host="127.0.0.1", proxy=None, open_timeout=20)
    return str(caught.value)


def check_words(text: str) -> None:
    """Fails if a text contains names of types or cases, such as ``UnknownCa`` or ``Other(OtherError)``."""
    names = re.findall(r"\b(?!ChaCha20)[A-Z][a-z]+[A-Z]\w*|\w+\(\w*\)", text)
    assert not names, text


def try_context(port: int, ca: str) -> None:
    """Connects with Python's ``ssl`` and a context that allows everything that OpenSSL supports."""
    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    # By default from Python 3.13 on, and irrelevant here.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    sock = socket.create_connection(("127.0.0.1", port), 20)
    with sock, context.wrap_socket(sock, server_hostname="localhost") as secure:
        assert secure.version()


@pytest.mark.parametrize("name", CASES)
def test_failure_has_cause_and_advice(maker: Maker, name: str) -> None:
    case = CASES[name]
    ca = Maker(maker.folder / "other") if name == "an unknown authority" else maker
    certificate = maker.certificate(case.key, case.extensions, *case.signed)
    with openssl_server(certificate, *case.server) as port:
        text = failure(port, TLS(ca=ca.ca))
        assert re.search(case.says, text), text
        check_words(text)
        if case.context:
            try_context(port, maker.ca)
            assert "ssl.SSLContext" in text or "issued anew" in text


def test_server_rejects_name_or_protocol(maker: Maker) -> None:
    certificate = maker.certificate()
    other = ["-servername", "elsewhere.example", "-servername_fatal", "-cert2", certificate[0], "-key2", certificate[1]]
    with openssl_server(certificate, *other) as port:
        text = failure(port, TLS(ca=maker.ca))
        assert "server_hostname=" in text
        check_words(text)
    with openssl_server(certificate, "-alpn", "theirs") as port:
        text = failure(port, TLS(ca=maker.ca, alpn=["ours"]))
        assert "alpn=" in text
        check_words(text)


def test_a_client_certificate_that_the_server_does_not_trust(maker: Maker, certificates: Certificates) -> None:
    tls = TLS(ca=maker.ca, cert=certificates.client_cert, key=certificates.client_key)
    options = ["-Verify", "1", "-verify_return_error", "-CAfile", maker.ca]
    with openssl_server(maker.certificate(), *options) as port:
        text = failure(port, tls)
        assert "does not trust the authority" in text
        check_words(text)


def test_a_key_that_is_not_that_of_the_certificate(maker: Maker) -> None:
    tls = TLS(ca=maker.ca, cert=maker.certificate()[0], key=maker.key("RSA"))
    with pytest.raises(ValueError, match="cert: the private key is not that of the certificate") as caught:
        connect("wss://localhost:1", ssl=tls, proxy=None)
    check_words(str(caught.value))


# Without verification


UNVERIFIED = {
    "X.509 version 1": ("P-256", None),
    "RSA of 1024 bits": ("RSA 1024", SAN),
    "a critical extension": ("P-256", f"{SAN}\n1.2.3.4.5=critical,ASN1:UTF8String:x"),
    "another name and purpose": ("RSA", "subjectAltName=DNS:elsewhere.example\nextendedKeyUsage=clientAuth"),
}


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
def version(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("name", UNVERIFIED)
def test_without_verification_any_certificate_is_accepted(
    maker: Maker, serving: Callable[..., WebSocketsServer], version: ssl.TLSVersion, name: str
) -> None:
    cert, key = maker.certificate(*UNVERIFIED[name])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(cert, key)
    with connect(serving(ssl_context=context).uri, ssl=TLS(verify=False), proxy=None) as ws:
        ws.send("hello")
        assert ws.recv(timeout=20) == "hello"
        assert ws.tls is not None
        assert ws.tls.peer_certificates[0] == ssl.PEM_cert_to_DER_cert(Path(cert).read_text())
        assert not ws.tls.verified
