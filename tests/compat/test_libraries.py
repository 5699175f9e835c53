"""Libraries from PyPI that build on websockets, under ``wirespeed.patch()``, against peers of websockets.

Each runs in a process of its own. Objects that the peers need are imported from websockets before it is patched.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("websockets", minversion="17")

BEGIN = """
import asyncio, contextlib, json, logging, threading
from websockets.asyncio.client import connect as their_connect
from websockets.asyncio.server import serve as their_serve
from wirespeed import patch
patch()
import wirespeed, websockets

def address(server, path=""):
    return f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
"""


def run(library: str, code: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: it is in the dependency group compat")
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(code)], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1:] == ["wirespeed"], done.stdout + done.stderr


def test_gql() -> None:
    """A GraphQL client, with a subscription: graphql-transport-ws."""
    run(
        "gql",
        """
        from gql import Client, gql
        from gql.transport.websockets import WebsocketsTransport

        async def graphql(ws):
            assert ws.subprotocol == "graphql-transport-ws"
            async for text in ws:
                message = json.loads(text)
                if message["type"] == "connection_init":
                    await ws.send(json.dumps({"type": "connection_ack"}))
                elif message["type"] == "subscribe":
                    for number in range(3):
                        payload = {"data": {"number": number}}
                        await ws.send(json.dumps({"id": message["id"], "type": "next", "payload": payload}))
                    await ws.send(json.dumps({"id": message["id"], "type": "complete"}))

        async def main():
            async with their_serve(graphql, "127.0.0.1", 0, subprotocols=["graphql-transport-ws"]) as server:
                transport = WebsocketsTransport(
                    url=address(server), subprotocols=[WebsocketsTransport.GRAPHQLWS_SUBPROTOCOL]
                )
                async with Client(transport=transport) as session:
                    connection = transport.adapter.websocket
                    assert isinstance(connection, wirespeed.ClientConnection)
                    assert "Sec-WebSocket-Accept" in transport.response_headers
                    results = [result async for result in session.subscribe(gql("subscription { number }"))]
                    assert results == [{"number": 0}, {"number": 1}, {"number": 2}]
                    assert await session.execute(gql("{ number }")) == {"number": 0}
                assert connection.state is websockets.State.CLOSED
            print("wirespeed")

        asyncio.run(asyncio.wait_for(main(), 20))
        """,
    )


REALTIME = """
        import os
        from openai import AsyncOpenAI, OpenAI

        async def realtime(ws):
            assert ws.request.headers["Authorization"] == "Bearer key"
            assert ws.request.path.startswith("/v1/realtime?model=")
            await ws.send(json.dumps({"type": "session.created", "event_id": "1", "session": {"type": "realtime"}}))
            async for text in ws:
                event = json.loads(text)
                answer = {"type": "conversation.item.created", "event_id": "2", "item": event["item"]}
                await ws.send(json.dumps(answer))

        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
