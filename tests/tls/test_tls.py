"""TLS settings: accepted values, and errors for wrong ones. Certificates come from trustme."""

from __future__ import annotations

import dataclasses
import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from wirespeed.tls import TLS, choose_ssl

DEFAULTS = {
    "ca_pem": [],
    "system_roots": True,
    "cert_pem": None,
    "key_pem": None,
    "verify": True,
    "alpn": [],
    "min_version": None,
    "max_version": None,
}


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_pem(ca: trustme.CA) -> bytes:
    return ca.cert_pem.bytes()


@pytest.fixture(scope="module")
def leaf(ca: trustme.CA) -> trustme.LeafCert:
    return ca.issue_cert("client@example.com")


@pytest.fixture(scope="module")
def cert_pem(leaf: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in leaf.cert_chain_pems)


@pytest.fixture(scope="module")
def key_pem(leaf: trustme.LeafCert) -> bytes:
    return leaf.private_key_pem.bytes()


def native(tls: TLS) -> dict[str, Any]:
    return dict(tls._native_arguments())


def encrypted(key_pem: bytes, how: serialization.PrivateFormat) -> bytes:
    key = serialization.load_pem_private_key(key_pem, None)
    return key.private_bytes(serialization.Encoding.PEM, how, serialization.BestAvailableEncryption(b"password"))


def test_defaults() -> None:
    assert native(TLS()) == DEFAULTS
    assert repr(TLS()) == "TLS()"


def test_keyword_only() -> None:
    with pytest.raises(TypeError):
        TLS("ca.pem")  # type: ignore[call-arg]


def test_frozen(ca_pem: bytes) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TLS().verify = False  # type: ignore[misc]
    assert TLS(ca=[ca_pem]) == TLS(ca=(ca_pem,))
    assert hash(TLS(ca=[ca_pem])) == hash(TLS(ca=(ca_pem,)))
    assert TLS(verify=False) != TLS()
    assert native(pickle.loads(pickle.dumps(TLS(ca=ca_pem)))) == native(TLS(ca=ca_pem))
    assert native(dataclasses.replace(TLS(ca=ca_pem), verify=False))["ca_pem"] == [ca_pem]


# Authorities


def test_ca_from_everything(tmp_path: Path, ca_pem: bytes) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(ca_pem)
    for source in (file, str(file), ca_pem, ca_pem.decode(), [file], iter([file])):
        assert native(TLS(ca=source)) == {**DEFAULTS, "ca_pem": [ca_pem], "system_roots": False}


def test_ca_from_several(ca_pem: bytes) -> None:
    other = trustme.CA().cert_pem.bytes()
    assert native(TLS(ca=[ca_pem, other.decode()]))["ca_pem"] == [ca_pem, other]
    assert native(TLS(ca=ca_pem + b"comment\n" + other))["ca_pem"] == [ca_pem + other]


def test_ca_directory(tmp_path: Path, ca_pem: bytes) -> None:
    """Like those which c_rehash makes: links, and other files."""
    (tmp_path / "a.pem").write_bytes(ca_pem)
    (tmp_path / "0123abcd.0").symlink_to("a.pem")
    (tmp_path / "dangling.0").symlink_to("nothing")
    (tmp_path / "README").write_text("no certificate")
    (tmp_path / "folder").mkdir()
    assert native(TLS(ca=tmp_path))["ca_pem"] == [ca_pem]


def test_ca_with_windows_line_ends(ca_pem: bytes) -> None:
    assert native(TLS(ca=ca_pem.replace(b"\n", b"\r\n")))["ca_pem"] == [ca_pem]


@pytest.mark.parametrize(("system_roots", "expected"), [(None, False), (True, True), (False, False)])
def test_system_roots_with_ca(ca_pem: bytes, system_roots: bool | None, expected: bool) -> None:
    assert native(TLS(ca=ca_pem, system_roots=system_roots))["system_roots"] is expected


def test_nothing_to_trust() -> None:
    with pytest.raises(ValueError, match="pass ca"):
        TLS(system_roots=False)
    assert native(TLS(system_roots=False, verify=False))["system_roots"] is False
    with pytest.raises(ValueError, match="ca is empty"):
        TLS(ca=[])


