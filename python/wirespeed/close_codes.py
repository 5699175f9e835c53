"""Close codes and the content of close frames.

It defines the names of the codes. The protocol core knows when each may be sent.
"""

from __future__ import annotations

import dataclasses
import enum

from ._redaction import printable

__all__ = ["Close", "CloseCode"]


class CloseCode(enum.IntEnum):
    """Close codes of RFC 6455, section 7.4.1, and of the IANA registry of WebSocket close codes.

    ``NO_STATUS_RCVD``, ``ABNORMAL_CLOSURE`` and ``TLS_HANDSHAKE`` never appear on the wire.
    """

    NORMAL_CLOSURE = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    # 1004 is reserved
    NO_STATUS_RCVD = 1005
    ABNORMAL_CLOSURE = 1006
    INVALID_DATA = 1007
    POLICY_VIOLATION = 1008
    MESSAGE_TOO_BIG = 1009
    MANDATORY_EXTENSION = 1010
    INTERNAL_ERROR = 1011
    SERVICE_RESTART = 1012
    TRY_AGAIN_LATER = 1013
    BAD_GATEWAY = 1014
    TLS_HANDSHAKE = 1015


_EXPLANATIONS: dict[int, str] = {
    CloseCode.NORMAL_CLOSURE: "OK",
    CloseCode.GOING_AWAY: "going away",
    CloseCode.PROTOCOL_ERROR: "protocol error",
    CloseCode.UNSUPPORTED_DATA: "unsupported data",
    CloseCode.NO_STATUS_RCVD: "no status received [internal]",
    CloseCode.ABNORMAL_CLOSURE: "abnormal closure [internal]",
    CloseCode.INVALID_DATA: "invalid frame payload data",
    CloseCode.POLICY_VIOLATION: "policy violation",
    CloseCode.MESSAGE_TOO_BIG: "message too big",
    CloseCode.MANDATORY_EXTENSION: "mandatory extension",
    CloseCode.INTERNAL_ERROR: "internal error",
    CloseCode.SERVICE_RESTART: "service restart",
    CloseCode.TRY_AGAIN_LATER: "try again later",
    CloseCode.BAD_GATEWAY: "bad gateway",
    CloseCode.TLS_HANDSHAKE: "TLS handshake failure [internal]",
}


class _Root:
    """A base class of ``Close`` to which wirespeed.compat can add the ``Close`` class of ``websockets``.

    Python allows adding bases only to a class whose first base is not a builtin.
    """


@dataclasses.dataclass(frozen=True, init=False)
class Close(_Root):
    """Code and reason of a close frame.

    Attributes:
        code: Close code; 1005 means that the close frame has no code.
        reason: Close reason, empty without a reason.
    """

    code: int
    reason: str = ""

    def __init__(self, code: int, reason: str = "") -> None:
        # Each exception for a closed connection creates two of these; the __init__ of a frozen dataclass would take
        # several times as long.
        fields = self.__dict__
        fields["code"] = code
        fields["reason"] = reason

    def __eq__(self, other: object) -> bool:
        # Equal to the class of the websockets package, because the drop-in for it returns these objects.
        if type(other).__name__ != type(self).__name__:
            return NotImplemented
        return (self.code, self.reason) == (getattr(other, "code", None), getattr(other, "reason", None))

    def __hash__(self) -> int:
        return hash((self.code, self.reason))

    def __str__(self) -> str:
        text = f"{int(self.code)} ({_explain(self.code)})"
        # The peer chooses the reason: it must not be able to forge log lines.
        return f"{text} {printable(self.reason)}" if self.reason else text


def _explain(code: int) -> str:
    # RFC 6455, section 7.4.2: 3000-3999 for libraries, frameworks and applications, by registration;
    # 4000-4999 for private use.
    if 3000 <= code < 4000:
        return "registered"
    if 4000 <= code < 5000:
        return "private use"
    return _EXPLANATIONS.get(code, "unknown")
