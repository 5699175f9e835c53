"""HTTP headers, requests and responses, as applications see them. The protocol core parses and serializes them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Protocol

from ._redaction import mask_header, mask_query, printable
from .exceptions import InvalidHeaderFormat, InvalidHeaderValue

__all__ = ["Headers", "HeadersLike", "MultipleValuesError", "Request", "Response", "SupportsKeysAndGetItem"]

# RFC 9110, section 5.6.2: a name is a token.
_is_name = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+").fullmatch
# RFC 9110, section 5.5: HTAB, SP, visible characters and obs-text, but not CR, LF and NUL, which could forge other
# headers.
_is_value = re.compile(r"[\x09\x20-\x7e\x80-\xff]*").fullmatch


class MultipleValuesError(LookupError):
    """Raised by reading one value of a header that has several."""

    def __str__(self) -> str:
        return repr(self.args[0]) if len(self.args) == 1 else super().__str__()


class Headers(MutableMapping[str, str]):
    """HTTP headers: a multidict with case-insensitive names that keeps the order of insertion.

    ``headers[name]`` raises ``KeyError`` without a value and ``MultipleValuesError`` with several: use ``get_all``
    then. ``headers[name] = value`` adds a value and keeps existing ones. ``del headers[name]`` removes all values.
    Iteration yields the lower-case names.

    Values are ISO-8859-1 text, which can represent all bytes: ``value.encode("iso-8859-1").decode()`` reads UTF-8.

    ``str`` returns the headers as they are sent. ``repr`` masks values that are or may be credentials, so it can be
    logged.

    Raises:
        InvalidHeaderFormat: A name is not a token.
        InvalidHeaderValue: A value contains a line break or another forbidden character.
    """

    __slots__ = ("_index", "_items")

    def __init__(self, *args: HeadersLike, **kwargs: str) -> None:
        # Values by lower-case name; None until it is first needed, because many headers are never read.
        self._index: dict[str, list[str]] | None = {}
        self._items: list[tuple[str, str]] = []
        self.update(*args, **kwargs)

    @classmethod
    def from_raw(cls, items: Iterable[tuple[str, str]]) -> Headers:
        """Create headers from valid pairs, without validating them again.

        Args:
            items: Names and values, in order.
        """
        headers = cls.__new__(cls)
        headers._index = None
        headers._items = list(items)
        return headers

    def __str__(self) -> str:
        return "".join(f"{name}: {value}\r\n" for name, value in self._items) + "\r\n"

    def __repr__(self) -> str:
        shown = [(name, mask_header(name, value)) for name, value in self._items]
        return f"{type(self).__name__}({shown!r})"

    def copy(self) -> Headers:
        """Return an independent copy."""
        return type(self).from_raw(self._items)

    __copy__ = copy

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, name: str) -> str:
        values = self._values[name.lower()]
        if len(values) > 1:
            raise MultipleValuesError(name)
        return values[0]

    def __setitem__(self, name: str, value: str) -> None:
        if not _is_name(name):
            raise InvalidHeaderFormat(name, "expected token", name or "an empty name", 0)
        if not _is_value(str(value)):
            raise InvalidHeaderValue(name, str(value))
        self._append(name, str(value))

    def __delitem__(self, name: str) -> None:
        key = name.lower()
        del self._values[key]
        self._items = [item for item in self._items if item[0].lower() != key]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Headers):
            return NotImplemented
        return self._values == other._values

    def clear(self) -> None:
        """Remove all headers."""
        self._values.clear()
        self._items.clear()

    def update(self, *args: HeadersLike, **kwargs: str) -> None:
        """Add headers, and keep existing ones.

        Args:
            *args: At most one set of headers: ``Headers``, a mapping, or pairs.
            **kwargs: More headers.
        """
        super().update(*(arg.raw_items() if isinstance(arg, Headers) else arg for arg in args), **kwargs)

    def get_all(self, name: str) -> list[str]:
        """Return all values of a header, in order; an empty list without one.

        Args:
            name: Name of the header, in any case.
        """
        return self._values.get(name.lower(), [])[:]

    def raw_items(self) -> Iterator[tuple[str, str]]:
        """Return an iterator over all pairs of name and value, in order, with the original spelling of names."""
        return iter(self._items)

    @property
    def _values(self) -> dict[str, list[str]]:
        if self._index is None:
            self._index = {}
            for name, value in self._items:
                self._index.setdefault(name.lower(), []).append(value)
        return self._index

    def _append(self, name: str, value: str) -> None:
        self._values.setdefault(name.lower(), []).append(value)
        self._items.append((name, value))


class SupportsKeysAndGetItem(Protocol):
    """A mapping of which only ``keys`` and ``[]`` are needed."""

    def keys(self) -> Iterable[str]:
        """Return the keys."""
        ...

    def __getitem__(self, key: str, /) -> str:
        """Return the value of a key."""
        ...


HeadersLike = Headers | Mapping[str, str] | Iterable[tuple[str, str]] | SupportsKeysAndGetItem
"""Types accepted where headers are expected."""


@dataclasses.dataclass(repr=False)
class Request:
    """The request that opens a connection.

    ``repr`` masks the query, and the values of headers that may be credentials, so it can be logged.

    Attributes:
        path: Path and query, as in the request line.
        headers: Headers.
        method: Method. After ``process_request``, a handshake with another method than GET is refused.
        protocol: HTTP version, such as HTTP/1.1.
    """

    path: str
    headers: Headers
    method: str = "GET"
    protocol: str = "HTTP/1.1"

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(path={mask_query(self.path)!r}, headers={self.headers!r}, "
            f"method={self.method!r}, protocol={self.protocol!r})"
        )


@dataclasses.dataclass(repr=False)
class Response:
    """The response to the request that opens a connection.

    Attributes:
        status_code: Status code.
        reason_phrase: Reason phrase.
        headers: Headers.
        body: Body; empty if the connection was accepted.
    """

    status_code: int
    reason_phrase: str
    headers: Headers
    body: bytes | bytearray = b""

    def __repr__(self) -> str:
        body = repr(bytes(self.body[:_SHOWN_BYTES])) + (
            f"... [{len(self.body)} bytes]" if len(self.body) > _SHOWN_BYTES else ""
        )
        return (
            f"{type(self).__name__}(status_code={self.status_code!r}, reason_phrase={self.reason_phrase!r}, "
            f"headers={self.headers!r}, body={body})"
        )

    def body_excerpt(self) -> str:
        """Return the beginning of the body as one short line for an error message.

        Returns:
            Readable text without markup; empty if the body is empty, compressed or not text.
        """
        if not self.body or "Content-Encoding" in self.headers:
            return ""
        text = bytes(self.body[:_READ_BYTES]).decode("utf-8", "replace")
        if "\0" in text or text.count("\ufffd") > len(text) // 10:
            return ""
        if re.match(_MARKUP, text):
            text = re.sub(_TAGS, " ", re.sub(_INVISIBLE, " ", text))
        return printable(" ".join(text.split()), limit=_EXCERPT)


# Bytes of the body in a repr; bytes to search for text, enough for an error page with style sheets; characters of an
# excerpt.
_SHOWN_BYTES = 80
_READ_BYTES = 8192
_EXCERPT = 160

# Compiled on use, because compiling is slow and they are seldom needed.
_MARKUP = r"\s*<[!?a-zA-Z]"
_INVISIBLE = r"(?si)<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1\s*>|\Z)"
_TAGS = r"<[^>]*(?:>|\Z)"
