"""The system's certificate authorities change while a program runs: the next connection uses the new ones."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from support.brokers import wait_for
from support.certificates import Certificates
from support.servers import Serving
from support.subject import connect

Accepted = Callable[[], tuple[bool, bool]]


def is_accepted(uri: str) -> bool:
    try:
        with connect(uri) as ws:
            ws.send("hello")
            # The ticket with which the session could be resumed arrives with the answer.
            assert ws.recv(timeout=20) == "hello"
    except ssl.SSLCertVerificationError:
        return False
    return True


@pytest.fixture
def accepted(certificates: Certificates, serving: Serving) -> Accepted:
    """Returns whether servers of one authority and of another one are accepted."""
    one = serving(ssl_context=certificates.server_context())
    other = serving(ssl_context=certificates.unknown_authority_context())
    return lambda: (is_accepted(one.uri), is_accepted(other.uri))


def replace(source: str, path: Path) -> None:
    shutil.copy(source, f"{path}.new")
    os.replace(f"{path}.new", path)


def write(source: str, path: Path) -> None:
    path.write_bytes(Path(source).read_bytes())


@pytest.mark.parametrize("change", [replace, write])
def test_file_of_authorities_changes(
    certificates: Certificates,
    accepted: Accepted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[str, Path], None],
) -> None:
    bundle = tmp_path / "bundle.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    change(certificates.ca_file, bundle)
    assert accepted() == (True, False)
    change(certificates.other_ca_file, bundle)
    assert accepted() == (False, True)
    bundle.write_bytes(Path(certificates.ca_file).read_bytes() + Path(certificates.other_ca_file).read_bytes())
    assert accepted() == (True, True)


@pytest.mark.wirespeed_only("OpenSSL finds only files whose names are hashes")
def test_folder_of_authorities_changes(
    certificates: Certificates, accepted: Accepted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    shutil.copy(certificates.ca_file, tmp_path / "one.pem")
    assert accepted() == (True, False)
    shutil.copy(certificates.other_ca_file, tmp_path / "other.pem")
    assert accepted() == (True, True)
    (tmp_path / "one.pem").unlink()
    assert accepted() == (False, True)
    # Files in a folder are checked once a second.
    write(certificates.ca_file, tmp_path / "other.pem")
    wait_for(lambda: accepted() == (True, False))


@pytest.mark.wirespeed_only("ssl takes a missing file for an empty one")
def test_file_of_authorities_is_missing_for_a_while(
    certificates: Certificates, accepted: Accepted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure names the file, and is a transient one that a client retries."""
    bundle = tmp_path / "bundle.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    for content in (None, b"no certificate"):
        if content is not None:
            bundle.write_bytes(content)
        with pytest.raises(ssl.SSLCertVerificationError, match=r"system has no trusted authorities.*bundle\.pem"):
            connect("wss://localhost:1")
    replace(certificates.ca_file, bundle)
    assert accepted() == (True, False)
    bundle.unlink()
    with pytest.raises(OSError, match=r"No such file or directory.*bundle\.pem"):
        connect("wss://localhost:1")
    replace(certificates.ca_file, bundle)
    assert accepted() == (True, False)
