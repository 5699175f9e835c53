"""``SSLKEYLOGFILE``: the secrets of connections, for programs that decrypt traffic, such as Wireshark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import wirespeed
from support.certificates import Certificates
from support.servers import WebSocketsServer
from wirespeed.sync import connect

pytestmark = pytest.mark.wirespeed_only("of a TLS of ours")


def secrets(path: Path) -> set[str]:
    return {line for line in path.read_text().splitlines() if line.startswith("CLIENT_TRAFFIC_SECRET_0 ")}


def test_secrets_are_those_of_the_server(
    certificates: Certificates,
    serving: Callable[..., WebSocketsServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = certificates.server_context()
    context.keylog_filename = str(tmp_path / "server")
    server, tls = serving(ssl_context=context), wirespeed.TLS(ca=certificates.ca_file)
    with connect(server.uri, ssl=tls, proxy=None):
        pass
    unnamed = secrets(tmp_path / "server")
    for name in ("one", "other"):
        monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / name))
        with connect(server.uri, ssl=tls, proxy=None):
            pass
    one, other = secrets(tmp_path / "one"), secrets(tmp_path / "other")
    assert (len(unnamed), len(one), len(other)) == (1, 1, 1)
    assert unnamed | one | other == secrets(tmp_path / "server")


def test_file_that_cannot_be_written(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "nowhere" / "keys"))
    with pytest.raises(ValueError, match=r"SSLKEYLOGFILE: .*nowhere/keys: No such file or directory"):
        connect("wss://localhost:1", ssl=wirespeed.TLS(ca=certificates.ca_file), proxy=None)
