"""Changed files of ``TLS``: a client uses their content at the time of connecting."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wirespeed
from support.certificates import Certificates
from support.scripted import ScriptedServer, Wire
from support.servers import Serving
from wirespeed.sync import connect

pytestmark = pytest.mark.wirespeed_only("of a TLS of ours")


def is_accepted(uri: str, tls: wirespeed.TLS) -> bool:
    try:
        with connect(uri, ssl=tls, proxy=None):
            return True
    except ssl.SSLCertVerificationError:
        return False


def replace(path: Path, *sources: str) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(b"".join(Path(source).read_bytes() for source in sources))
    new.replace(path)


@pytest.fixture
def servers(certificates: Certificates, serving: Serving) -> tuple[str, str]:
    """Servers of one authority and of another one."""
    contexts = certificates.server_context(), certificates.unknown_authority_context()
    one, other = (serving(ssl_context=context).uri for context in contexts)
    return one, other


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "wirespeed.client")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "wirespeed.client"]


def test_authorities_are_replaced(
    certificates: Certificates, servers: tuple[str, str], tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    file = tmp_path / "ca.pem"
    replace(file, certificates.ca_file)
    tls = wirespeed.TLS(ca=file)
    for _ in range(2):
        assert [is_accepted(uri, tls) for uri in servers] == [True, False]
    for sources, accepted in (
        ([certificates.other_ca_file], [False, True]),
        ([certificates.ca_file, certificates.other_ca_file], [True, True]),
        ([certificates.ca_file], [True, False]),
    ):
        replace(file, *sources)
        assert [is_accepted(uri, tls) for uri in servers] == accepted
    assert not warnings()


def test_unusable_file_is_reported_once_and_changes_nothing(
    certificates: Certificates, servers: tuple[str, str], tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    file = tmp_path / "ca.pem"
    replace(file, certificates.ca_file)
    tls = wirespeed.TLS(ca=file)
    for count, content in ((1, None), (2, b"no certificate")):
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        for _ in range(2):
            assert [is_accepted(uri, tls) for uri in servers] == [True, False]
        assert len(warnings()) == count
        assert str(file) in warnings()[-1]
    replace(file, certificates.other_ca_file)
    assert [is_accepted(uri, tls) for uri in servers] == [False, True]
    assert len(warnings()) == 2


def test_client_reconnects_with_a_renewed_certificate(
    certificates: Certificates, tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    """Certificate and key change one after the other: a client that connects in between keeps the old ones."""
    cert, key = tmp_path / "client.pem", tmp_path / "client.key"
    replace(cert, certificates.client_cert)
    replace(key, certificates.client_key)
    tls = wirespeed.TLS(ca=certificates.ca_file, cert=cert, key=key)
    new = certificates.ca.issue_cert("renewed@example.com")

    def script(wire: Wire) -> Any:
        assert isinstance(wire.sock, ssl.SSLSocket)
        wire.accept()
        certificate: Any = wire.sock.getpeercert()
        wire.read_until_close()
        return certificate["subjectAltName"][0][1]

    async def main(uri: str) -> None:
        connections = 0
        async for ws in wirespeed.connect(
            uri, ssl=tls, proxy=None, reconnect_after_close=True, reconnect_delays=lambda: [0.01] * 9
        ):
            await ws.close()
            connections += 1
            match connections:
                case 1:
                    cert.write_bytes(new.cert_chain_pems[0].bytes())
                case 2:
                    new.private_key_pem.write_to_path(str(key))
                case _:
                    break

    with ScriptedServer(script, ssl_context=certificates.server_context(client_required=True)) as server:
        asyncio.run(asyncio.wait_for(main(server.secure_uri), 60))
    assert server.results == ["client@example.com"] * 2 + ["renewed@example.com"]
    assert len(warnings()) == 1
    assert "the private key is not that of the certificate" in warnings()[0]
