"""Routes of an engine: paths with settings and handlers of their own, and the codecs of their messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, get_origin

from .._connection import JSON, MSGPACK
from .._native import JWT, NativeEngine
from .._options.common import check_subprotocols
from ..typing import Unpack
from ._arguments import check_count

__all__ = ["Decode", "Decoders", "Policy", "RatePolicy", "RouteSettings", "Routing", "decoders"]

Policy: TypeAlias = Literal["disconnect", "drop_oldest", "drop_newest", "conflate"]
RatePolicy: TypeAlias = Literal["delay", "drop", "disconnect"]


class RouteSettings(TypedDict, total=False):
    """Settings of one route, which override those of :class:`Engine`.

    Attributes:
        auth: Verifies the tokens of clients; ``None``: no authentication, even if the engine has one.
        origins: Allowed origins of web pages; ``None``: the host that the request names.
        subprotocols: Supported subprotocols, in order of preference.
        compression: Whether permessage-deflate is accepted.
        max_size: The maximum size of a received message in bytes; ``None``: no limit.
        max_fragments: The maximum number of frames of a received message; ``None``: no limit.
        max_messages_per_second: The maximum rate of messages received from one session; ``None``: no limit.
        message_burst: How many messages may arrive at once. It requires ``max_messages_per_second``.
        max_bytes_per_second: The maximum rate of payload bytes received from one session; ``None``: no limit.
        byte_burst: How many bytes may arrive at once. It requires ``max_bytes_per_second``.
        rate_policy: What happens beyond the rates.
        outbox_limit: The maximum number of bytes queued for one session.
        policy: What happens beyond ``outbox_limit``.
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