def test_standard_library_reads_the_same(ca_pem: bytes) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    (pem,) = TLS(ca=b"comment\n" + ca_pem)._native_arguments()["ca_pem"]
    context.load_verify_locations(cadata=pem.decode())
    assert context.cert_store_stats()["x509_ca"] == 1


# Own certificate


def test_cert_and_key(tmp_path: Path, cert_pem: bytes, key_pem: bytes) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(cert_pem)
    key.write_bytes(key_pem)
    expected = {**DEFAULTS, "cert_pem": cert_pem, "key_pem": key_pem}
    assert native(TLS(cert=cert, key=str(key))) == expected
    assert native(TLS(cert=cert_pem, key=key_pem.decode())) == expected


def test_key_in_the_cert_file(tmp_path: Path, cert_pem: bytes, key_pem: bytes) -> None:
    file = tmp_path / "both.pem"
    file.write_bytes(key_pem + cert_pem)
    assert native(TLS(cert=file)) == {**DEFAULTS, "cert_pem": cert_pem, "key_pem": key_pem}


@pytest.mark.parametrize("how", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
def test_kinds_of_keys(cert_pem: bytes, key_pem: bytes, how: serialization.PrivateFormat) -> None:
    key = serialization.load_pem_private_key(key_pem, None)
    pem = key.private_bytes(serialization.Encoding.PEM, how, serialization.NoEncryption())
    assert native(TLS(cert=cert_pem, key=pem))["key_pem"] == pem
    parameters = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    assert native(TLS(cert=cert_pem, key=parameters + pem))["key_pem"] == pem


@pytest.mark.parametrize("how", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
def test_encrypted_key(tmp_path: Path, cert_pem: bytes, key_pem: bytes, how: serialization.PrivateFormat) -> None:
    file = tmp_path / "encrypted.pem"
    file.write_bytes(encrypted(key_pem, how))
    with pytest.raises(ValueError, match=r"key: .*encrypted\.pem' is encrypted; .*ssl\.SSLContext"):
        TLS(cert=cert_pem, key=file)
    with pytest.raises(ValueError, match=r"cert: .* is encrypted"):
        TLS(cert=cert_pem + file.read_bytes())


# Mistakes


@pytest.mark.parametrize("argument", ["ca", "cert", "key"])
def test_missing_file(tmp_path: Path, cert_pem: bytes, key_pem: bytes, argument: str) -> None:
    arguments: dict[str, Any] = {"cert": cert_pem, "key": key_pem, argument: tmp_path / "nothing.pem"}
    with pytest.raises(FileNotFoundError, match=rf"{argument}: .*nothing\.pem"):
        TLS(**arguments)


@pytest.mark.parametrize("argument", ["cert", "key"])
def test_directory_instead_of_file(tmp_path: Path, cert_pem: bytes, key_pem: bytes, argument: str) -> None:
    arguments: dict[str, Any] = {"cert": cert_pem, "key": key_pem, argument: tmp_path}
    with pytest.raises(IsADirectoryError, match=f"{argument}: "):
        TLS(**arguments)


@pytest.mark.parametrize("argument", ["ca", "cert", "key"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "there is no"),
        (b"nonsense", "there is no"),
        (b"\x30\x82\x01\x00", "looks like DER"),
        (b"-----BEGIN CERTIFICATE-----\nMIIB", "there is no"),
    ],
)
def test_no_pem(tmp_path: Path, cert_pem: bytes, key_pem: bytes, argument: str, content: bytes, message: str) -> None:
    file = tmp_path / "file.pem"
    file.write_bytes(content)
    for source, name in ((file, r"file\.pem"), (content, "<PEM>")):
        arguments: dict[str, Any] = {"cert": cert_pem, "key": key_pem, argument: source}
        with pytest.raises(ValueError, match=f"{argument}: .*{name}") as raised:
            TLS(**arguments)
        assert message in str(raised.value)


def test_no_certificate_in_the_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ca: there is no certificate in"):
        TLS(ca=tmp_path)


def test_damaged(cert_pem: bytes, key_pem: bytes) -> None:
    with pytest.raises(ValueError, match="ca: the certificate in <PEM> is damaged"):
        TLS(ca=cert_pem.replace(b"MII", b"M!I", 1))
    with pytest.raises(ValueError, match=r"key: the .*private key in <PEM> is damaged"):
        TLS(cert=cert_pem, key=key_pem.replace(b"=", b"", 1) if b"=" in key_pem else key_pem.replace(b"M", b"", 1))


def test_swapped(cert_pem: bytes, key_pem: bytes) -> None:
    with pytest.raises(ValueError, match="cert: there is no certificate"):
        TLS(cert=key_pem, key=cert_pem)


def test_half(cert_pem: bytes, key_pem: bytes) -> None:
    with pytest.raises(ValueError, match=r"cert is given without key.*pass key"):
        TLS(cert=cert_pem)
    with pytest.raises(ValueError, match="key is given without cert"):
        TLS(key=key_pem)


@pytest.mark.parametrize("argument", ["cert", "key"])
def test_wrong_type(cert_pem: bytes, key_pem: bytes, argument: str) -> None:
    arguments: dict[str, Any] = {"cert": cert_pem, "key": key_pem, argument: 5}
    with pytest.raises(TypeError, match=f"{argument} must be a path or PEM text, not int"):
        TLS(**arguments)


def test_wrong_type_of_ca() -> None:
    with pytest.raises(TypeError, match="ca must be a path or PEM text, not int"):
        TLS(ca=[5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="ca must be"):
        TLS(ca=5)  # type: ignore[arg-type]


# Protocols and versions


def test_alpn() -> None:
    assert native(TLS(alpn=["http/1.1", "x"]))["alpn"] == [b"http/1.1", b"x"]
    odd: Any = b"h2"
    with pytest.raises(TypeError, match="alpn must be a sequence of str, it contains a int"):
        TLS(alpn=odd)
    with pytest.raises(TypeError, match=r"write \['http/1.1'\]"):
        TLS(alpn="http/1.1")
    for bad in ("", "x" * 256):
        with pytest.raises(ValueError, match="alpn"):
            TLS(alpn=[bad])


def test_versions() -> None:
    tls = TLS(minimum_version="1.2", maximum_version="1.3")
    assert (native(tls)["min_version"], native(tls)["max_version"]) == ("1.2", "1.3")
    with pytest.raises(ValueError, match="minimum_version must be"):
        TLS(minimum_version="1.1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="maximum_version must be"):
        TLS(maximum_version=1.3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="minimum_version is above maximum_version"):
        TLS(minimum_version="1.3", maximum_version="1.2")


def test_repr(tmp_path: Path, ca_pem: bytes, cert_pem: bytes, key_pem: bytes) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(ca_pem)
    tls = TLS(ca=[file, ca_pem], cert=cert_pem, key=key_pem.decode(), verify=False, alpn=["a"], minimum_version="1.3")
    assert repr(tls) == (
        f"TLS(ca=[{str(file)!r}, <PEM>], cert=<PEM>, key=<PEM>, verify=False, alpn=['a'], minimum_version='1.3')"
    )


# Choosing


def test_choose_for_ws() -> None:
    assert choose_ssl(False, None, None, "localhost") == (None, None)
    for ssl_argument in (True, False, TLS(), ssl.create_default_context()):
        with pytest.raises(ValueError, match="ssl argument is incompatible with a ws:// URI"):
            choose_ssl(False, ssl_argument, None, "localhost")


def test_choose_for_wss() -> None:
    context = ssl.create_default_context()
    tls = TLS(verify=False)
    assert choose_ssl(True, None, None, "localhost") == (TLS(), "localhost")
    assert choose_ssl(True, True, None, "localhost") == (TLS(), "localhost")
    assert choose_ssl(True, tls, "other", "localhost") == (tls, "other")
    assert choose_ssl(True, context, None, "localhost") == (context, "localhost")
    with pytest.raises(ValueError, match="ssl=False is incompatible with a wss:// URI"):
        choose_ssl(True, False, None, "localhost")
    with pytest.raises(TypeError, match="ssl must be"):
        choose_ssl(True, "ca.pem", None, "localhost")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "name"), [("example.com.", "example.com"), ("fe80::1%eth0", "fe80::1"), ("127.0.0.1", "127.0.0.1")]
)
def test_server_hostname(host: str, name: str) -> None:
    assert choose_ssl(True, None, None, host)[1] == name
