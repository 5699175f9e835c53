"""Redaction: secrets that displayed text must not contain."""

from __future__ import annotations

import pytest

from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("these functions are ours")

if IS_WIRESPEED:
    from wirespeed._redaction import mask_header, mask_query, mask_uri, printable

SECRETS = [
    "Authorization",
    "proxy-authorization",
    "COOKIE",
    "Set-Cookie",
    "X-Cookie",
    "Sec-WebSocket-Protocol",
    "X-Api-Key",
    "apikey",
    "X-Auth",
    "X-CSRF-Token",
    "X-Amz-Security-Token",
    "Client-Secret",
    "X-Password",
    "SessionId",
]
REFERENCES = ["Location", "content-location", "REFERER"]


@pytest.mark.parametrize("name", SECRETS)
def test_credentials_in_a_header(name: str) -> None:
    assert mask_header(name, "s3cret") == "***"
    # There is nothing to hide.
    assert mask_header(name, "") == ""


@pytest.mark.parametrize("name", REFERENCES)
def test_credentials_in_a_header_that_is_a_uri(name: str) -> None:
    assert mask_header(name, "https://me:s3cret@example.com/path?token=s3cret") == "https://***@example.com/path?***"
    assert mask_header(name, "/path") == "/path"


@pytest.mark.parametrize(
    "name",
    ["Host", "Sec-WebSocket-Key", "SEC-WEBSOCKET-ACCEPT", "WWW-Authenticate", "proxy-authenticate", "Keep-Alive", ""],
)
def test_other_headers(name: str) -> None:
    assert mask_header(name, "value?with=question") == "value?with=question"


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("/", "/"),
        ("/path?", "/path?"),
        ("/path?a", "/path?***"),
        ("/path?a?b#c", "/path?***"),
        ("?a", "?***"),
        ("", ""),
    ],
)
def test_query(target: str, shown: str) -> None:
    assert mask_query(target) == shown
    assert mask_uri(f"ws://localhost{target}") == f"ws://localhost{shown}"


def test_long_text_and_control_characters() -> None:
    assert printable("x" * 500) == "x" * 500
    assert printable("x" * 501) == "x" * 497 + "..."
    assert printable("one\r\ntwo\u2028\udc80 \xe9", limit=99) == "one\\r\\ntwo\\u2028\\udc80 \xe9"
    assert printable("abcdefgh", limit=5) == "ab..."
