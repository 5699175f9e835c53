"""Heads of opening handshakes: the verdicts of our implementation, ``websockets`` and ``wsproto``, in one form."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import logging
from typing import Any

import h11
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.extensions.permessage_deflate import (
    ClientPerMessageDeflateFactory,
    PerMessageDeflate,
    ServerPerMessageDeflateFactory,
)
from websockets.http11 import Request as WebsocketsRequest
from websockets.server import ServerProtocol
from websockets.uri import parse_uri
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, RejectConnection, RejectData, Request
from wsproto.extensions import PerMessageDeflate as WsprotoDeflate
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from .core import Core

_LOGGER = logging.getLogger("differential.websockets")
_LOGGER.disabled = True

NONCE = b"sixteen bytes of"
KEY = base64.b64encode(NONCE).decode()


@dataclasses.dataclass(frozen=True)
class Offer:
    """Our offer of permessage-deflate."""

    server_reset: bool = False
    client_reset: bool = False
    server_bits: int | None = None
    client_bits: int | None = None


@dataclasses.dataclass(frozen=True)
class HeadCase:
    """A head.

    Attributes:
        kind: "request" or "response": the head that our side receives.
        faults: The number of known errors in it; with more than one, any of them may be reported.
        cuts: The positions at which it is divided.
    """

    kind: str
    head: bytes
    subprotocols: tuple[str, ...] = ()
    offer: Offer | None = None
    eof: bool = False
    faults: int = 0
    cuts: tuple[int, ...] = ()

    @property
    def pieces(self) -> list[bytes]:
        bounds = sorted({0, *(at for at in self.cuts if at < len(self.head)), len(self.head)})
        return [self.head[start:stop] for start, stop in itertools.pairwise(bounds)]

    def dump(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "head": self.head.hex()})

    @classmethod
    def load(cls, text: str) -> HeadCase:
        value = json.loads(text)
        offer = value.pop("offer")
        value |= {"head": bytes.fromhex(value["head"]), "offer": Offer(**offer) if offer else None}
        value |= {name: tuple(value[name]) for name in ("subprotocols", "cuts")}
        return cls(**value)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on a head.

    Attributes:
        kind: "accepted", "refused" (the head breaks a rule), "rejected" (a response with another status), "incomplete".
        status: Of the answer to a refused request, 0 if none is sent; of a response.
        text: The reason in the implementation's own words.
        deflate: Context takeover of our and the peer's compressor, and their windows; ``None``: no compression.
        key: The answer to the request's key.
    """

    kind: str
    status: int = 0
    text: str = ""
    subprotocol: str | None = None
    deflate: tuple[bool, bool, int, int] | None = None
    key: str = ""
    body: bytes = b""

    def __str__(self) -> str:
        if self.kind == "accepted":
            return f"accepted: subprotocol {self.subprotocol}, deflate {self.deflate}"
        return f"{self.kind} {self.status}: {self.text or len(self.body)}"


def ours(core: Core, case: HeadCase) -> Verdict:
    """Our verdict."""
    request: dict[str, Any] = {
        "do": case.kind,
        "pieces": [piece.hex() for piece in case.pieces],
        "subprotocols": case.subprotocols,
        "deflate": dataclasses.asdict(case.offer) if case.offer else None,
        "nonce": NONCE.hex(),
        "eof": case.eof,
    }
    answer = core.ask(request)
    if answer["verdict"] != "accepted":
        body = bytes.fromhex(answer.get("body", ""))
        return Verdict(answer["verdict"], answer.get("status", 0), answer.get("error", ""), body=body)
    deflate = answer["deflate"]
    return Verdict(
        "accepted",
        101,
        subprotocol=answer["subprotocol"],
        deflate=deflate
        and (deflate["local_reset"], deflate["remote_reset"], deflate["local_bits"], deflate["remote_bits"]),
        key=_accept_key(bytes.fromhex(answer["response"])),
    )


def _accept_key(response: bytes) -> str:
    for line in response.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "sec-websocket-accept":
            return value.strip()
    return ""


def websockets(case: HeadCase) -> Verdict:
    """The verdict of ``websockets``."""
    return _websockets_server(case) if case.kind == "request" else _websockets_client(case)


