"""Redirects: those to follow, and headers that must not be sent along."""

from __future__ import annotations

import pytest

from wirespeed._net.uri import (
    MAX_REDIRECTS,
    RedirectChain,
    cross_origin_headers,
    redirect_location,
    resolve_location,
)
from wirespeed.datastructures import Headers, Response
from wirespeed.exceptions import InvalidStatus, InvalidURI, SecurityError


def redirect(location: str, status: int = 302) -> InvalidStatus:
    return InvalidStatus(Response(status, "Found", Headers(Location=location)))


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_statuses(status: int) -> None:
    assert redirect_location(redirect("/x", status).response) == "/x"


@pytest.mark.parametrize("status", [200, 201, 304, 305, 306, 309, 401, 503])
def test_other_statuses(status: int) -> None:
    exc = redirect("/x", status)
    assert redirect_location(exc.response) is None
    with pytest.raises(InvalidStatus) as raised:
        RedirectChain("ws://localhost/").follow(exc)
    assert raised.value is exc


@pytest.mark.parametrize("headers", [[], [("Location", "")], [("Location", "/a"), ("Location", "/b")]])
def test_no_single_location(headers: list[tuple[str, str]]) -> None:
    assert redirect_location(Response(302, "Found", Headers(headers))) is None


@pytest.mark.parametrize(
    ("uri", "location", "new"),
    [
        ("ws://host/a/b?c", "/d", "ws://host/d"),
        ("ws://host/a/b?c", "d", "ws://host/a/d"),
        ("ws://host/a/b?c", "../d?e", "ws://host/d?e"),
        ("ws://host/a/b?c", "?e", "ws://host/a/b?e"),
        ("ws://host", "d", "ws://host/d"),
        ("wss://host:1/a", "//other/d", "wss://other/d"),
        ("ws://host/a", "ws://other:1/d", "ws://other:1/d"),
        ("ws://host/a", "wss://host/d", "wss://host/d"),
        ("ws://host/a", "http://other/d", "ws://other/d"),
        ("ws://host/a", "HTTPS://other/d", "wss://other/d"),
        ("ws://host/a", "/d#fragment", "ws://host/d"),
        ("ws://host/a", "/d?x=http://y/", "ws://host/d?x=http://y/"),
        ("ws://host/a", "/caf\xc3\xa9", "ws://host/caf\u00e9"),
        ("ws://host/a", "/caf\xe9", "ws://host/caf\u00e9"),
        # Credentials stay with their origin.
        ("ws://u:p@host/a", "/d", "ws://u:p@host/d"),
        ("ws://u:p@host/a", "ws://host:80/d", "ws://u:p@host:80/d"),
        ("ws://u:p@host/a", "//HOST/d", "ws://u:p@HOST/d"),
        ("ws://u:p@host/a", "ws://v:q@host/d", "ws://v:q@host/d"),
        ("ws://u:p@host/a", "ws://other/d?e", "ws://other/d?e"),
        ("ws://u:p@host/a", "//other", "ws://other"),
        ("ws://u:p@host/a", "ws://v:q@other/d", "ws://other/d"),
        ("ws://u:p@host/a", "wss://host/d", "wss://host/d"),
        ("ws://u:p@host/a", "ws://host:81/d", "ws://host:81/d"),
    ],
)
def test_resolve(uri: str, location: str, new: str) -> None:
    assert resolve_location(uri, location) == new


@pytest.mark.parametrize(
    "location",
    ["ftp://host/", "ws://", "ws://host:port/", "ws://[::1", "/a b", "/a\tb", "//", "mailto:a@b", "wss://u@host/"],
)
def test_resolve_invalid(location: str) -> None:
    with pytest.raises(InvalidURI):
        resolve_location("ws://localhost/", location)


def test_for_another_origin() -> None:
    headers = Headers(
        [
            ("Authorization", "a"),
            ("COOKIE", "b"),
            ("proxy-authorization", "c"),
            ("X", "d"),
            ("X", "e"),
            ("Origin", "f"),
            ("host", "g"),
        ]
    )
    assert list(cross_origin_headers(headers).raw_items()) == [("X", "d"), ("X", "e"), ("Origin", "f")]
    assert len(headers) == 6