def _checked_settings(method: str, given: RouteSettings) -> dict[str, Any]:
    """Return the settings by name, after checks that the types alone do not cover."""
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
    """The routes of an engine, as a base of :class:`wirespeed.engine.Engine`."""

    # The codecs of routes, by tag from 1 on: decoders of text and of binary messages, and `close_invalid`.
    _codecs: list[tuple[Decode | None, Decode | None, bool]]
    _codec: Decoders | None  # the default of routes

    def _set_up_routes(self, codec: Any) -> None:
        self._codecs = []
        self._codec = decoders(codec)

    def _add_codec(self, pair: Decoders, close_invalid: bool) -> None:
        self._codecs.append((*pair, close_invalid))
        self._set_codecs(self._codecs)

    def _fallback_tag(self) -> int:
        """Return the tag of sessions whose path matches no route."""
        if self._codec is None:
            return 0
        if not self._codecs:
            self._add_codec(self._codec, close_invalid=True)
        return 1

    def echo(self, path: str, **settings: Unpack[RouteSettings]) -> None:
        """Answer each message at a path with the same message, without Python.

        Args:
            path: A path such as ``"/echo"``. ``{name}`` matches any segment, and ``{*name}`` all remaining ones; at
                most 25 names. Everything else is compared with the raw path: braces, for example, are ``%7B`` and
                ``%7D``.
            **settings: Settings that override the engine's: :class:`RouteSettings`.

        Raises:
            TypeError: A setting is unknown or has a wrong type; the text names it.
            ValueError: The path is not valid, or conflicts with another one; or a setting is not valid.
            RuntimeError: The engine has started.
        """
        self._route(path, "echo", _checked_settings("echo", settings), 0)

    def route(
        self, path: str, *, codec: Any = ..., close_invalid: bool = True, **settings: Unpack[RouteSettings]
    ) -> None:
        """Accept sessions at a path; their events arrive in batches. Without any such route, all paths accept sessions.

        :attr:`Session.route` is the path pattern, and :attr:`Session.params` contains the values of its names.

        Args:
            path: As for :meth:`echo`.
            codec: Decodes messages to objects, which are then :attr:`Message.data`. ``"json"``: text and binary
                messages. ``"msgpack"``: binary messages. A type that msgspec supports, such as a ``msgspec.Struct`` or
                a dataclass: JSON for text, MessagePack for binary messages, both validated. A function of ``bytes``, or
                an object with a method ``decode``: both kinds. ``None``: messages are not decoded. ``...``, the
                default: the codec of the engine. If it raises an ``Exception``, the event is an :class:`Invalid`
                instead. It is called when an event of a batch is accessed, or before its handler is called, in the same
                thread; with ``run(threads=)``, in several threads.
            close_invalid: Whether a session is closed after an invalid message, with code 1007 (RFC 6455, section
                7.4.1) and the codec's error as the reason.
            **settings: As for :meth:`echo`.

        Raises:
            TypeError: As for :meth:`echo`; or msgspec does not support the type.
            ValueError: As for :meth:`echo`; or there is no codec of that name.
            ImportError: The codec needs msgspec: ``pip install "wirespeed[codecs]"``.
            RuntimeError: The engine has started.
        """
        pair = self._codec if codec is ... else decoders(codec)
        tag = 0 if pair is None else len(self._codecs) + 1
        self._route(path, "events", _checked_settings("route", settings), tag)
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
        """Subscribe the clients of a path to the topic in the path, and publish the messages that they send on it.

        Python gets no events. Messages of a client go to the other subscribers of the topic, on all engines of the
        broker, if there is one. Messages that the application publishes on the topic go to the clients. A client that
        sends faster than the others read is not read until they have caught up.

        Permissions come from tokens: a client that may not subscribe gets 403. Messages of a client that may not
        publish are dropped, and counted as ``messages_denied``. Without tokens, ``topics_by_default`` applies. A path
        without a valid topic, or one with a segment ``_wirespeed``, is answered with 404.

        Args:
            path: In ``"/feed/{topic}"``, the topic is one segment, percent-decoded. In ``"/feed/{*topic}"``, it
                consists of all remaining segments, joined by dots. Further names may be present.
            send: Whether clients may publish; otherwise, a client that sends a message is closed with code 1008.
            receive: Whether clients are subscribed.
            echo: Whether clients also receive their own messages.
            prefix: Precedes the topics, followed by a dot. Without it, clients can name any topic of the application.
            **settings: As for :meth:`echo`.

        Raises:
            TypeError: As for :meth:`echo`.
            ValueError: As for :meth:`echo`; or the path has no ``topic``, or the prefix is not a valid topic.
            RuntimeError: The engine has started.
        """
        checked = _checked_settings("relay", settings)
        self._route(path, "relay", {**checked, "send": send, "receive": receive, "echo": echo, "prefix": prefix}, 0)


Decode: TypeAlias = Callable[[bytes], Any]

Decoders: TypeAlias = tuple[Decode | None, Decode | None]
"""The decoders of text and of binary messages; ``None``: such messages are invalid."""


def decoders(codec: Any) -> Decoders | None:
    """Return the decoders of a codec; ``None``: messages are not decoded.

    Args:
        codec: As for :meth:`Engine.route`.

    Raises:
        ValueError: There is no codec of that name.
        TypeError: msgspec does not support the type.
        ImportError: The codec needs msgspec, which is not installed; the text says how to install it.
    """
    if codec is None:
        return None
    if isinstance(codec, str):
        if codec == "json":
            return JSON.decoder(Any), JSON.decoder(Any)
        if codec == "msgpack":
            return None, MSGPACK.decoder(Any)
        raise ValueError(f'codec must be None, "json", "msgpack", a type or a function, not {codec!r}')
    # Aliases such as `Annotated[bytes, ...]` have the attributes of their types.
    if not isinstance(codec, type) and get_origin(codec) is None:
        decode = getattr(codec, "decode", None)
        if callable(decode):
            return decode, decode
        if inspect.isroutine(codec):
            return codec, codec
    # It is a type, for which JSON and MessagePack use the same field names and values.
    return JSON.decoder(codec), MSGPACK.decoder(codec)
