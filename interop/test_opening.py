"""The opening handshake: subprotocols, headers, cookies, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.link import Link
from peers.contract import REFUSAL
from wirespeed import InvalidStatus


async def test_subprotocol(link: Link) -> None:
    async with link.open(offer=["superchat", "chat"], subprotocols=["chat"]) as pair:
        assert pair.ours.subprotocol == "chat"
        await pair.ours.send("hello")
        assert await pair.ours.recv() == "hello"
    assert (await pair.report()).subprotocol == "chat"


async def test_subprotocol_preferred_by_the_server(link: Link) -> None:
    """Both ends know both subprotocols and prefer different ones."""
    ours = ["superchat", "chat"] if link.peer.end == "client" else ["chat", "superchat"]
    chosen = "chat" if "prefer a subprotocol" in link.peer.lacks else "superchat"
    async with link.open(offer=["chat", "superchat"], subprotocols=ours) as pair:
        assert pair.ours.subprotocol == chosen
    assert (await pair.report()).subprotocol == chosen


@pytest.mark.peers("go without a subprotocol")
async def test_no_subprotocol_in_common(link: Link) -> None:
    async with link.open(offer=["superchat", "chat"], subprotocols=["news"]) as pair:
        assert pair.ours.subprotocol is None
        await pair.ours.send("hello")
        assert await pair.ours.recv() == "hello"
    assert (await pair.report()).subprotocol is None


@pytest.mark.peers("send headers", end="client")
async def test_headers_of_peer_client(link: Link) -> None:
    async with link.open(headers=["X-Interop: one, two", "Authorization: Bearer k-17"]) as pair:
        headers = pair.ours.request.headers
        assert headers["X-Interop"] == "one, two"
        assert headers["Authorization"] == "Bearer k-17"


@pytest.mark.peers("send cookies", end="client")
async def test_cookie_of_peer_client(link: Link) -> None:
    async with link.open(cookie="token=k-17") as pair:
        assert "token=k-17" in pair.ours.request.headers["Cookie"].split("; ")


@pytest.mark.peers(end="server")
async def test_headers_of_our_client(link: Link) -> None:
    sent = {"X-Interop": "one, two", "Authorization": "Bearer k-17", "Cookie": "token=k-17"}
    async with link.open("headers", additional_headers=sent, origin=None, user_agent_header="interop") as pair:
        received = json.loads(await pair.ours.recv())
    assert {name: received[name.lower()] for name in sent} == sent
    assert received["user-agent"] == "interop"
    assert received["upgrade"].lower() == "websocket"


@pytest.mark.peers(end="client")
async def test_our_server_refuses(link: Link) -> None:
    def refuse(ws: Any, request: Any) -> Any:
        return ws.respond(403, REFUSAL)

    taken: list[Any] = []
    async with link.listen(taken.append, process_request=refuse) as port:
        report = await link.report(await link.dial(port, "echo"))
    assert not taken
    assert not report.opened
    assert report.error
    if "tell the status" not in link.peer.lacks:
        assert report.status == 403
    if "tell the body" not in link.peer.lacks:
        assert report.body == REFUSAL


@pytest.mark.peers(end="server")
async def test_peer_server_refuses(link: Link) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with link.open("reject"):
            pass
    response = caught.value.response
    assert response.status_code == 403
    assert response.body == REFUSAL.encode()


@pytest.mark.peers(name="chromium")
async def test_origin(link: Link) -> None:
    """A browser sends the origin of its page: the expected origin is accepted, others are refused."""
    origins: list[str] = []

    def note(ws: Any, request: Any) -> None:
        origins.append(request.headers["Origin"])

    async with link.open(process_request=note):
        pass
    async with link.open(origins=origins) as pair:
        await pair.ours.send("hello")
        assert await pair.ours.recv() == "hello"
    taken: list[Any] = []
    async with link.listen(taken.append, origins=["https://example.com"]) as port:
        report = await link.report(await link.dial(port, "echo"))
    assert not taken
    assert not report.opened
    assert report.code == 1006
