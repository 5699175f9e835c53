"""Tokens and keys of issuers: accepted ones, and log records about refused ones."""

from __future__ import annotations

import base64
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from engine.callers import OTHER_SECRET, SECRET, bearer, dial, next_session, status, wait_for
from wirespeed.engine import JWT, Engine

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

P_521_BYTES = 66


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int, size: int) -> str:
    return encode(value.to_bytes(size, "big"))


def message(algorithm: str, **header: str) -> str:
    claims = {"sub": "ann", "exp": int(time.time()) + 600}
    return encode(json.dumps({"alg": algorithm, **header}).encode()) + "." + encode(json.dumps(claims).encode())


def authorization(token: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": "Bearer " + token}}


def key_set(path: Path, *keys: dict[str, str]) -> Path:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"keys": keys}))
    fresh.replace(path)
    return path


class EdKey:
    """A key of an issuer on the curve Ed25519."""

    def __init__(self) -> None:
        self.private = ed25519.Ed25519PrivateKey.generate()
        raw = self.private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.jwk = {"kty": "OKP", "crv": "Ed25519", "x": encode(raw), "kid": "ed"}

    def token(self, algorithm: str, **header: str) -> str:
        text = message(algorithm, **header)
        return f"{text}.{encode(self.private.sign(text.encode()))}"


@pytest.mark.parametrize("configured", ["EdDSA", "Ed25519"])
@pytest.mark.parametrize("said", ["EdDSA", "Ed25519"])
@pytest.mark.parametrize("of_key", [{}, {"alg": "EdDSA"}, {"alg": "Ed25519"}])
def test_ed25519_has_two_names(configured: str, said: str, of_key: dict[str, str], tmp_path: Path) -> None:
    """RFC 9864 names the curve, RFC 8037 did not; issuers and libraries use either."""
    key = EdKey()
    jwks = key_set(tmp_path / "keys.json", {**key.jwk, **of_key})
    with Engine("127.0.0.1", auth=JWT(jwks=jwks, algorithms=[configured])) as engine:
        assert status(engine, "/", **authorization(key.token(said, kid="ed"))) == 101
        assert status(engine, "/", **authorization(EdKey().token(said, kid="ed"))) == 401


def test_es512(tmp_path: Path) -> None:
    private = ec.generate_private_key(ec.SECP521R1())
    public = private.public_key()
    text = message("ES512", kid="p")
    signature = decode_dss_signature(private.sign(text.encode(), ec.ECDSA(hashes.SHA512())))
    signed = f"{text}.{encode(b''.join(part.to_bytes(P_521_BYTES, 'big') for part in signature))}"
    forged = f"{text}.{encode(b''.join(part.to_bytes(P_521_BYTES, 'big') for part in reversed(signature)))}"
    point = public.public_numbers()
    jwk = {"kty": "EC", "crv": "P-521", "x": number(point.x, P_521_BYTES), "y": number(point.y, P_521_BYTES)}
    jwks = key_set(tmp_path / "keys.json", {**jwk, "kid": "p", "alg": "ES512"})
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for auth in (JWT(jwks=jwks, algorithms=["ES512"]), JWT(pem, ["ES512"])):
        with Engine("127.0.0.1", auth=auth) as engine:
            assert status(engine, "/", **authorization(signed)) == 101
            assert status(engine, "/", **authorization(forged)) == 401
    with pytest.raises(ValueError, match="ES256 needs the curve P-256"):
        JWT(pem, ["ES256"])


def test_a_set_may_have_many_keys(tmp_path: Path) -> None:
    """A token that names none of them is checked against a bounded number."""
    keys = [EdKey() for _ in range(40)]
    jwks = key_set(tmp_path / "keys.json", *({**key.jwk, "kid": str(place)} for place, key in enumerate(keys)))
    with Engine("127.0.0.1", auth=JWT(jwks=jwks, algorithms=["EdDSA"])) as engine:
        assert status(engine, "/", **authorization(keys[39].token("EdDSA", kid="39"))) == 101
        assert status(engine, "/", **authorization(keys[31].token("EdDSA"))) == 101
        assert status(engine, "/", **authorization(keys[39].token("EdDSA"))) == 401
        wait_for(lambda: engine.stats()["tokens_denied_by_reason"]["key_id"] == 1, "it is counted")


def test_log_has_the_reason_of_refused_tokens(caplog: pytest.LogCaptureFixture) -> None:
    """Each kind is logged separately: a flood of one does not hide the others."""
    auth = JWT(SECRET, ["HS256"], audience="games", leeway=0)
    with caplog.at_level(logging.INFO, "wirespeed.engine"), Engine("127.0.0.1", auth=auth) as engine:
        for _ in range(20):
            assert status(engine, "/") == 401
        for headers, code in (
            (bearer(sub="ann", aud="games", exp=1), 401),
            (bearer(OTHER_SECRET, sub="ann", aud="games"), 401),
            (bearer(sub="ann", aud="other"), 403),
            (bearer(sub="ann"), 403),
        ):
            assert status(engine, "/", additional_headers=headers) == code
        why = [
            "unauthorized: no token",
            "unauthorized: the token has expired",
            "unauthorized: the token's signature is wrong",
            "forbidden: the token is for another audience",
            'forbidden: the token lacks the claim "aud"',
        ]
        wait_for(lambda: all(any(text in line for line in caplog.messages) for text in why), f"{caplog.messages}")
        wait_for(lambda: sum(engine.stats()["tokens_denied_by_reason"].values()) == 24, "they are counted")
        counts = engine.stats()["tokens_denied_by_reason"]
        assert {name: count for name, count in counts.items() if count} == {
            "missing": 20,
            "expired": 1,
            "signature": 1,
            "audience": 1,
            "missing_claim": 1,
        }
        assert engine.stats()["handshakes_failed_by_reason"]["unauthorized"] == 22
        assert 'wirespeed_tokens_denied_total{reason="expired"} 1' in engine.metrics()


@pytest.mark.parametrize("how", ["handshake", "refresh"])
def test_unreadable_key_file_is_logged(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = EdKey()
    jwks = key_set(tmp_path / "keys.json", key.jwk)
    auth = JWT(jwks=jwks, algorithms=["EdDSA"])
    with Engine("127.0.0.1", auth=auth) as engine, dial(engine, "/", **authorization(key.token("EdDSA"))):
        session = next_session(engine)
        with caplog.at_level(logging.INFO, "wirespeed.engine"):
            assert engine.stats()["key_files_failed"] == 0

            def look() -> None:
                # The keys that were read before stay in use.
                if how == "refresh":
                    session.refresh(key.token("EdDSA"))
                else:
                    assert status(engine, "/", **authorization(key.token("EdDSA"))) == 101

            def failed(count: int) -> bool:
                look()
                return bool(engine.stats()["key_files_failed"] == count)

            jwks.write_text("no keys")
            wait_for(lambda: failed(1), "it is counted")
            assert "wirespeed_key_files_failed 1" in engine.metrics()
            wait_for(lambda: any(str(jwks) in line for line in caplog.messages), f"{caplog.messages}")
            record = next(record for record in caplog.records if str(jwks) in record.getMessage())
            assert record.levelno == logging.ERROR
            assert "stay in use" in record.getMessage()
            key_set(jwks, key.jwk)
            wait_for(lambda: failed(0), "it can be read again")
            wait_for(lambda: "the key file was read again" in caplog.messages, f"{caplog.messages}")
