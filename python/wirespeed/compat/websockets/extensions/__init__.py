"""Extensions: only permessage-deflate, which is native. The objects here hold settings and do not process data."""

__all__ = ["permessage_deflate"]

from . import permessage_deflate
