"""Where sessions begin, by the paths of requests, and what holds for each path; all that serves is native."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from .._annotations import Unpack
from .._native import JWT, NativeEngine
from .._options.common import check_subprotocols
from ._arguments import check_count
from ._codecs import Decode, Decoders, decoders

__all__ = ["Policy", "RatePolicy", "RouteSettings", "Routing"]

Policy: TypeAlias = Literal["disconnect", "drop_oldest", "drop_newest", "conflate"]
RatePolicy: TypeAlias = Literal["delay", "drop", "disconnect"]


class RouteSettings(TypedDict, total=False):
    """What may hold for one path: each is as for :class:`Engine`, whose own settings hold where nothing else is said.

    Attributes:
        auth: Who clients are, by their tokens; ``None``: nobody is asked, whatever the engine does elsewhere.
        origins: Whose pages may connect; ``None``: those of the host that the request names.
        subprotocols: Subprotocols, the preferred one first.
        compression: Whether permessage-deflate is accepted.
        max_size: Bytes of the largest message that a client may send; ``None``: no limit.
        max_fragments: Frames that it may split one message into; ``None``: no limit.
        max_messages_per_second: Messages that one session may send; ``None``: any number.
        message_burst: How many of them at once. It needs ``max_messages_per_second`` beside it.
        max_bytes_per_second: The same in bytes of their payloads.
        byte_burst: How many of them at once, likewise.
        rate_policy: What becomes of more.
        outbox_limit: Bytes that may wait for one session.
        policy: What becomes of what is more.
    """

    auth: JWT | None
    origins: Sequence[str] | None
    subprotocols: Sequence[str]
    compression: bool
    max_size: int | None
    max_fragments: int | None
    max_messages_per_second: float | None
    message_burst: float | None
    max_bytes_per_second: float | None
    byte_burst: float | None
    rate_policy: RatePolicy
    outbox_limit: int
    policy: Policy


_NAMES = frozenset(RouteSettings.__annotations__)


def _checked(method: str, given: RouteSettings) -> dict[str, Any]:
    """Return settings by name; of those that are counts, what types alone do not tell."""
    settings: dict[str, Any] = {**given}
    for name in settings:
        if name not in _NAMES:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
    if "subprotocols" in settings:
        check_subprotocols(settings["subprotocols"])
        settings["subprotocols"] = list(settings["subprotocols"])
    if settings.get("max_size") is not None:
        check_count("max_size", settings["max_size"], 0)
    if settings.get("max_fragments") is not None:
        check_count("max_fragments", settings["max_fragments"], 1, 2**32 - 1)
    if "outbox_limit" in settings:
        check_count("outbox_limit", settings["outbox_limit"])
    return settings


class Routing(NativeEngine):
    """What an engine has to be told of its paths: see :class:`wirespeed.engine.Engine`."""

    # By the numbers that the sessions of routes know, from 1 on: of text, of binary messages, and `close_invalid`.
    _codecs: list[tuple[Decode | None, Decode | None, bool]]
    _codec: Decoders | None  # of routes that name none

    def _set_up_routes(self, codec: Any) -> None:
        self._codecs = []
        self._codec = decoders(codec)

    def _add_codec(self, pair: Decoders, close_invalid: bool) -> None:
        self._codecs.append((*pair, close_invalid))
        self._set_codecs(self._codecs)

    def _fallback_tag(self) -> int:
        """Return what sessions at paths that were not added know of them."""
        if self._codec is None:
            return 0
        if not self._codecs:
            self._add_codec(self._codec, close_invalid=True)
        return 1

    def echo(self, path: str, **settings: Unpack[RouteSettings]) -> None:
        """Answer the messages at a path with themselves, without Python.

        Args:
            path: ``"/echo"``; ``{name}`` stands for any segment, ``{*name}`` for all that follow; 25 names at most.
                All else is compared with paths as they are sent: braces, for example, are ``%7B`` and ``%7D``.
            **settings: What is to hold there instead of what holds elsewhere: :class:`RouteSettings`.

        Raises:
            TypeError: A setting has a wrong type, or there is none of the name; the text names it.
            ValueError: The path is none, or another one stands in its way; or a setting is not valid.
            RuntimeError: The engine has started.
        """
        self._route(path, "echo", _checked("echo", settings), 0)

    def route(
        self, path: str, *, codec: Any = ..., close_invalid: bool = True, **settings: Unpack[RouteSettings]
    ) -> None:
        """Make the clients of a path sessions, whose events come in batches. Without any, all paths are such.

        :attr:`Session.route` says which it was, and :attr:`Session.params` what its names stand for.

        Args:
            path: As for :meth:`echo`.
            codec: What makes objects of their messages, which are :attr:`Message.data` then. ``"json"``: of text and of
                binary messages. ``"msgpack"``: of binary ones. A type that msgspec knows, such as a ``msgspec.Struct``
                or a dataclass: JSON of text, MessagePack of binary messages, both checked against it. A function of
                their ``bytes``, or an object with such a method ``decode``: of both. ``None``: they are not decoded.
                ``...``, the default, is the engine's codec. What it does not understand, where it raises an
                ``Exception``, is an :class:`Invalid` instead. It is asked when an event of a batch is reached, or
                before its handler is called, in the same thread: with ``run(threads=)`` in several.
            close_invalid: Whether a session of which such a message came is closed, with code 1007 (RFC 6455, section
                7.4.1) and what the codec says as the reason.
            **settings: As for :meth:`echo`.

        Raises:
            TypeError: As for :meth:`echo`; or msgspec does not know the type.
            ValueError: As for :meth:`echo`; or there is no codec of that name.
            ImportError: The codec needs msgspec: ``pip install "wirespeed[codecs]"``.
            RuntimeError: The engine has started.
        """
        pair = self._codec if codec is ... else decoders(codec)
        tag = 0 if pair is None else len(self._codecs) + 1
        self._route(path, "events", _checked("route", settings), tag)
        if pair is not None:
            self._add_codec(pair, close_invalid)

    def relay(
        self,
        path: str,
        *,
        send: bool = True,
        receive: bool = True,
        echo: bool = False,
        prefix: str = "",
        **settings: Unpack[RouteSettings],
    ) -> None:
        """Have the clients of a path subscribe to the topic that it names, and publish on it what they send.

        Python hears of none of it: there are no events. What they send goes to the other sessions that subscribe to the
        topic, of all engines on the broker if there is one; what the application publishes there goes to them. A client
        that sends faster than the others read is not read from until they have caught up.

        Their tokens say who may: whoever may not subscribe is answered with 403, and what is sent by one that may not
        publish is dropped and counted, as ``messages_denied``. Without tokens, ``topics_by_default`` does. A path that
        names no topic, or one with a segment ``_wirespeed``, is answered with 404.

        Args:
            path: ``"/feed/{topic}"``: the topic is one segment, percent-decoded; ``"/feed/{*topic}"``: all that follow,
                with dots between them. There may be other names beside it.
            send: Whether clients may publish; if not, one that sends anything is closed with code 1008.
            receive: Whether they subscribe.
            echo: Whether each gets what it sends itself as well.
            prefix: What the topics begin with, before a dot: else clients can name any topic of the application.
            **settings: As for :meth:`echo`.

        Raises:
            TypeError: As for :meth:`echo`.
            ValueError: As for :meth:`echo`; or there is no ``topic`` in the path, or the prefix is no topic.
            RuntimeError: The engine has started.
        """
        checked = _checked("relay", settings)
        self._route(path, "relay", {**checked, "send": send, "receive": receive, "echo": echo, "prefix": prefix}, 0)