"""


def test_openai_asyncio() -> None:
    """A client of a speech service."""
    run(
        "openai",
        REALTIME
        + """
        async def main():
            async with their_serve(realtime, "127.0.0.1", 0) as server:
                client = AsyncOpenAI(api_key="key", websocket_base_url=address(server, "/v1"))
                async with client.realtime.connect(model="m") as connection:
                    assert isinstance(connection._connection, wirespeed.ClientConnection)
                    assert (await connection.recv()).type == "session.created"
                    await connection.conversation.item.create(item=item)
                    event = await connection.recv()
                    assert event.item.content[0].text == "hello"
                await client.close()
            print("wirespeed")

        asyncio.run(asyncio.wait_for(main(), 20))
        """,
    )


def test_openai_blocking() -> None:
    """A client of a speech service, without a loop."""
    run(
        "openai",
        REALTIME
        + """
        def main(url):
            with OpenAI(api_key="key", websocket_base_url=url) as client:
                with client.realtime.connect(model="m") as connection:
                    assert isinstance(connection._connection, wirespeed.sync.ClientConnection)
                    assert connection.recv().type == "session.created"
                    connection.conversation.item.create(item=item)
                    assert connection.recv().item.content[0].text == "hello"

        async def serve():
            async with their_serve(realtime, "127.0.0.1", 0) as server:
                await asyncio.to_thread(main, address(server, "/v1"))
            print("wirespeed")

        asyncio.run(asyncio.wait_for(serve(), 20))
        """,
    )


def test_ocpp() -> None:
    """Charging stations and their central system, both on our library."""
    run(
        "ocpp",
        """
        from ocpp.routing import on
        from ocpp.v201 import ChargePoint, call, call_result

        class Central(ChargePoint):
            @on("BootNotification")
            def boot(self, charging_station, reason, **kwargs):
                return call_result.BootNotification(current_time="2026-01-01T00:00:00Z", interval=10, status="Accepted")

        async def handler(ws):
            assert isinstance(ws, wirespeed.ServerConnection)
            assert ws.subprotocol == "ocpp2.0.1"
            with contextlib.suppress(websockets.exceptions.ConnectionClosedOK):
                await Central(ws.request.path.strip("/"), ws).start()

        async def main():
            async with websockets.serve(handler, "127.0.0.1", 0, subprotocols=["ocpp2.0.1"]) as server:
                for connect in (websockets.connect, their_connect):
                    async with connect(address(server, "/CP_1"), subprotocols=["ocpp2.0.1"]) as ws:
                        assert isinstance(ws, wirespeed.ClientConnection) == (connect is not their_connect)
                        station = ChargePoint("CP_1", ws)
                        starting = asyncio.create_task(station.start())
                        answer = await station.call(
                            call.BootNotification(
                                charging_station={"model": "M", "vendor_name": "V"}, reason="PowerUp"
                            )
                        )
                        assert (answer.interval, answer.status) == (10, "Accepted")
                        starting.cancel()
            print("wirespeed")

        asyncio.run(asyncio.wait_for(main(), 20))
        """,
    )


def test_pygls() -> None:
    """A language server for editors, in a thread."""
    run(
        "pygls",
        """
        import socket
        from lsprotocol import types
        from pygls.lsp.server import LanguageServer
        import websockets.asyncio.server

        seen = []
        language = LanguageServer("test", "1")

        @language.feature(types.TEXT_DOCUMENT_HOVER)
        def hover(ls, params):
            return types.Hover(contents=f"line {params.position.line}")

        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        thread = threading.Thread(target=language.start_ws, args=("127.0.0.1", port))
        thread.start()

        async def main():
            while True:
                try:
                    ws = await their_connect(f"ws://127.0.0.1:{port}")
                    break
                except OSError:
                    await asyncio.sleep(0.02)
            identifier = 0

            async def ask(method, params):
                nonlocal identifier
                identifier += 1
                await ws.send(json.dumps({"jsonrpc": "2.0", "id": identifier, "method": method, "params": params}))
                while True:
                    answer = json.loads(await ws.recv())
                    if answer.get("id") == identifier:
                        return answer["result"]

            result = await ask("initialize", {"capabilities": {}, "processId": None, "rootUri": None})
            assert result["capabilities"]["hoverProvider"]
            await ws.send(json.dumps({"jsonrpc": "2.0", "method": "initialized", "params": {}}))
            where = {"textDocument": {"uri": "file:///x"}, "position": {"line": 7, "character": 0}}
            assert (await ask("textDocument/hover", where))["contents"] == "line 7"
            server = language._server
            assert isinstance(server, wirespeed.Server)
            (connection,) = server.connections
            assert isinstance(connection, wirespeed.ServerConnection)
            await ask("shutdown", None)
            await ws.close()

        asyncio.run(asyncio.wait_for(main(), 20))
        thread.join(20)
        print("wirespeed")
        """,
    )


def test_deepgram() -> None:
    """A client of a speech service, blocking."""
    run(
        "deepgram",
        """
        from deepgram import DeepgramClient
        from deepgram.environment import DeepgramClientEnvironment

        async def listen(ws):
            assert ws.request.path.startswith("/v1/listen?")
            assert await ws.recv() == b"sound"
            await ws.send(json.dumps({
                "type": "Metadata", "transaction_key": "", "request_id": "r", "sha256": "s", "created": "c",
                "duration": 1.5, "channels": 1,
            }))
            async for text in ws:
                if json.loads(text)["type"] == "CloseStream":
                    await ws.close()

        def main(url):
            environment = DeepgramClientEnvironment(base=url, production=url, agent=url, agent_rest=url)
            client = DeepgramClient(api_key="key", environment=environment)
            with client.listen.v1.connect(model="nova-3") as connection:
                assert isinstance(connection._websocket, wirespeed.sync.ClientConnection)
                connection.send_media(b"sound")
                message = next(iter(connection))
                assert (message.type, message.duration) == ("Metadata", 1.5)
                connection.send_close_stream()
                assert list(connection) == []

        async def serve():
            async with their_serve(listen, "127.0.0.1", 0) as server:
                await asyncio.to_thread(main, address(server))
            print("wirespeed")

        asyncio.run(asyncio.wait_for(serve(), 20))
        """,
    )
