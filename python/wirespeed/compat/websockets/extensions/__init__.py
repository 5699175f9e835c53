"""Extensions: permessage-deflate, which is native; its settings are read, and no bytes pass through objects here."""

__all__ = ["permessage_deflate"]

from . import permessage_deflate