def _websockets_server(case: HeadCase) -> Verdict:
    offer = case.offer
    factories = []
    if offer is not None:
        factories.append(
            ServerPerMessageDeflateFactory(offer.server_reset, offer.client_reset, offer.server_bits, offer.client_bits)
        )

    def choose(_: ServerProtocol, offered: Any) -> Any:
        # Like ours: no common subprotocol is no reason to refuse.
        return next((name for name in case.subprotocols if name in offered), None)

    protocol = ServerProtocol(extensions=factories, select_subprotocol=choose, logger=_LOGGER)
    for piece in case.pieces:
        protocol.receive_data(piece)
    request = next((event for event in protocol.events_received() if isinstance(event, WebsocketsRequest)), None)
    if request is None:
        if protocol.handshake_exc is None:
            return Verdict("incomplete")
        answer = b"".join(protocol.data_to_send())
        status = int(answer.split(b" ")[1]) if answer else 0
        return Verdict("refused", status, _text(protocol.handshake_exc))
    response = protocol.accept(request)
    if response.status_code != 101:
        assert protocol.handshake_exc is not None
        return Verdict("refused", response.status_code, _text(protocol.handshake_exc))
    key = response.headers["Sec-WebSocket-Accept"]
    return Verdict("accepted", 101, "", protocol.subprotocol, _params(protocol.extensions), key)


def _websockets_client(case: HeadCase) -> Verdict:
    offer = case.offer
    factories = []
    if offer is not None:
        bits = True if offer.client_bits is None else offer.client_bits
        factories.append(
            ClientPerMessageDeflateFactory(offer.server_reset, offer.client_reset, offer.server_bits, bits)
        )
    uri = parse_uri("ws://localhost/")
    names: Any = list(case.subprotocols) or None
    protocol = ClientProtocol(uri, extensions=factories or None, subprotocols=names, logger=_LOGGER)
    protocol.key = KEY
    protocol.send_request(protocol.connect())
    for piece in case.pieces:
        protocol.receive_data(piece)
    if case.eof:
        protocol.receive_eof()
    exc = protocol.handshake_exc
    if isinstance(exc, InvalidStatus):
        return Verdict("rejected", exc.response.status_code, body=bytes(exc.response.body))
    if exc is not None:
        return Verdict("refused", 0, _text(exc))
    if not protocol.events_received():
        return Verdict("incomplete")
    return Verdict("accepted", 101, "", protocol.subprotocol, _params(protocol.extensions))


def _text(exc: BaseException | None) -> str:
    texts = []
    while exc is not None:
        texts.append(str(exc))
        exc = exc.__cause__
    return "; ".join(texts)


def _params(extensions: Any) -> tuple[bool, bool, int, int] | None:
    for extension in extensions:
        assert isinstance(extension, PerMessageDeflate)
        return (
            extension.local_no_context_takeover,
            extension.remote_no_context_takeover,
            extension.local_max_window_bits,
            extension.remote_max_window_bits,
        )
    return None


def wsproto(case: HeadCase) -> Verdict:
    """The verdict of ``wsproto``. Its compression parameters are its own: only the use of compression is reported."""
    client = case.kind == "response"
    connection = WSConnection(ConnectionType.CLIENT if client else ConnectionType.SERVER)
    extensions: Any = [WsprotoDeflate()] if case.offer is not None else []
    if client:
        connection.send(Request("localhost", "/", subprotocols=list(case.subprotocols), extensions=extensions))
        connection.handshake._nonce = KEY.encode()
    body = b""
    status = 0
    try:
        for piece in [*case.pieces, *([None] if case.eof else [])]:
            connection.receive_data(piece)
            for event in connection.events():
                if isinstance(event, Request):
                    names = [name for name in case.subprotocols if name in event.subprotocols]
                    chosen = names[0] if names else None
                    answer = connection.send(AcceptConnection(subprotocol=chosen, extensions=extensions))
                    agreed = b"permessage-deflate" in answer
                    return Verdict("accepted", 101, "", chosen, _agreed(agreed), _accept_key(answer))
                if isinstance(event, AcceptConnection):
                    return Verdict("accepted", 101, "", event.subprotocol, _agreed(bool(event.extensions)))
                if isinstance(event, RejectConnection):
                    status = event.status_code
                elif isinstance(event, RejectData):
                    body += event.data
                    if event.body_finished:
                        return Verdict("rejected", status, body=body)
    except (RemoteProtocolError, LocalProtocolError) as exc:
        hint = getattr(exc, "event_hint", None)
        return Verdict("refused", hint.status_code if hint is not None else 0, str(exc))
    except (ValueError, IndexError, h11.ProtocolError) as exc:
        return Verdict("refused", 0, f"{type(exc).__name__}: {exc}")
    return Verdict("rejected", status, body=body) if status and case.eof else Verdict("incomplete")


def _agreed(agreed: bool) -> tuple[bool, bool, int, int] | None:
    return (False, False, 15, 15) if agreed else None