HEADERS = {"Authorization": "a", "Host": "b", "X": "d"}


def test_same_origin_keeps_credentials() -> None:
    chain = RedirectChain("ws://u:p@localhost:80/", HEADERS)
    chain.follow(redirect("ws://LOCALHOST/x"))
    assert chain.headers == Headers(HEADERS)
    assert chain.uri == "ws://u:p@LOCALHOST/x"
    assert chain.parsed.user_info == ("u", "p")


@pytest.mark.parametrize(
    "location", ["ws://localhost:81/", "ws://other/", "wss://localhost/", "//other/", "https://localhost/"]
)
def test_cross_origin_drops_credentials(location: str) -> None:
    given = Headers(HEADERS)
    chain = RedirectChain("ws://u:p@localhost/", given)
    chain.follow(redirect(location))
    assert chain.headers == Headers(X="d")
    assert chain.parsed.user_info is None
    assert given == Headers(HEADERS)
    # Coming back does not bring them back.
    if not chain.parsed.secure:
        chain.follow(redirect("ws://localhost/"))
        assert chain.headers == Headers(X="d")
        assert chain.parsed.user_info is None


def test_no_headers() -> None:
    chain = RedirectChain("ws://localhost/")
    chain.follow(redirect("ws://other/"))
    assert chain.headers is None


@pytest.mark.parametrize("location", ["ws://localhost/", "http://localhost/", "ws://u:s3cret@other/"])
def test_downgrade(location: str) -> None:
    chain = RedirectChain("wss://localhost/", HEADERS)
    with pytest.raises(SecurityError, match="cannot follow redirect to non-secure URI ws://") as raised:
        chain.follow(redirect(location))
    assert isinstance(raised.value.__cause__, InvalidStatus)
    assert "s3cret" not in str(raised.value)
    assert chain.uri == "wss://localhost/"
    assert chain.headers == Headers(HEADERS)


def test_upgrade() -> None:
    chain = RedirectChain("ws://localhost/")
    chain.follow(redirect("wss://localhost/"))
    assert chain.parsed.secure
    with pytest.raises(SecurityError):
        chain.follow(redirect("ws://localhost/"))


def test_loop() -> None:
    chain = RedirectChain("ws://localhost/")
    for _ in range(MAX_REDIRECTS):
        chain.follow(redirect("/"))
    with pytest.raises(SecurityError, match="more than 10 redirects"):
        chain.follow(redirect("/"))


def test_no_redirects_allowed() -> None:
    with pytest.raises(SecurityError, match="more than 0 redirects"):
        RedirectChain("ws://localhost/", max_redirects=0).follow(redirect("/"))


@pytest.mark.parametrize("location", ["/x", "ws://other/"])
def test_socket(location: str) -> None:
    with pytest.raises(ValueError, match=r"redirect to ws://.* with a preexisting socket"):
        RedirectChain("ws://localhost/", sock=True).follow(redirect(location))


def test_unix() -> None:
    chain = RedirectChain("ws://localhost/", unix=True)
    chain.follow(redirect("/x"))
    assert chain.uri == "ws://localhost/x"
    with pytest.raises(ValueError, match="cross-origin redirect to ws://other/ with a Unix socket"):
        chain.follow(redirect("ws://other/"))


def test_explicit_address() -> None:
    chain = RedirectChain("ws://localhost/", address=True)
    chain.follow(redirect("/x"))
    with pytest.raises(ValueError, match="with an explicit host or port"):
        chain.follow(redirect("ws://other/"))


def test_server_hostname() -> None:
    """It belongs to one host, on any port."""
    chain = RedirectChain("ws://localhost./")
    assert chain.server_hostname(None) is None
    for location, name in (
        ("wss://LOCALHOST:81/", "named"),
        ("wss://other/", None),
        ("/x", None),
        ("wss://localhost/", "named"),
    ):
        chain.follow(redirect(location))
        assert chain.server_hostname("named") == name
    assert chain.copy().server_hostname("named") == "named"


def test_invalid_start() -> None:
    with pytest.raises(InvalidURI):
        RedirectChain("http://localhost/")
